//! The JSON form of a reproduction: the source of every figure that is printed or drawn.
//!
//! Whoever reads the files counts on the names of fields: one that is renamed stands in the changelog. Figures
//! that were not modelled have a `why` in the place of their values, and are never left out.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::causes::Causes;
use super::cell::Cell;
use super::plot::Figure;
use super::verdict::Verdict;
use napkin_measure::report::round;
use napkin_measure::uncertainty::Uncertainty;

/// All experiments of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The program's version.
    pub version: String,
    /// The experiments, in the order in which they were asked for.
    pub experiments: Vec<Reproduction>,
}

impl Document {
    /// A document of this version.
    pub fn new(experiments: Vec<Reproduction>) -> Document {
        Document { version: env!("CARGO_PKG_VERSION").to_owned(), experiments }
    }

    /// The text of a JSON file, indented, with a newline at its end.
    ///
    /// # Errors
    /// If a run's outcome has no JSON form, which would be a bug.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        round::json(self)
    }
}

/// One experiment, reproduced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// Its name: `2024`.
    pub experiment: String,
    /// A line for a heading.
    pub title: String,
    /// How the figures were taken, published and modelled.
    pub about: String,
    /// The host profiles that it ran on, by their names.
    pub profiles: Vec<String>,
    /// Whether it ran fewer and shorter runs than it should.
    pub quick: bool,
    /// What a reader should know before believing it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Every figure, published beside modelled.
    pub cells: Vec<Cell>,
    /// What it was asked to show, and whether it did.
    pub verdicts: Vec<Verdict>,
    /// What draws of what nobody measured left of it; `None` without draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<Uncertainty>,
    /// Why rows are off, as far as changes of the model tell; `None` where none were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causes: Option<Causes>,
    /// Each run as it was.
    pub runs: Vec<RunRecord>,
    /// The plots; drawn from the cells, and therefore no part of the JSON.
    #[serde(skip)]
    pub figures: Vec<Figure>,
}

/// One run of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What was run.
    pub label: String,
    /// With which seed.
    pub seed: u64,
    /// All that it left; `None` if it failed.
    pub outcome: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Options, Reproduce};
    use crate::fake::Fake;
    use napkin_measure::report::Progress;

    #[test]
    fn a_document_is_read_back_as_it_was_written_but_for_its_plots() {
        // One run a cell, whose figures have few digits: reading may lose the last bit of others.
        let quick = Options { quick: true, ..Options::default() };
        let fake = Fake { fails: Some("a at 2"), ..Fake::default() };
        let document = Document::new(vec![fake.reproduce(&quick, Progress::hidden).unwrap()]);
        let text = document.to_json().unwrap();
        let mut back: Document = serde_json::from_str(&text).unwrap();
        assert!(back.experiments[0].figures.is_empty());
        back.experiments[0].figures = document.experiments[0].figures.clone();
        assert_eq!(back, document);
    }

    #[test]
    fn the_contract_s_names_are_all_there() {
        let document = Document::new(vec![Fake::default().run()]);
        let json: Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
        let experiment = &json["experiments"][0];
        for name in
            ["experiment", "title", "about", "profiles", "quick", "cells", "verdicts", "runs"]
        {
            assert!(experiment.get(name).is_some(), "{name}");
        }
        let cell = &experiment["cells"][0];
        for name in ["config", "load", "quantity", "unit", "published", "modelled", "true_value"] {
            assert!(cell.get(name).is_some(), "{name}");
        }
        assert_eq!(cell["fitted"], true);
        assert!(cell["modelled"]["low"].is_f64(), "{cell}");
        assert_eq!(experiment["runs"][0]["outcome"]["interrupts"], 7);
        assert!(experiment.get("figures").is_none());
    }
}
