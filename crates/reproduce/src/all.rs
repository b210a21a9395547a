//! Every experiment, by its name on the command line.

use napkin_machine::profile::Profile;

use super::busy_poll::{self, BusyPoll};
use super::experiment::Reproduce;
use super::hold::{self, Hold};
use super::kernel::{self, Kernel};
use super::ksoftirqd::{self, Ksoftirqd};
use super::suspend::{self, Suspend};
use super::threaded::{self, ThreadedPolling};

/// An experiment that there is.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name on the command line.
    pub name: &'static str,
    /// The profile of its testbed.
    pub profile: &'static str,
    /// Builds the experiment.
    pub make: fn() -> Box<dyn Reproduce>,
    /// The error of a profile over the rows that a fit may know.
    pub fit_error: Option<fn(&Profile) -> f64>,
}

/// All of them, in the order of their years.
pub const ALL: &[Known] = &[
    Known {
        name: "2007",
        profile: "desktop-2007",
        make: || Box::new(Hold),
        fit_error: Some(hold::fit_error),
    },
    Known {
        name: "2018",
        profile: "qemu-2018",
        make: || Box::new(Ksoftirqd),
        fit_error: Some(ksoftirqd::fit_error),
    },
    Known {
        name: "2020",
        profile: "xeon-56",
        make: || Box::new(ThreadedPolling),
        fit_error: Some(threaded::fit_error),
    },
    Known {
        name: "2024",
        profile: suspend::PROFILE,
        make: || Box::new(Suspend),
        fit_error: Some(suspend::fit_error),
    },
    Known {
        name: "2025",
        profile: "xsk-2025",
        make: || Box::new(BusyPoll),
        fit_error: Some(busy_poll::fit_error),
    },
    Known {
        name: "kernel",
        profile: kernel::PROFILE,
        make: || Box::new(Kernel),
        fit_error: Some(kernel::fit_error),
    },
];

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static Known> {
    ALL.iter().find(|known| known.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_bears_its_name_and_has_a_profile() {
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
