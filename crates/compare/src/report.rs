//! The result of a comparison: the slices of each policy.

use napkin_kernel::count::latency::Percentiles;
use napkin_measure::Spread;
use napkin_measure::interleave::median;
use napkin_policy::Policy;

use crate::options::Options;
use crate::service::Service;
use crate::window::Slice;

/// The slices of one policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// The policy, by the name that was given.
    pub name: String,
    /// The policy as text, in the form that `Policy` parses.
    pub policy: String,
    /// The slices, in the order in which they ran.
    pub slices: Vec<Slice>,
    /// Why the policy was excluded.
    pub out: Option<String>,
}

/// The slices of a comparison and its options: the source of the verdict, the JSON and the page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The program, as `memcached[812]`.
    pub service: String,
    /// The interface's name.
    pub device: String,
    /// The policies, the reference first.
    pub rows: Vec<Row>,
    /// Length of a slice and of its time to settle, in seconds.
    pub slice: [f64; 2],
    /// The number of rounds asked for.
    pub rounds: usize,
    /// Seed of the order of the policies.
    pub seed: u64,
    /// The share of the measured time in which requests were timed; `None` if none were.
    pub timed_share: Option<f64>,
    /// The guard, as given.
    pub guard: Option<String>,
    /// The user's measure, as given.
    pub measure: Option<String>,
    /// Whether a higher value of the measure is better.
    pub higher: Option<bool>,
    /// Notes to the reader of the figures.
    pub notes: Vec<String>,
    /// Why the comparison ended early.
    pub failed: Option<String>,
    /// The signal that ended it early.
    pub signal: Option<i32>,
}

impl Row {
    pub(crate) fn new(name: &str, policy: &Policy) -> Row {
        Row { name: name.into(), policy: policy.to_string(), ..Row::default() }
    }

    /// The slices that ran to their end.
    pub fn counted(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(|slice| slice.broken.is_none())
    }

    /// The median of a figure over those slices.
    pub fn median(&self, of: impl Fn(&Slice) -> Option<f64>) -> Option<f64> {
        median(self.counted().filter_map(of))
    }

    /// The median, minimum and maximum.
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

/// Records under which policies the guard was judged: one that was never judged has not held.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// Per policy, whether the guard was judged in any slice, and what was missing in the last slice in which it
    /// was not.
    policies: Vec<(bool, Option<String>)>,
}

impl Guarded {
    pub(crate) fn new(policies: usize) -> Guarded {
        Guarded { policies: vec![(false, None); policies] }
    }

    /// Records a slice that ran to its end; `unjudged` is what was missing to judge the guard.
    pub(crate) fn record(&mut self, policy: usize, unjudged: Option<String>) {
        let Some((judged, missing)) = self.policies.get_mut(policy) else { return };
        *judged |= unjudged.is_none();
        *missing = unjudged.or(missing.take());
    }

    /// Adds a note for each policy under which the guard was never judged. Excluded policies have broken it.
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
            guarded.record(policy, unjudged);
        }
        guarded.note(&mut report);
        let note = "defer20: the guard p99<2x was never judged: no request was timed";
        assert_eq!(report.notes, [note]);
    }
}
