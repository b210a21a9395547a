//! Fits the constants of a profile: searches their ranges for the point with the least error.
//!
//! This is a pattern search. In each round, every constant is moved up and down by a step, in parallel on all
//! cores. The search keeps the best move, or the combination of all improving moves if that is better still. A
//! round without an improvement halves the step. The method needs no derivatives and no random numbers, and its
//! result does not depend on the number of cores. It finds a local minimum near its start, not the global one.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use napkin_machine::profile::{Key, Profile, ProfileError, Range};

use super::pool;
use crate::interrupt::Interrupt;

/// The error of a profile over the rows that the fit may use; at least 0.
pub type Objective = dyn Fn(&Profile) -> f64 + Sync;

/// The limits of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Upper limit of the evaluations of the error.
    pub evaluations: usize,
    /// Evaluations in parallel; `None` for one per CPU.
    pub jobs: Option<NonZeroUsize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { evaluations: 400, jobs: None }
    }
}

/// The progress of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Round {
    /// Evaluations so far.
    pub evaluations: usize,
    /// The least error so far.
    pub error: f64,
    /// The step, as a fraction of each range.
    pub step: f64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The profile with the values found.
    pub profile: Profile,
    /// The error at the start.
    pub before: f64,
    /// The error at the end.
    pub after: f64,
    /// Evaluations used.
    pub evaluations: usize,
    /// The constants: name, old and new value, in the text form of a profile.
    pub constants: Vec<(String, String, String)>,
}

/// The first step, as a fraction of each range.
const FIRST_STEP: f64 = 0.25;

/// The search ends when the step is smaller than this.
const LAST_STEP: f64 = 0.004;

struct Search<'a> {
    base: &'a Profile,
    axes: Vec<Range>,
    objective: &'a Objective,
    options: Options,
    /// Errors of the evaluated points, keyed by the bits of their values.
    known: BTreeMap<Vec<u64>, f64>,
    evaluations: usize,
}

impl Search<'_> {
    fn values(&self, places: &[f64]) -> Vec<f64> {
        self.axes.iter().zip(places).map(|(axis, place)| axis.value(*place)).collect()
    }

    fn profile(&self, places: &[f64]) -> Result<Profile, ProfileError> {
        let mut profile = self.base.clone();
        for (axis, value) in self.axes.iter().zip(self.values(places)) {
            profile.set(&axis.key.path(), value)?;
        }
        Ok(profile)
    }

    /// Returns the error of each point; infinite for values that the profile's rules refuse.
    fn errors(&mut self, all: &[Vec<f64>]) -> Vec<f64> {
        let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let names: Vec<_> = all.iter().map(|places| bits(self.values(places))).collect();
        let mut new: Vec<usize> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let twice = new.iter().any(|it| names[*it] == *name);
            if !self.known.contains_key(name) && !twice {
                new.push(index);
            }
        }
        new.truncate(self.options.evaluations.saturating_sub(self.evaluations));
        let error = |place: u64| match self.profile(&all[new[place as usize]]) {
            Ok(profile) => (self.objective)(&profile),
            Err(_) => f64::INFINITY,
        };
        let mut found = Vec::new();
        let (jobs, places) = (pool::jobs(self.options.jobs), 0..new.len() as u64);
        pool::run_each(jobs, places, &Interrupt::default(), error, |place, error| {
            let error = error.ok().filter(|error| error.is_finite()).unwrap_or(f64::INFINITY);
            found.push((place as usize, error));
            ControlFlow::Continue(())
        });
        self.evaluations += found.len();
        for (place, error) in found {
            self.known.insert(names[new[place]].clone(), error);
        }
        names.iter().map(|name| self.known.get(name).copied().unwrap_or(f64::INFINITY)).collect()
    }
}

/// Searches from the profile's current values. A profile without fitted constants of its own is returned as it is,
/// with its error.
pub fn fit(
    profile: &Profile,
    objective: &Objective,
    options: Options,
    mut on_progress: impl FnMut(Round),
) -> Result<Fitted, ProfileError> {
    let axes: Vec<Range> = profile
        .fitted_here()
        .map(|(key, range)| Range { key, low: *range.start(), high: *range.end() })
        .collect();
    let mut places: Vec<f64> =
        axes.iter().map(|axis| axis.place(profile.get(&axis.key.path()))).collect();
    // Evaluate the current values themselves: their positions on the axes would round them.
    let mut before = f64::INFINITY;
    pool::run_each(
        NonZeroUsize::MIN,
        0..1,
        &Interrupt::default(),
        |_| objective(profile),
        |_, error| {
            before = error.ok().filter(|error| error.is_finite()).unwrap_or(f64::INFINITY);
            ControlFlow::Continue(())
        },
    );
    let mut best = before;
    let mut moved = false;
    let known = BTreeMap::new();
    let mut search = Search { base: profile, axes, objective, options, known, evaluations: 1 };
    let mut step = FIRST_STEP;
    while step >= LAST_STEP && search.evaluations < options.evaluations && !places.is_empty() {
        on_progress(Round { evaluations: search.evaluations, error: best, step });
        let mut tried = Vec::new();
        for axis in 0..places.len() {
            for by in [-step, step] {
                let mut moved = places.clone();
                moved[axis] = (moved[axis] + by).clamp(0.0, 1.0);
                tried.push(moved);
            }
        }
        let errors = search.errors(&tried);
        let mut together = places.clone();
        for axis in 0..places.len() {
            let (down, up) = (errors[2 * axis], errors[2 * axis + 1]);
            if down.min(up) < best {
                let better = if down <= up { 2 * axis } else { 2 * axis + 1 };
                together[axis] = tried[better][axis];
            }
        }
        let all = search.errors(std::slice::from_ref(&together));
        tried.push(together);
        let errors: Vec<f64> = errors.into_iter().chain(all).collect();
        let least = (0..errors.len()).min_by(|a, b| errors[*a].total_cmp(&errors[*b]));
        match least.filter(|place| errors[*place] < best) {
            Some(place) => {
                best = errors[place];
                places.clone_from(&tried[place]);
                moved = true;
            }
            None => step /= 2.0,
        }
    }
    let found = if moved { search.profile(&places)? } else { profile.clone() };
    let show = |profile: &Profile, key: &Key| key.takes.show(profile.get(&key.path()));
    let constants = search.axes.iter().map(|axis| {
        let key = axis.key;
        (key.path(), show(profile, key), show(&found, key))
    });
    let constants = constants.collect();
    Ok(Fitted { constants, before, after: best, evaluations: search.evaluations, profile: found })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stand-in profile with some constants fitted.
    fn profile() -> Profile {
        let text = crate::machine::stand_in::text();
        let mut lines = Vec::new();
        for line in text.lines() {
            let section_less = line.split(" = ").next().unwrap_or("").trim();
            lines.push(match section_less {
                "ipi" => {
                    "ipi = { value = \"300 ns\", fitted = true, range = [\"100 ns\", \"900 ns\"] }"
                        .to_owned()
                }
                "migrate" => {
                    "migrate = { value = \"10 ns\", fitted = true, range = [\"1 ns\", \"10 us\"] }"
                        .to_owned()
                }
                "ring" => "ring = { value = 1000, fitted = true, range = [100, 5000] }".to_owned(),
                _ => line.to_owned(),
            });
        }
        Profile::parse(crate::schema(), &lines.join("\n"), "sample")
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The distance of a profile from the target, with a valley that is not parallel to an axis.
    fn distance(profile: &Profile) -> f64 {
        let ipi = (profile.get("cost.ipi") - 700.0) / 800.0;
        let migrate = (profile.get("cost.migrate") / 2_000.0).ln() / 10.0;
        let ring = (profile.get("nic.ring") - 3_000.0) / 4_900.0;
        ipi * ipi + migrate * migrate + (ring + ipi) * (ring + ipi)
    }

    fn run(options: Options) -> Fitted {
        let start = profile();
        assert_eq!(start.fitted().count(), 3);
        fit(&start, &distance, options, |_| ()).unwrap()
    }

    #[test]
    fn the_values_that_were_hidden_are_found() {
        let fitted = run(Options::default());
        assert!(fitted.after < fitted.before / 1_000.0, "{} {}", fitted.before, fitted.after);
        assert!((fitted.profile.get("cost.ipi") - 700.0).abs() < 20.0, "{:?}", fitted.constants);
        assert!((fitted.profile.get("nic.ring") - 3_000.0).abs() < 120.0, "{:?}", fitted.constants);
        let migrate = fitted.profile.get("cost.migrate");
        assert!((1_500.0..2_600.0).contains(&migrate), "{migrate}");
        assert_eq!(fitted.after, distance(&fitted.profile), "the error is that of the profile");
    }

    #[test]
    fn any_number_of_cores_finds_the_same() {
        let jobs = |jobs| run(Options { jobs: NonZeroUsize::new(jobs), ..Options::default() });
        assert_eq!(jobs(1), jobs(5));
    }

    #[test]
    fn no_more_evaluations_than_allowed_and_never_worse() {
        for evaluations in [0, 1, 2, 7, 30] {
            let fitted = run(Options { evaluations, ..Options::default() });
            assert!(fitted.evaluations <= evaluations.max(1), "{evaluations}");
            assert!(fitted.after <= fitted.before);
        }
    }

    #[test]
    fn an_error_that_is_no_number_is_no_gain() {
        let wild = |profile: &Profile| match profile.get("cost.ipi") {
            ipi if ipi > 500.0 => f64::NAN,
            ipi => ipi,
        };
        let fitted = fit(&profile(), &wild, Options::default(), |_| ()).unwrap();
        assert_eq!(fitted.profile.get("cost.ipi"), 100.0, "{:?}", fitted.constants);
    }
}
