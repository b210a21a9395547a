//! The rows of `kernel_oracle.csv`: what the real kernel counted in each scenario.
//!
//! A user can supply a file in the same format, so every column is parsed here, and errors name the line. Whether
//! the machine can run a scenario is checked where it is run. The columns are described in
//! `crates/reproduce/tables/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use napkin_machine::CurrentTask;
use napkin_policy::Threaded;
use napkin_workload::oracle::Event;

use super::sheet::{self, Field, TableError, table_row, words};

/// The embedded scenarios.
const SCENARIOS: &str = include_str!("../tables/kernel_oracle.csv");

/// Agreement of the two runs of a scenario, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repeat {
    /// All counts and histograms are equal.
    ExactCounts,
    /// The totals are equal, but the histograms differ.
    ExactTotals,
    /// Within 2 %.
    TwoPercent,
    /// Within 2 %, or within three events.
    TwoPercentOrThree,
    /// Within 2 %, except for empty polls, which are a rate while something busy polls.
    TwoPercentButEmpty,
}

words! {
    Repeat, "exact_counts, exact_totals, 2pct, 2pct_or_3 or 2pct_but_empty",
    "exact_counts" => Repeat::ExactCounts,
    "exact_totals" => Repeat::ExactTotals,
    "2pct" => Repeat::TwoPercent,
    "2pct_or_3" => Repeat::TwoPercentOrThree,
    "2pct_but_empty" => Repeat::TwoPercentButEmpty,
}

words! {
    Event, "nothing, stall, exit, overload, twoidle, second or thrcycle",
    "" => Event::None,
    "stall" => Event::Stall,
    "exit" => Event::Exit,
    // Overload is a property of the arrivals, not a concurrent event.
    "overload" => Event::None,
    "twoidle" => Event::TwoIdle,
    "second" => Event::Second,
    "thrcycle" => Event::ThreadedCycle,
}

words! {
    Threaded, "0, 1 or 2",
    "0" => Threaded::Disabled,
    "1" => Threaded::Enabled,
    "2" => Threaded::BusyPoll,
}

// "other" are the kernel's own tasks; of these, the machine has the workers of a pool.
words! {
    CurrentTask, "idle, app, ksoftirqd, kthread or other",
    "idle" => CurrentTask::Idle,
    "app" => CurrentTask::App,
    "ksoftirqd" => CurrentTask::Ksoftirqd,
    "kthread" => CurrentTask::Kthread,
    "other" => CurrentTask::Worker,
}

/// The table's word for a task.
pub(super) fn name(who: CurrentTask) -> &'static str {
    match who {
        CurrentTask::Idle => "idle",
        CurrentTask::App => "app",
        CurrentTask::Ksoftirqd => "ksoftirqd",
        CurrentTask::Kthread => "kthread",
        CurrentTask::Worker => "other",
    }
}

/// A kind of poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollKind {
    /// The current task.
    pub who: CurrentTask,
    /// Its budget, in packets.
    pub budget: u32,
    /// The packets that it took.
    pub work: u32,
}

/// Polls by kind: `who/budget/work:count`, separated by blanks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PollHist(pub BTreeMap<PollKind, u64>);

impl PollHist {
    /// The polls by a task, and the empty ones among them.
    pub fn by(&self, who: CurrentTask) -> (u64, u64) {
        let of = |empty: bool| -> u64 {
            let of_kind = self.0.iter().filter(|(k, _)| k.who == who && (!empty || k.work == 0));
            of_kind.map(|(_, count)| count).sum()
        };
        (of(false), of(true))
    }

    /// Total number of polls.
    pub fn polls(&self) -> u64 {
        self.0.values().sum()
    }

    /// Total number of packets.
    pub fn packets(&self) -> u64 {
        self.0.iter().map(|(kind, count)| u64::from(kind.work) * count).sum()
    }
}

impl Field for PollHist {
    const WANTED: &'static str = "who/budget/work:count, separated by blanks, each kind once,";

    fn read(text: &str) -> Option<Self> {
        histogram(text, |key| {
            let mut parts = key.split('/');
            let (who, budget, work) = (parts.next()?, parts.next()?, parts.next()?);
            if parts.next().is_some() {
                return None;
            }
            let who = CurrentTask::read(who)?;
            Some(PollKind { who, budget: budget.parse().ok()?, work: work.parse().ok()? })
        })
        .map(PollHist)
    }
}

/// Counts of a number: `number:count`, separated by blanks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountHist(pub BTreeMap<u32, u64>);

impl CountHist {
    /// Total count.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Sum of the numbers.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|(number, count)| u64::from(*number) * count).sum()
    }
}

impl Field for CountHist {
    const WANTED: &'static str = "number:count, separated by blanks, each number once,";

    fn read(text: &str) -> Option<Self> {
        histogram(text, |key| u32::from_str(key).ok()).map(CountHist)
    }
}

/// Parses `key:count` pairs, each key once.
fn histogram<K: Ord>(text: &str, key: impl Fn(&str) -> Option<K>) -> Option<BTreeMap<K, u64>> {
    let mut counts = BTreeMap::new();
    for pair in text.split_whitespace() {
        let (name, count) = pair.split_once(':')?;
        if counts.insert(key(name)?, count.parse().ok()?).is_some() {
            return None;
        }
    }
    Some(counts)
}

table_row! {
    /// One scenario, and what the kernel counted in it. Counts and times refer to the observed window; "CPU 0" has
    /// the queue and the application.
    pub OracleRow {
        /// Name of the scenario.
        id: String,
        /// Kernel that ran it.
        kernel: String,
        /// Agreement of its two runs.
        repeat: Repeat,
        /// Largest relative difference of a total between the two runs.
        worst_rel_diff: f64,
        /// Delivery mode, by a name of the table's own.
        mode: String,
        /// Concurrent event.
        event: Event,
        /// The instance's `threaded` setting.
        threaded: Threaded,
        /// The instance's deferral, in empty polls.
        defer_hard_irqs: u32,
        /// The instance's `gro_flush_timeout`.
        gro_flush_timeout_ns: u64,
        /// The instance's `irq_suspend_timeout`.
        irq_suspend_timeout_ns: u64,
        /// How the application waits: `epoll` or `recv`.
        wait: String,
        /// The epoll context's busy-poll time, in microseconds.
        ep_usecs: u32,
        /// The epoll context's busy-poll budget, in packets.
        ep_budget: u32,
        /// Whether the epoll context prefers busy polling.
        ep_prefer: bool,
        /// The application's work per packet.
        spin_ns: u64,
        /// Whether the application sends each packet back.
        echo: bool,
        /// Number of the application's sockets.
        nsock: u32,
        /// Receive buffer of a socket in bytes; 0 for 8 MiB.
        rcvbuf: u64,
        /// Arrival pattern, by a name of the table's own.
        pattern: String,
        /// Packets per burst, back to back.
        burst: u32,
        /// Time from burst to burst.
        gap_ns: u64,
        /// Bursts per train; 0 for an endless train.
        train_bursts: u32,
        /// Silence after a train.
        off_ns: u64,
        /// Packets sent by the generator.
        sent: u64,
        /// Packets received by the application.
        received: u64,
        /// Packets received by the application when the generator ended.
        received_at_gen_end: u64,
        /// Packets received by the device when the generator ended.
        nic_rx_at_gen_end: u64,
        /// Packets received by the device.
        nic_rx: u64,
        /// Packets dropped by the device.
        nic_drop: u64,
        /// Datagrams delivered to a socket.
        udp_in: u64,
        /// Datagrams lost to errors, including full buffers.
        udp_inerr: u64,
        /// Datagrams lost to a full buffer.
        udp_rcvbuferr: u64,
        /// Datagrams without a matching socket.
        udp_noport: u64,
        /// Interrupts of the receive queue.
        rx_irqs: u64,
        /// Interrupts of the transmit queue.
        tx_irqs: u64,
        /// Polls of the instance, by any task.
        polls: u64,
        /// Polls that found nothing.
        polls_empty: u64,
        /// Polls that found packets.
        polls_nonempty: u64,
        /// Packets taken by polls.
        poll_packets: u64,
        /// Polls by task, budget and work.
        poll_hist: PollHist,
        /// Runs of the network receive softirq.
        net_rx_softirqs: u64,
        /// Runs of the scheduler's softirq.
        sched_softirqs: u64,
        /// Receive softirqs that ended for lack of time or budget (`time_squeeze`).
        time_squeeze: u64,
        /// Expiries of the instance's timer.
        napi_timer_expiries: u64,
        /// Starts of the instance's timer.
        napi_timer_starts: u64,
        /// The application's voluntary context switches; unknown if it has exited.
        app_vcsw: Option<u64>,
        /// The application's involuntary context switches.
        app_ivcsw: Option<u64>,
        /// The application's CPU time.
        app_cpu_ns: Option<u64>,
        /// ksoftirqd's context switches.
        ksoftirqd_csw: Option<u64>,
        /// ksoftirqd's CPU time.
        ksoftirqd_cpu_ns: Option<u64>,
        /// The instance thread's context switches.
        kthread_csw: Option<u64>,
        /// The instance thread's CPU time.
        kthread_cpu_ns: Option<u64>,
        /// Minimum latency, from the send stamp to the return of the receive call; all five latencies are unknown
        /// if nothing was received.
        lat_min_ns: Option<u64>,
        /// Median latency.
        lat_p50_ns: Option<u64>,
        /// 90th percentile of the latency.
        lat_p90_ns: Option<u64>,
        /// 99th percentile of the latency.
        lat_p99_ns: Option<u64>,
        /// Maximum latency.
        lat_max_ns: Option<u64>,
        /// Returns of `epoll_wait`.
        wait_returns: u64,
        /// Receive calls, including those that found nothing.
        recv_calls: u64,
        /// Returns of `epoll_wait` by number of events.
        events_hist: CountHist,
        /// Returns of `epoll_wait` by number of packets received afterwards.
        pkts_per_return_hist: CountHist,
        /// Time from the first packet to the last.
        gen_span_ns: u64,
        /// Packets per second sent in that time.
        offered_pps: f64,
        /// Packets per second received in that time.
        delivered_pps_while_sending: f64,
        /// Maximum lateness of the generator.
        gen_late_max_ns: u64,
        /// Longest time to send a burst.
        gen_burst_span_max_ns: u64,
        /// Length of the window.
        window_ns: u64,
        /// Phases of the scenario; empty if there is only one.
        phases: String,
        /// Receive interrupts in the second run.
        run2_rx_irqs: Option<u64>,
        /// Empty polls in the second run.
        run2_polls_empty: Option<u64>,
        /// Non-empty polls in the second run.
        run2_polls_nonempty: Option<u64>,
        /// Packets received by the application in the second run.
        run2_received: Option<u64>,
        /// Median latency in the second run.
        run2_lat_p50_ns: Option<u64>,
        /// 99th percentile of the latency in the second run.
        run2_lat_p99_ns: Option<u64>,
    }
}

impl OracleRow {
    /// Whether something busy polls, so that empty polls are a rate and not a count.
    pub fn spins(&self) -> bool {
        self.threaded == Threaded::BusyPoll || self.ep_usecs > 0
    }
}

/// The embedded scenarios.
///
/// # Errors
/// Only if the embedded file is damaged.
pub fn scenarios() -> Result<Vec<OracleRow>, TableError> {
    scenarios_of("kernel_oracle.csv", SCENARIOS)
}

/// Parses a table in the same format; `table` is its name in errors.
///
/// # Errors
/// If a row cannot be read, or two rows have the same `id`.
pub fn scenarios_of(table: &str, text: &str) -> Result<Vec<OracleRow>, TableError> {
    let rows = sheet::rows::<OracleRow>(table, text)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = rows.iter().find(|row| !seen.insert(row.id.as_str())) {
        return Err(TableError {
            table: table.to_owned(),
            line: None,
            problem: format!("two rows have the id \"{}\"; each needs its own", twice.id),
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The embedded table with one piece of text replaced.
    fn changed(from: &str, to: &str) -> String {
        assert!(SCENARIOS.contains(from), "{from}");
        SCENARIOS.replacen(from, to, 1)
    }

    #[test]
    fn all_fifty_scenarios_are_read() {
        assert_eq!(scenarios().unwrap().len(), 50);
    }

    #[test]
    fn histograms_agree_with_the_totals_beside_them() {
        for row in scenarios().unwrap() {
            assert_eq!(row.poll_hist.polls(), row.polls, "{}", row.id);
            assert_eq!(row.poll_hist.packets(), row.poll_packets, "{}", row.id);
            assert_eq!(row.polls_empty + row.polls_nonempty, row.polls, "{}", row.id);
            let who = [
                CurrentTask::Idle,
                CurrentTask::App,
                CurrentTask::Ksoftirqd,
                CurrentTask::Kthread,
                CurrentTask::Worker,
            ];
            let empty: u64 = who.iter().map(|who| row.poll_hist.by(*who).1).sum();
            assert_eq!(empty, row.polls_empty, "{}", row.id);
            assert_eq!(row.events_hist.count(), row.wait_returns, "{}", row.id);
        }
    }

    #[test]
    fn a_row_is_typed() {
        let rows = scenarios().unwrap();
        let first = &rows[0];
        assert_eq!((first.id.as_str(), first.repeat), ("A001", Repeat::ExactTotals));
        let of_app = PollKind { who: CurrentTask::App, budget: 64, work: 1 };
        assert_eq!(first.poll_hist.0[&of_app], 1);
        assert_eq!(first.poll_hist.by(CurrentTask::Idle), (592, 0));
        assert_eq!(first.pkts_per_return_hist.0, BTreeMap::from([(1, 590), (10, 1)]));
        let gone: Vec<_> = rows.iter().filter(|row| row.app_cpu_ns.is_none()).collect();
        assert_eq!(gone.len(), 1, "only one application exits");
        assert_eq!(gone[0].event, Event::Exit);
    }

    #[test]
    fn spinning_rows_are_those_whose_empty_polls_are_a_rate() {
        let rows = scenarios().unwrap();
        assert!(rows.iter().filter(|r| r.threaded == Threaded::BusyPoll).all(OracleRow::spins));
        assert!(rows.iter().filter(|r| r.mode == "default").all(|r| !r.spins()));
    }

    #[test]
    fn errors_in_a_table_name_the_line() {
        let complaint = |text: &str| scenarios_of("mine.csv", text).unwrap_err().to_string();
        let text = changed("app/64/1:1 idle", "nobody/64/1:1 idle");
        let error = complaint(&text);
        assert!(
            error.starts_with("mine.csv, line 2: column \"poll_hist\" holds \"nobody/64/1:1"),
            "{error}"
        );
        let error = complaint(&changed("1:590 10:1", "1:590 1:1"));
        assert!(
            error.contains("pkts_per_return_hist") && error.contains("each number once"),
            "{error}"
        );
        let error = complaint(&changed("default,,0", "default,earthquake,0"));
        assert!(
            error.contains("\"earthquake\"; nothing, stall, exit, overload, twoidle, second or thrcycle is wanted"),
            "{error}"
        );
        let error = complaint(&changed("\nA003,", "\nA001,"));
        assert!(error.contains("two rows have the id \"A001\""), "{error}");
        let error = complaint(&changed("rx_irqs,", "rx_interrupts,"));
        assert!(error.contains("there is no column \"rx_irqs\""), "{error}");
    }

    #[test]
    fn a_histogram_may_be_empty_and_nothing_else_is_let_through() {
        assert_eq!(PollHist::read(""), Some(PollHist::default()));
        for wrong in ["app/64:1", "app/64/1/2:1", "app/64/1", "app/64/-1:1", "1:2"] {
            assert_eq!(PollHist::read(wrong), None, "{wrong}");
        }
        assert_eq!(CountHist::read("2:3 5:1").map(|h| (h.count(), h.sum())), Some((4, 11)));
        assert_eq!(CountHist::read("2"), None);
    }
}
