//! Every experiment, by its name on the command line.

use napkin_machine::profile::Profile;

use super::experiment::Reproduce;
use super::hold::{self, Hold};
use super::ksoftirqd::{self, Ksoftirqd};
use super::threaded::{self, ThreadedPolling};

/// An experiment that there is.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name on the command line.
    pub name: &'static str,
    /// The profile of its testbed.
    pub profile: &'static str,
    /// Makes it.
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
            Profile::named(known.profile).unwrap_or_else(|error| panic!("{error}"));
            assert!(find(known.name).is_some());
        }
        assert!(find("1999").is_none());
    }
}
