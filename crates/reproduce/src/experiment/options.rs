//! How a reproduction runs.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use napkin_machine::profile::Profile;
use serde_json::{Map, Value, json};

use super::ReproduceError;

/// How a reproduction runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Runs of each cell, each with a seed of its own; at least 1.
    pub repetitions: u64,
    /// The first seed; the others follow it.
    pub seed: u64,
    /// Virtual seconds a cell; `None` leaves each experiment its own.
    pub virtual_s: Option<f64>,
    /// A host profile in the place of the experiment's own.
    pub profile: Option<PathBuf>,
    /// A table of kernel scenarios in the place of the embedded one.
    pub table: Option<PathBuf>,
    /// Draws of all that is uncertain in the profile, each run with a seed of its own.
    pub uncertainty: u64,
    /// Draws of each change of the model that is asked why rows are off, for the experiments that know
    /// such changes.
    pub causes: u64,
    /// The draw that is run; `None` for the profile as it is.
    pub draw: Option<u64>,
    /// Tasks at a time; `None` for as many as there are CPUs.
    pub jobs: Option<NonZeroUsize>,
    /// Fewer and shorter runs, to see that everything works.
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
    /// The seeds of one cell: one if it is to be quick.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let repetitions = if self.quick { 1 } else { self.repetitions.max(1) };
        let first = self.seed;
        (0..repetitions).map(move |i| first.wrapping_add(i))
    }

    /// The host that an experiment runs on, if `own` is its profile: that, or the one in its place, drawn
    /// if a draw is run.
    ///
    /// # Errors
    /// If the profile cannot be read, or cannot be drawn.
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

    /// The same reproduction with one of its draws.
    pub(super) fn drawn(&self, draw: u64) -> Options {
        // Beyond the seeds of the profile as it is, so that no draw shares its arrivals.
        let seed = self.seed.wrapping_add(self.repetitions).wrapping_add(draw);
        Options { repetitions: 1, seed, draw: Some(draw), ..self.clone() }
    }

    /// All that the outcomes of these experiments depend on, but for the number of threads: a
    /// reproduction that goes on must have the same.
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
        // A draw depends on all of them. Those of a built-in profile the version says.
        if let Some(profile) = profile.filter(|_| self.uncertainty > 0 || self.causes > 0) {
            let ranges = profile.uncertain().map(|it| (it.key.path(), json!([it.low, it.high])));
            identity["ranges"] = ranges.collect::<Map<String, Value>>().into();
        }
        Ok(identity)
    }
}
