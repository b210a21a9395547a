//! The JSON format of a reproduction, from which every figure is printed or drawn.
//!
//! Readers of the files rely on field names: a renamed field is listed in the changelog. Figures that were not
//! modelled have a `why` instead of a value, and are never omitted.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::causes::Causes;
use super::cell::Cell;
use super::plot::Figure;
use super::verdict::Verdict;
use napkin_measure::report::round;
use napkin_measure::uncertainty::Uncertainty;

/// All experiments of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The program's version.
    pub version: String,
    /// The experiments, in the order requested.
    pub experiments: Vec<Reproduction>,
}

impl Document {
    /// A document of the current version.
    pub fn new(experiments: Vec<Reproduction>) -> Document {
        Document { version: env!("CARGO_PKG_VERSION").to_owned(), experiments }
    }

    /// Formats the document as indented JSON with a final newline.
    ///
    /// # Errors
    /// If a run's outcome has no JSON form, which would be a bug.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        round::json(self)
    }
}

/// The result of one experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// Name: `2024`.
    pub experiment: String,
    /// Heading.
    pub title: String,
    /// How the published and the modelled figures were taken.
    pub about: String,
    /// Names of the host profiles used.
    pub profiles: Vec<String>,
    /// Whether fewer and shorter runs were made than the figures need.
    pub quick: bool,
    /// Caveats for the reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// All figures, published and modelled.
    pub cells: Vec<Cell>,
    /// Criteria, and whether they were met.
    pub verdicts: Vec<Verdict>,
    /// Stability of the orders over draws of unmeasured constants; `None` without draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<Uncertainty>,
    /// Causes of misses, as far as changes of the model show them; `None` if none were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causes: Option<Causes>,
    /// The individual runs.
    pub runs: Vec<RunRecord>,
    /// The plots; not part of the JSON, because they are drawn from the cells.
    #[serde(skip)]
    pub figures: Vec<Figure>,
}

/// One run of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Label of the task.
    pub label: String,
    /// With which seed.
    pub seed: u64,
    /// The outcome; `None` if the run failed.
    pub outcome: Option<Value>,
    /// The reason of a failure.
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
        // One run per cell, with figures of few digits: reading others back may lose the last bit.
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
