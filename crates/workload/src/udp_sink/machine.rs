//! The model of the 2018 datagram sink.

mod constants;
mod load;
mod scenario;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile};
use serde_json::{Map, Value};

use crate::machine::scenario::{
    LEAST_FRAME, LoadError, RATE_FORM, Scenario, field, per_second, whole,
};
use crate::waiting::Waiting;

pub use load::Pktgen;
pub use scenario::run;

/// 2018: a datagram sink under a generator that ignores losses.
#[derive(Debug)]
pub(crate) struct UdpSink;

impl Scenario for UdpSink {
    fn name(&self) -> &'static str {
        "udp-sink"
    }

    fn profile(&self) -> &'static str {
        "qemu-2018"
    }

    fn constants(&self) -> Option<Constants> {
        Some(constants::CONSTANTS)
    }

    fn waiting(&self) -> Waiting {
        Waiting::Receive
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["5000", "13000", "21000", "30000", "60000"].map(str::to_owned))
    }

    fn form(&self) -> &'static str {
        RATE_FORM
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        per_second(text, profile, LEAST_FRAME).map(|rate| field("packets_per_s", whole(rate)))
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let rate = per_second(load, run.profile, LEAST_FRAME).map_err(|error| error.to_string())?;
        scenario::run(run, rate)
    }
}
