//! The model of memcached under mutilate (2024).

mod constants;
mod load;
mod program;
mod scenario;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile};
use serde_json::{Map, Value};

use crate::machine::scenario::{
    LEAST_FRAME, LoadError, RATE_OR_MAX, Scenario, field, rate_of, whole,
};
use crate::waiting::Waiting;

pub use load::Rate;
pub use scenario::{Setup, run};

/// 2024: memcached under mutilate.
#[derive(Debug)]
pub(crate) struct Memcached;

impl Memcached {
    fn rate(text: &str, profile: &Profile) -> Result<Rate, LoadError> {
        if text == "max" {
            return Ok(Rate::Max);
        }
        rate_of(text, profile, LEAST_FRAME, RATE_OR_MAX).map(Rate::PerS)
    }
}

impl Scenario for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn profile(&self) -> &'static str {
        "epyc-7662"
    }

    fn constants(&self) -> Option<Constants> {
        Some(constants::CONSTANTS)
    }

    fn waiting(&self) -> Waiting {
        Waiting::Epoll
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["200000", "600000", "1000000", "max"].map(str::to_owned))
    }

    fn form(&self) -> &'static str {
        RATE_OR_MAX
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        Ok(match Self::rate(text, profile)? {
            Rate::Max => field("requests_per_s", "max"),
            Rate::PerS(rate) => field("requests_per_s", whole(rate)),
        })
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let rate = Self::rate(load, run.profile).map_err(|error| error.to_string())?;
        let setup = Setup::of(run.profile, rate);
        scenario::run(run, setup)
    }
}
