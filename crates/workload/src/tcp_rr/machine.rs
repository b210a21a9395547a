//! The model of request and response over a thousand connections (2020).

mod constants;
mod load;
mod program;
mod scenario;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile};
use serde_json::{Map, Value};

use super::SIZE;
use crate::machine::scenario::{LoadError, Scenario, field, size};
use crate::waiting::Waiting;

pub use scenario::{Setup, run};

/// 2020: request and response over a thousand connections.
#[derive(Debug)]
pub(crate) struct TcpRr;

impl Scenario for TcpRr {
    fn name(&self) -> &'static str {
        "tcp-rr"
    }

    fn profile(&self) -> &'static str {
        "xeon-56"
    }

    fn constants(&self) -> Option<Constants> {
        Some(constants::CONSTANTS)
    }

    fn waiting(&self) -> Waiting {
        Waiting::Epoll
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["1", "5K"].map(str::to_owned))
    }

    fn form(&self) -> &'static str {
        SIZE
    }

    fn load(&self, text: &str, _: &Profile) -> Result<Map<String, Value>, LoadError> {
        size(text, SIZE).map(|bytes| field("bytes", bytes))
    }

    fn load_number(&self, text: &str) -> Option<f64> {
        size(text, SIZE).ok().map(f64::from)
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let bytes = size(load, SIZE).map_err(|error| error.to_string())?;
        scenario::run(run, Setup::published(bytes))
    }
}
