//! What the real kernel did in one scenario, counted: the rows of `kernel_oracle.csv`.
//!
//! A file of the same form can take the first one's place, so every column is parsed here and what is
//! wrong with a row is said with its line. Whether the machine can run a scenario is decided where it
//! is run, not here. The columns' meaning: `crates/reproduce/tables/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use napkin_machine::Who;
use napkin_policy::Threaded;
use napkin_workload::oracle::Event;

use super::sheet::{self, Field, TableError, table_row, words};

/// The embedded scenarios.
const SCENARIOS: &str = include_str!("../tables/kernel_oracle.csv");

/// How well two runs of a scenario agreed, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repeat {
    /// All counts and histograms are equal.
    ExactCounts,
    /// The totals are equal, the histograms are not.
    ExactTotals,
    /// Within 2 %.
    TwoPercent,
    /// Within 2 %, or three events.
    TwoPercentOrThree,
    /// Within 2 %, but for the empty polls: a rate while something spins.
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
    // More packets than can be served are the arrivals', and nothing that happens beside them.
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

// Other tasks than these are the kernel's own; of those the machine has the pool's workers.
words! {
    Who, "idle, app, ksoftirqd, kthread or other",
    "idle" => Who::Idle,
    "app" => Who::App,
    "ksoftirqd" => Who::Ksoftirqd,
    "kthread" => Who::Kthread,
    "other" => Who::Worker,
}

/// The word that stands for it in the table.
pub(super) fn name(who: Who) -> &'static str {
    match who {
        Who::Idle => "idle",
        Who::App => "app",
        Who::Ksoftirqd => "ksoftirqd",
        Who::Kthread => "kthread",
        Who::Worker => "other",
    }
}

/// A kind of poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollKind {
    /// Who was current.
    pub who: Who,
    /// The budget that it was given, in packets.
    pub budget: u32,
    /// The packets that it took.
    pub work: u32,
}

/// Polls by kind: `who/budget/work:count`, separated by blanks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PollHist(pub BTreeMap<PollKind, u64>);

impl PollHist {
    /// Polls by somebody, and those of them that found nothing.
    pub fn by(&self, who: Who) -> (u64, u64) {
        let of = |empty: bool| -> u64 {
            let of_kind = self.0.iter().filter(|(k, _)| k.who == who && (!empty || k.work == 0));
            of_kind.map(|(_, count)| count).sum()
        };
        (of(false), of(true))
    }

    /// How many polls there were.
    pub fn polls(&self) -> u64 {
        self.0.values().sum()
    }

    /// All packets that they took.
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
            let who = Who::read(who)?;
            Some(PollKind { who, budget: budget.parse().ok()?, work: work.parse().ok()? })
        })
        .map(PollHist)
    }
}

/// How often a number occurred: `number:count`, separated by blanks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountHist(pub BTreeMap<u32, u64>);

impl CountHist {
    /// How many occurrences there were.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The numbers added up.
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

/// `key:count` pairs, each key once.
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
    /// One scenario, and what the kernel did in it. Counts and times are of the observed window;
    /// "CPU 0" has the queue and the application.
    pub OracleRow {
        /// The scenario's name.
        id: String,
        /// The kernel that ran it.
        kernel: String,
        /// How well its two runs agree.
        repeat: Repeat,
        /// The largest relative difference of a total between the two.
        worst_rel_diff: f64,
        /// The delivery mode, by a name of the table's own.
        mode: String,
        /// What happens meanwhile.
        event: Event,
        /// The instance's `threaded` setting.
        threaded: Threaded,
        /// The instance's deferral, in empty polls.
        defer_hard_irqs: u32,
        /// The instance's timeout.
        gro_flush_timeout_ns: u64,
        /// The instance's suspension.
        irq_suspend_timeout_ns: u64,
        /// How the application waits.
        wait: String,
        /// The epoll context's busy polling, in microseconds.
        ep_usecs: u32,
        /// Its budget, in packets.
        ep_budget: u32,
        /// Whether it prefers busy polling.
        ep_prefer: bool,
        /// Work of the application a packet.
        spin_ns: u64,
        /// Whether the application sends each packet back.
        echo: bool,
        /// The application's sockets.
        nsock: u32,
        /// A socket's receive buffer in bytes; 0 leaves 8 MiB.
        rcvbuf: u64,
        /// The arrivals, by a name of the table's own.
        pattern: String,
        /// Packets back to back.
        burst: u32,
        /// From burst to burst.
        gap_ns: u64,
        /// Bursts in a train; 0: the train does not end.
        train_bursts: u32,
        /// Silence after a train.
        off_ns: u64,
        /// Packets that the generator sent.
        sent: u64,
        /// Packets that the application received.
        received: u64,
        /// Those of them when the generator ended.
        received_at_gen_end: u64,
        /// Packets that the device had received when the generator ended.
        nic_rx_at_gen_end: u64,
        /// Packets that the device received.
        nic_rx: u64,
        /// Packets that the device dropped.
        nic_drop: u64,
        /// Datagrams delivered to a socket.
        udp_in: u64,
        /// Datagrams lost to an error, full buffers included.
        udp_inerr: u64,
        /// Datagrams lost to a full buffer.
        udp_rcvbuferr: u64,
        /// Datagrams for which there was no socket.
        udp_noport: u64,
        /// Interrupts of the receive queue.
        rx_irqs: u64,
        /// Interrupts of the transmit queue.
        tx_irqs: u64,
        /// Polls of the instance, by whomever.
        polls: u64,
        /// Polls that found nothing.
        polls_empty: u64,
        /// Polls that found something.
        polls_nonempty: u64,
        /// Packets that polls took.
        poll_packets: u64,
        /// Polls by owner, budget and work.
        poll_hist: PollHist,
        /// Runs of the network receive softirq.
        net_rx_softirqs: u64,
        /// Runs of the scheduler's softirq.
        sched_softirqs: u64,
        /// Softirqs cut short by their budget.
        time_squeeze: u64,
        /// The instance's timer, expired.
        napi_timer_expiries: u64,
        /// The instance's timer, started.
        napi_timer_starts: u64,
        /// The application's voluntary context switches; unknown once it has exited.
        app_vcsw: Option<u64>,
        /// Its involuntary ones.
        app_ivcsw: Option<u64>,
        /// Its CPU time.
        app_cpu_ns: Option<u64>,
        /// ksoftirqd's context switches.
        ksoftirqd_csw: Option<u64>,
        /// ksoftirqd's CPU time.
        ksoftirqd_cpu_ns: Option<u64>,
        /// The instance thread's context switches.
        kthread_csw: Option<u64>,
        /// The instance thread's CPU time.
        kthread_cpu_ns: Option<u64>,
        /// Latency from the send stamp to the return of the receive call: the smallest; all five are
        /// unknown where nothing was received.
        lat_min_ns: Option<u64>,
        /// The 50th percentile of them.
        lat_p50_ns: Option<u64>,
        /// The 90th percentile of them.
        lat_p90_ns: Option<u64>,
        /// The 99th percentile of them.
        lat_p99_ns: Option<u64>,
        /// The largest of them.
        lat_max_ns: Option<u64>,
        /// Returns of `epoll_wait`.
        wait_returns: u64,
        /// Receive calls, those that found nothing included.
        recv_calls: u64,
        /// Returns by the number of events.
        events_hist: CountHist,
        /// Returns by the number of packets received after it.
        pkts_per_return_hist: CountHist,
        /// From the first packet to the last.
        gen_span_ns: u64,
        /// Packets a second sent in that time.
        offered_pps: f64,
        /// Packets a second received in that time.
        delivered_pps_while_sending: f64,
        /// By how much the generator was late at most.
        gen_late_max_ns: u64,
        /// The longest time that it took to send a burst.
        gen_burst_span_max_ns: u64,
        /// Length of the window.
        window_ns: u64,
        /// Phases of the scenario; empty where it has one.
        phases: String,
        /// The second run's receive interrupts.
        run2_rx_irqs: Option<u64>,
        /// The second run's empty polls.
        run2_polls_empty: Option<u64>,
        /// The second run's polls that found something.
        run2_polls_nonempty: Option<u64>,
        /// Packets that the application received in the second run.
        run2_received: Option<u64>,
        /// The second run's median latency.
        run2_lat_p50_ns: Option<u64>,
        /// The second run's 99th percentile.
        run2_lat_p99_ns: Option<u64>,
    }
}

impl OracleRow {
    /// Whether something spins, so that its empty polls are a rate and not a count.
    pub fn spins(&self) -> bool {
        self.threaded == Threaded::BusyPoll || self.ep_usecs > 0
    }
}

/// The embedded scenarios.
///
/// # Errors
/// None, unless the embedded file itself was damaged.
pub fn scenarios() -> Result<Vec<OracleRow>, TableError> {
    scenarios_of("kernel_oracle.csv", SCENARIOS)
}

/// The scenarios of a table of the same form; `table` is its name in messages.
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

    /// The embedded table with one piece of its text changed.
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
            let who = [Who::Idle, Who::App, Who::Ksoftirqd, Who::Kthread, Who::Worker];
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
        let of_app = PollKind { who: Who::App, budget: 64, work: 1 };
        assert_eq!(first.poll_hist.0[&of_app], 1);
        assert_eq!(first.poll_hist.by(Who::Idle), (592, 0));
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
    fn what_is_wrong_with_a_table_is_said_with_its_line() {
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
