//! The model of remote disk operations at a fixed rate (2020).

mod constants;
mod load;
mod program;
mod scenario;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile};
use napkin_policy::text::quoted;
use serde_json::{Map, Value};

use super::OPERATIONS;
use crate::machine::scenario::{LEAST_FRAME, LoadError, Scenario, field, rate_of, size, whole};
use crate::waiting::Waiting;

pub use scenario::{Setup, run};

/// 2020: remote disk operations at a fixed rate.
#[derive(Debug)]
pub(crate) struct Ssd;

impl Ssd {
    fn setup(text: &str, profile: &Profile) -> Result<Setup, LoadError> {
        let form = OPERATIONS;
        let none = || LoadError::Form { given: quoted(text), form };
        let (bytes, rate) = text.split_once(':').ok_or_else(none)?;
        let bytes = size(bytes, form)?;
        let rate = rate_of(rate, profile, bytes.max(LEAST_FRAME), form)?;
        Ok(Setup::published(bytes, rate))
    }
}

impl Scenario for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
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
        Vec::from(["4K:572600", "64K:157900", "1M:10980"].map(str::to_owned))
    }

    fn form(&self) -> &'static str {
        OPERATIONS
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        let setup = Self::setup(text, profile)?;
        let mut load = field("bytes", setup.bytes);
        load.insert("operations_per_s".to_owned(), whole(setup.per_second));
        Ok(load)
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let setup = Self::setup(load, run.profile).map_err(|error| error.to_string())?;
        scenario::run(run, setup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_beyond_the_link_are_refused() {
        let mut profile = Profile::named(crate::schema(), "xeon-56").unwrap();
        profile.set_text("link.rate=1 Gbit/s").unwrap();
        let beyond = Ssd::setup("1M:200", &profile).unwrap_err().to_string();
        assert!(beyond.contains("link.rate"), "{beyond}");
    }
}
