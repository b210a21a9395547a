//! Options of a reproduction.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use napkin_machine::profile::Profile;
use serde_json::{Map, Value, json};

use super::ReproduceError;

/// Options of a reproduction.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Runs of each cell, each with its own seed; at least 1.
    pub repetitions: u64,
    /// The first seed; the others are consecutive.
    pub seed: u64,
    /// Virtual seconds per cell; `None` for each experiment's default.
    pub virtual_s: Option<f64>,
    /// A host profile that replaces the experiment's own.
    pub profile: Option<PathBuf>,
    /// A table of kernel scenarios that replaces the embedded one.
    pub table: Option<PathBuf>,
    /// Draws of all uncertain constants of the profile, each run with its own seed.
    pub uncertainty: u64,
    /// Draws of each change of the model that is tested as a cause of misses, in experiments that have such
    /// changes.
    pub causes: u64,
    /// The draw to run; `None` for the undrawn profile.
    pub draw: Option<u64>,
    /// Tasks to run in parallel; `None` for as many as there are CPUs.
    pub jobs: Option<NonZeroUsize>,
    /// Whether to run fewer and shorter runs, as a smoke test.
    pub quick: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            repetitions: 3,
            seed: 1,
            virtual_s: None,
            profile: None,
            table: None,
            uncertainty: 0,
            causes: 0,
            draw: None,
            jobs: None,
            quick: false,
        }
    }
}

impl Options {
    /// The seeds of a cell; only one if `quick`.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let repetitions = if self.quick { 1 } else { self.repetitions.max(1) };
        let first = self.seed;
        (0..repetitions).map(move |i| first.wrapping_add(i))
    }

    /// The host profile to run on: `own`, or the one that replaces it; drawn if `draw` is set.
    ///
    /// # Errors
    /// If the profile cannot be read or drawn.
    pub fn host(&self, own: &str) -> Result<Profile, ReproduceError> {
        let profile = match &self.profile {
            Some(path) => Profile::load(napkin_workload::schema(), &path.to_string_lossy()),
            None => Profile::named(napkin_workload::schema(), own),
        };
        let profile = match self.draw {
            Some(draw) => profile.and_then(|profile| profile.drawn(draw)),
            None => profile,
        };
        profile.map_err(|error| ReproduceError::Setup(error.to_string()))
    }

    /// The same options for one of the draws.
    pub(super) fn drawn(&self, draw: u64) -> Options {
        // After the seeds of the undrawn profile, so that no draw shares its arrivals.
        let seed = self.seed.wrapping_add(self.repetitions).wrapping_add(draw);
        Options { repetitions: 1, seed, draw: Some(draw), ..self.clone() }
    }

    /// All inputs on which the outcomes of these experiments depend, except the number of threads: a reproduction
    /// can be resumed only with the same.
    ///
    /// # Errors
    /// If the profile or the table cannot be read.
    pub fn identity(&self, experiments: &[&str]) -> Result<Value, ReproduceError> {
        let load = |path: &PathBuf| {
            Profile::load(napkin_workload::schema(), &path.to_string_lossy())
                .map_err(|error| ReproduceError::Setup(error.to_string()))
        };
        let profile = self.profile.as_ref().map(load).transpose()?;
        let constants = profile.as_ref().map(|profile| {
            let constants = profile.constants().map(|it| (it.key.path(), it.value.into()));
            constants.collect::<Map<String, Value>>()
        });
        let table = match &self.table {
            None => None,
            Some(path) => {
                let file = |source| ReproduceError::File { path: path.clone(), source };
                Some(std::fs::read_to_string(path).map_err(file)?)
            }
        };
        let mut identity = json!({
            "experiments": experiments,
            "repetitions": self.repetitions,
            "seed": self.seed,
            "virtual_s": self.virtual_s,
            "quick": self.quick,
            "uncertainty": self.uncertainty,
            "causes": self.causes,
            "profile": constants,
            "table": table,
        });
        // Draws depend on all ranges. Those of a built-in profile are implied by the program's version.
        if let Some(profile) = profile.filter(|_| self.uncertainty > 0 || self.causes > 0) {
            let ranges = profile.uncertain().map(|it| (it.key.path(), json!([it.low, it.high])));
            identity["ranges"] = ranges.collect::<Map<String, Value>>().into();
        }
        Ok(identity)
    }
}
