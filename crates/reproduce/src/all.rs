//! All experiments, by their names on the command line.

use napkin_machine::profile::Profile;

use super::busy_poll::{self, BusyPoll};
use super::experiment::{Experiment, Reproduce};
use super::hold::{self, Hold};
use super::kernel::{self, Kernel};
use super::ksoftirqd::{self, Ksoftirqd};
use super::suspend::{self, Suspend};
use super::threaded::{self, ThreadedPolling};

/// An available experiment.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Name on the command line.
    pub name: &'static str,
    /// Name of its testbed's profile.
    pub profile: &'static str,
    /// Constructs the experiment.
    pub make: fn() -> Box<dyn Reproduce>,
    /// The error of a profile over the rows that a fit may use.
    pub fit_error: fn(&Profile) -> f64,
}

const fn known<E: Experiment + Default + 'static>(fit_error: fn(&Profile) -> f64) -> Known {
    let make = || -> Box<dyn Reproduce> { Box::new(E::default()) };
    Known { name: E::ABOUT.name, profile: E::ABOUT.profile, make, fit_error }
}

/// All experiments, by year.
pub const ALL: &[Known] = &[
    known::<Hold>(hold::fit_error),
    known::<Ksoftirqd>(ksoftirqd::fit_error),
    known::<ThreadedPolling>(threaded::fit_error),
    known::<Suspend>(suspend::fit_error),
    known::<BusyPoll>(busy_poll::fit_error),
    known::<Kernel>(kernel::fit_error),
];

/// Returns the experiment of that name.
pub fn find(name: &str) -> Option<&'static Known> {
    ALL.iter().find(|known| known.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_a_unique_name_and_a_profile() {
        for known in ALL {
            assert_eq!((known.make)().name(), known.name);
            Profile::named(napkin_workload::schema(), known.profile)
                .unwrap_or_else(|error| panic!("{error}"));
            let of_that_name = ALL.iter().filter(|other| other.name == known.name);
            assert_eq!(of_that_name.count(), 1, "{}", known.name);
        }
        assert!(find("1999").is_none());
    }
}
