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

/// Under which policies the guard was judged: that it held under another one says nothing.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// Of each policy whether it was in one of its slices, and what was missing in the last one where it was not.
    policies: Vec<(bool, Option<String>)>,
}

impl Guarded {
    pub(crate) fn new(policies: usize) -> Guarded {
        Guarded { policies: vec![(false, None); policies] }
    }

    /// Takes a slice that ran to its end, and what was missing in it, if anything was.
    pub(crate) fn took(&mut self, policy: usize, unjudged: Option<String>) {
        let Some((judged, missing)) = self.policies.get_mut(policy) else { return };
        *judged |= unjudged.is_none();
        *missing = unjudged.or(missing.take());
    }

    /// Notes under which policies the guard was never judged. One that is out has broken it.
    pub(crate) fn note(self, report: &mut Report) {
        let Some(guard) = report.guard.clone() else { return };
        let rows = report.rows.iter().zip(self.policies);
        let never = rows.filter_map(|(row, (judged, missing))| {
            let why = missing.filter(|_| !judged && row.out.is_none())?;
            Some(format!("{}: the guard {guard} was never judged: {why}", row.name))
        });
        for note in never.collect::<Vec<_>>() {
            report.note(note);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_under_which_the_guard_was_never_judged_is_named() {
        let row = |name: &str, out: Option<&str>| Row {
            out: out.map(str::to_owned),
            ..Row::new(name, &Policy::BASE)
        };
        let rows = vec![row("base", None), row("defer20", None), row("bad", Some("broken"))];
        let guard = Some("p99<2x".to_owned());
        let mut report = Report { rows, guard, ..Report::default() };
        let mut guarded = Guarded::new(3);
        let missing = || Some("no request was timed".to_owned());
        for (policy, unjudged) in [(0, None), (1, missing()), (2, missing()), (0, missing())] {
            guarded.took(policy, unjudged);
        }
        guarded.note(&mut report);
        let told = "defer20: the guard p99<2x was never judged: no request was timed";
        assert_eq!(report.notes, [told]);
    }
}
