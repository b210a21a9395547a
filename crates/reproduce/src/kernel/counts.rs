//! The counts that are compared: of the kernel's table, and of a run of the machine.

use std::collections::BTreeMap;

use napkin_machine::CurrentTask;
use napkin_workload::oracle::Observed;
use serde::{Deserialize, Serialize};

use crate::oracle::{OracleRow, name};
use crate::verdict::Tolerance;

/// Tolerance of a count: relative, or in events.
pub(super) const WITHIN: Tolerance = Tolerance::RelativeOr(0.05, 3.0);

/// The result of a scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The counts that the table also has, by their names there.
    pub(super) counts: BTreeMap<String, u64>,
    /// Polls by current task, budget and work, in the table's format.
    poll_hist: String,
    /// Returns of `epoll_wait` by number of events, in the table's format.
    events_hist: String,
    /// Minimum, quantiles and maximum of the latency.
    pub(super) latency_ns: BTreeMap<String, u64>,
    /// CPU time of the sink, of ksoftirqd and of the instance's thread.
    cpu_ns: BTreeMap<String, u64>,
    window_ns: u64,
}

impl Counted {
    /// Collects the counts of a run.
    pub(super) fn of(seen: &Observed) -> Counted {
        let latency = &seen.outcome.latency;
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)]
            .map(|(name, q)| (name, latency.quantile(q)));
        let polls = seen.polls.iter();
        let polls =
            polls.map(|((who, budget, work), n)| format!("{}/{budget}/{work}:{n}", name(*who)));
        let events = seen.events.iter().map(|(events, n)| format!("{events}:{n}"));
        let mut latency_ns = BTreeMap::new();
        if seen.received > 0 {
            latency_ns.extend(named(quantiles));
            latency_ns.extend(named([("min", latency.min()), ("max", latency.max())]));
        }
        Counted {
            counts: named(modelled(seen)).collect(),
            poll_hist: polls.collect::<Vec<_>>().join(" "),
            events_hist: events.collect::<Vec<_>>().join(" "),
            latency_ns,
            cpu_ns: named([
                ("app", seen.app.2),
                ("ksoftirqd", seen.ksoftirqd.1),
                ("kthread", seen.kthread.1),
            ])
            .collect(),
            window_ns: seen.outcome.window,
        }
    }

    /// A count, by its name.
    pub(super) fn count(&self, quantity: &str) -> u64 {
        self.counts.get(quantity).copied().unwrap_or(0)
    }
}

fn named(
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> impl Iterator<Item = (String, u64)> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count))
}

/// Tasks that are distinguished. "other" tasks ran on a CPU that the machine sees as idle.
const OWNERS: [(&[CurrentTask], &str, &str); 4] = [
    (&[CurrentTask::Idle, CurrentTask::Worker], "idle, non-empty polls", "idle, empty polls"),
    (&[CurrentTask::App], "app, non-empty polls", "app, empty polls"),
    (&[CurrentTask::Ksoftirqd], "ksoftirqd, non-empty polls", "ksoftirqd, empty polls"),
    (&[CurrentTask::Kthread], "kthread, non-empty polls", "kthread, empty polls"),
];

/// Whether a quantity counts empty polls, which are a rate and not a count if something busy polls.
pub(super) fn counts_empty(quantity: &str) -> bool {
    quantity.ends_with("empty polls") && !quantity.ends_with("non-empty polls")
}

/// The published counts of a row, by their names in the output.
pub(super) fn published(row: &OracleRow) -> Vec<(&'static str, u64)> {
    let mut counts = vec![
        ("interrupts", row.rx_irqs),
        ("non-empty polls", row.polls_nonempty),
        ("empty polls", row.polls_empty),
        ("network softirqs", row.net_rx_softirqs),
        ("timer starts", row.napi_timer_starts),
        ("timer expiries", row.napi_timer_expiries),
        ("epoll returns", row.wait_returns),
        ("received", row.received),
        ("NIC received", row.nic_rx),
        ("transmit interrupts", row.tx_irqs),
        ("squeezed softirqs", row.time_squeeze),
    ];
    owned(&mut counts, |who| row.poll_hist.by(who));
    counts
}

/// Adds the polls by current task; `by` returns a task's number of polls, and of empty ones.
fn owned(counts: &mut Vec<(&'static str, u64)>, by: impl Fn(CurrentTask) -> (u64, u64)) {
    for (current, full, empty) in OWNERS {
        let of = current.iter().map(|who| by(*who));
        let (all, none) = of.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        counts.extend([(full, all - none), (empty, none)]);
    }
}

/// The counts of a run, by their names in the output.
fn modelled(seen: &Observed) -> Vec<(&'static str, u64)> {
    let (all, empty) = seen.all_polls();
    let mut counts = vec![
        ("interrupts", seen.rx_interrupts),
        ("non-empty polls", all - empty),
        ("empty polls", empty),
        ("network softirqs", seen.net_rx),
        ("timer starts", seen.timer_starts),
        ("timer expiries", seen.timer_expiries),
        ("epoll returns", seen.wait_returns),
        ("received", seen.received),
        ("NIC received", seen.nic_rx),
        ("transmit interrupts", seen.tx_interrupts),
        ("squeezed softirqs", seen.time_squeeze),
    ];
    owned(&mut counts, |who| seen.polls_by(who));
    counts
}

/// The counts of a row that are judged: all but the empty polls of a busy poller.
pub(super) fn judged(row: &OracleRow) -> impl Iterator<Item = (&'static str, u64)> {
    let spins = row.spins();
    published(row).into_iter().filter(move |(quantity, _)| !(spins && counts_empty(quantity)))
}

/// Whether a count is within the tolerance of the published one.
pub(super) fn within_tolerance(published: u64, modelled: u64) -> bool {
    WITHIN.admits(published as f64, modelled as f64)
}
