//! The model of the 2007 flood ping: its loads, and the profile of the published host.

mod constants;
mod load;
mod program;
mod scenario;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile};
use serde_json::{Map, Value};

use crate::machine::scenario::{LEAST_FRAME, LoadError, Scenario, field, rate_of, whole};
use crate::waiting::Waiting;

pub use scenario::run;

/// 2007: a flood ping.
#[derive(Debug)]
pub(crate) struct FloodPing;

/// The form of a rate of pings.
const PINGS: &str = "flood, or echo requests a second above 0, as in 100 or 10k";

impl FloodPing {
    fn pace(text: &str, profile: &Profile) -> Result<Option<f64>, LoadError> {
        if text == "flood" {
            return Ok(None);
        }
        rate_of(text, profile, LEAST_FRAME, PINGS).map(Some)
    }
}

impl Scenario for FloodPing {
    fn name(&self) -> &'static str {
        "flood-ping"
    }

    fn profile(&self) -> &'static str {
        "desktop-2007"
    }

    fn constants(&self) -> Option<Constants> {
        Some(constants::CONSTANTS)
    }

    fn waiting(&self) -> Waiting {
        Waiting::Receive
    }

    fn loads(&self) -> Vec<String> {
        vec!["flood".to_owned()]
    }

    fn form(&self) -> &'static str {
        PINGS
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        Ok(match Self::pace(text, profile)? {
            None => field("requests_per_s", "flood"),
            Some(rate) => field("requests_per_s", whole(rate)),
        })
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let pace = Self::pace(load, run.profile).map_err(|error| error.to_string())?;
        scenario::run(run, pace)
    }
}
