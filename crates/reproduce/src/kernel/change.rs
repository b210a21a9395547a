//! Changes of the model: variations of what it takes as constant or leaves out, and what is known to vary on the
//! emulated machine.
//!
//! Each varies one thing, within a range that is based on a measurement. None was made for a particular row.

use napkin_machine::profile::Profile;
use napkin_policy::{MICROSECOND, MILLISECOND};
use napkin_workload::oracle::Disturbance;

/// A change of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// A short name.
    pub name: &'static str,
    /// What is drawn, the range, and its source.
    pub what: &'static str,
    /// Ranges of the draws within the scenario.
    pub disturbance: Disturbance,
    /// Whether the constants of the profile are drawn as well.
    pub costs: bool,
}

/// No disturbance.
const NONE: Disturbance =
    Disturbance { phase: 0, jitter: 0, sends: 0, polls: 0, slices: 0, keeps: 0, hold: 0 };

/// All changes.
pub const CHANGES: [Change; 9] = [
    Change {
        name: "phase",
        what: "all frames come later by one time of up to 4 ms, which is a tick: where arrivals and ticks lie \
               to each other was decided by the boot",
        disturbance: Disturbance { phase: 4 * MILLISECOND, ..NONE },
        costs: false,
    },
    Change {
        name: "jitter",
        what: "each burst comes later by a time of its own of up to 1 us; the generator's own lateness varies \
               by more (gen_late_max_ns)",
        disturbance: Disturbance { jitter: MICROSECOND, ..NONE },
        costs: false,
    },
    Change {
        name: "turns",
        what: "each slice of the shared clock is shorter or longer by up to 3.6 us, 10 to 17.2 us in all: lone \
               sends were stretched by 10.0 and 12.5 us, and packets waited 15.0 us more",
        disturbance: Disturbance { slices: 3_600, ..NONE },
        costs: false,
    },
    Change {
        name: "kept turns",
        what: "one frame in ten, drawn, does not hand the clock to the receiving CPU: a tenth of lone packets \
               waited 15 us more (A003, A010, A037)",
        disturbance: Disturbance { keeps: 100, ..NONE },
        costs: false,
    },
    Change {
        name: "costs",
        what: "all fitted and assumed constants within their ranges, as --uncertainty draws them",
        disturbance: NONE,
        costs: true,
    },
    Change {
        name: "hold",
        what: "once, at a drawn moment, the receiving CPU is kept for 0.3 ms of its time with its interrupts off, \
               0.4 ms with the generator's turns: so long eight packets waited for one poll (A001, C090)",
        disturbance: Disturbance { hold: 300 * MICROSECOND, ..NONE },
        costs: false,
    },
    Change {
        name: "sends",
        what: "each send takes the generator up to 1 us longer, a time of its own, as the kernel's paths vary",
        disturbance: Disturbance { sends: MICROSECOND, ..NONE },
        costs: false,
    },
    Change {
        name: "polls",
        what: "a poll costs less, by one time of up to 1.75 us: without a tracer a busy thread's empty poll took \
               0.27 us in all (kernel_costs.csv, K8), where an application's took 2.0 us (A039)",
        disturbance: Disturbance { polls: 1_750, ..NONE },
        costs: false,
    },
    Change {
        name: "all at once",
        what: "all of the above together: what this does not cure, none of it explains",
        disturbance: Disturbance {
            phase: 4 * MILLISECOND,
            jitter: MICROSECOND,
            sends: MICROSECOND,
            polls: 1_750,
            slices: 3_600,
            keeps: 100,
            hold: 300 * MICROSECOND,
        },
        costs: true,
    },
];

impl Change {
    /// Returns the profile and the disturbance of one draw.
    ///
    /// # Errors
    /// If the constants cannot be drawn.
    pub fn drawn(&self, profile: &Profile, draw: u64) -> Result<(Profile, Disturbance), String> {
        let profile = match self.costs {
            true => profile.drawn(draw).map_err(|error| error.to_string())?,
            false => profile.clone(),
        };
        Ok((profile, self.disturbance))
    }
}
