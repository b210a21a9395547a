//! What a comparison leaves behind: each policy's slices.

use napkin_kernel::count::latency::Percentiles;
use napkin_measure::Spread;
use napkin_measure::interleave::median;
use napkin_policy::Policy;

use crate::options::Options;
use crate::service::Service;
use crate::window::Slice;

/// A policy's slices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// The policy, by the name that was given.
    pub name: String,
    /// The policy as text, in the form that `Policy` parses.
    pub policy: String,
    /// In the order in which they ran.
    pub slices: Vec<Slice>,
    /// Why it was taken out.
    pub out: Option<String>,
}

/// A comparison's slices, and what it was asked for: from these come the verdict, JSON and the page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The program, as `memcached[812]`.
    pub service: String,
    /// The interface's name.
    pub device: String,
    /// The policies, the reference first.
    pub rows: Vec<Row>,
    /// How long a slice was, in seconds, and how much of it was not counted.
    pub slice: [f64; 2],
    /// How many rounds were asked for.
    pub rounds: usize,
    /// Where the order comes from.
    pub seed: u64,
    /// The share of the measured time in which requests were timed; `None` where none were.
    pub timed_share: Option<f64>,
    /// The guard, as it was given.
    pub guard: Option<String>,
    /// The user's measure, as it was given.
    pub measure: Option<String>,
    /// Whether more of that is better.
    pub higher: Option<bool>,
    /// What must be known beside the figures.
    pub notes: Vec<String>,
    /// What ended it early.
    pub failed: Option<String>,
    /// The signal that ended it early.
    pub signal: Option<i32>,
}

impl Row {
    pub(crate) fn new(name: &str, policy: &Policy) -> Row {
        Row { name: name.into(), policy: policy.to_string(), ..Row::default() }
    }

    /// Those that ran to their end.
    pub fn counted(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(|slice| slice.broken.is_none())
    }

    /// The middle of a figure over them.
    pub fn median(&self, of: impl Fn(&Slice) -> Option<f64>) -> Option<f64> {
        median(self.counted().filter_map(of))
    }

    /// The middle, the least and the most.
    pub(crate) fn spread(&self, of: impl Fn(&Slice) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.counted().filter_map(of))
    }

    pub(crate) fn part(
        part: &'static str,
        of: fn(&Percentiles) -> Option<f64>,
    ) -> impl Fn(&Slice) -> Option<f64> {
        move |slice| of(slice.latency_ns.get(part)?)
    }
}

impl Report {
    pub(crate) fn new(service: &Service, options: &Options, rows: Vec<Row>) -> Report {
        Report {
            service: service.to_string(),
            device: service.device.ifname.clone(),
            rows,
            slice: [options.slice, options.settle].map(|it| it.as_secs_f64()),
            rounds: options.rounds,
            seed: options.seed,
            guard: options.guard.as_ref().map(ToString::to_string),
            measure: options.measure.as_ref().map(|it| it.command.clone()),
            higher: options.measure.as_ref().map(|it| it.higher),
            notes: service.notes.clone(),
            ..Report::default()
        }
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
