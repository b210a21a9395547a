//! The columns: their values for an instance, how they are sorted, and which of them fit on a line.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::text::{UNKNOWN, rate, share, time, width};
use napkin_os::sched::ranges;
use napkin_watch::{NapiRates, Rates};

/// The space between two columns.
pub(crate) const GAP: usize = 1;

/// A column of the instances' table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Column {
    /// The device's name.
    Dev,
    /// The instance's id.
    Napi,
    /// Its receive queues.
    Rx,
    /// Its interrupt's number.
    Irq,
    /// The CPU that polls it.
    Cpu,
    /// Packets a second.
    Packets,
    /// Interrupts a second.
    Interrupts,
    /// Polls a second.
    Polls,
    /// Polls a second by a softirq.
    Softirq,
    /// Polls a second by a thread of the kernel's.
    Thread,
    /// Polls a second by an application.
    Application,
    /// The share of polls that found nothing.
    Empty,
    /// Polls a second that used their whole budget.
    Full,
    /// Deferrals a second.
    Deferrals,
    /// Expiries of the timer a second.
    Watchdogs,
    /// Suspensions a second.
    Suspensions,
    /// Time squeezes a second of its CPU.
    Squeezes,
    /// CPU use of its thread.
    ThreadCpu,
    /// The 99th percentile of requests' time in the ring.
    Ring,
    /// The same in the socket.
    Socket,
    /// The same in the program.
    Service,
    /// The policy in force.
    Policy,
    /// The programs whose sockets it serves.
    Owners,
}

/// The value of a cell, for sorting.
enum Value {
    Text(String),
    Number(Option<f64>),
}

impl Column {
    /// All columns, from left to right.
    pub const ALL: [Column; 23] = [
        Column::Dev,
        Column::Napi,
        Column::Rx,
        Column::Irq,
        Column::Cpu,
        Column::Packets,
        Column::Interrupts,
        Column::Polls,
        Column::Softirq,
        Column::Thread,
        Column::Application,
        Column::Empty,
        Column::Full,
        Column::Deferrals,
        Column::Watchdogs,
        Column::Suspensions,
        Column::Squeezes,
        Column::ThreadCpu,
        Column::Ring,
        Column::Socket,
        Column::Service,
        Column::Policy,
        Column::Owners,
    ];

    /// All columns, the most important first: the order in which they are given space.
    const BY_IMPORTANCE: [Column; 23] = [
        Column::Napi,
        Column::Dev,
        Column::Packets,
        Column::Polls,
        Column::Empty,
        Column::Interrupts,
        Column::Policy,
        Column::Owners,
        Column::Ring,
        Column::Socket,
        Column::Service,
        Column::ThreadCpu,
        Column::Application,
        Column::Softirq,
        Column::Thread,
        Column::Deferrals,
        Column::Watchdogs,
        Column::Suspensions,
        Column::Cpu,
        Column::Squeezes,
        Column::Rx,
        Column::Irq,
        Column::Full,
    ];

    /// Its name: in the header, and for `--sort`.
    pub const fn name(self) -> &'static str {
        match self {
            Column::Dev => "dev",
            Column::Napi => "napi",
            Column::Rx => "rx",
            Column::Irq => "irq",
            Column::Cpu => "cpu",
            Column::Packets => "packets",
            Column::Interrupts => "intr",
            Column::Polls => "polls",
            Column::Softirq => "softirq",
            Column::Thread => "thread",
            Column::Application => "app",
            Column::Empty => "empty",
            Column::Full => "full",
            Column::Deferrals => "defer",
            Column::Watchdogs => "wdog",
            Column::Suspensions => "suspend",
            Column::Squeezes => "squeeze",
            Column::ThreadCpu => "thr-cpu",
            Column::Ring => "ring99",
            Column::Socket => "socket99",
            Column::Service => "service99",
            Column::Policy => "policy",
            Column::Owners => "owners",
        }
    }

    /// Its description, in one line.
    pub const fn what(self) -> &'static str {
        match self {
            Column::Dev => "device",
            Column::Napi => "id of the NAPI instance",
            Column::Rx => "receive queues that it polls",
            Column::Irq => "number of its interrupt; virtual devices have none",
            Column::Cpu => "CPU where it last polled, or that of its thread",
            Column::Packets => "packets a second that its polls found",
            Column::Interrupts => "interrupts a second",
            Column::Polls => "polls a second, of all kinds",
            Column::Softirq => "polls a second by a softirq (also in ksoftirqd)",
            Column::Thread => "polls a second by its own thread, or a worker's",
            Column::Application => "polls a second by an application's busy poll",
            Column::Empty => "of all polls, those that found nothing",
            Column::Full => "polls a second that used their whole budget",
            Column::Deferrals => "timers a second armed in the place of the interrupt",
            Column::Watchdogs => "timers a second that fired",
            Column::Suspensions => "waits of applications a second that suspended its interrupt",
            Column::Squeezes => {
                "softirq rounds a second that were cut short on the CPU of column cpu"
            }
            Column::ThreadCpu => {
                "CPU that its thread uses, if it has one; 100% is the whole of one"
            }
            Column::Ring => "99 of 100 requests waited no longer in its ring (--latency)",
            Column::Socket => "no longer from delivery to the program's read (--latency)",
            Column::Service => "no longer from the read to the answer (--latency)",
            Column::Policy => "policy in force",
            Column::Owners => "programs whose sockets it serves",
        }
    }

    /// Whether it is text, which may be cut, and not a number, which never is.
    pub const fn is_text(self) -> bool {
        matches!(self, Column::Dev | Column::Rx | Column::Policy | Column::Owners)
    }

    /// Whether it is sorted in descending order by default.
    pub const fn descends(self) -> bool {
        !matches!(self, Column::Napi | Column::Irq | Column::Cpu) && !self.is_text()
    }

    /// The text of its cell for an instance.
    pub fn cell(self, napi: &NapiRates) -> String {
        match (self, self.value(napi)) {
            (_, Value::Text(text)) if text.is_empty() => UNKNOWN.into(),
            (_, Value::Text(text)) => text,
            (Column::Napi | Column::Irq | Column::Cpu, Value::Number(number)) => {
                number.map_or_else(|| UNKNOWN.into(), |number| format!("{number:.0}"))
            }
            (Column::Empty | Column::ThreadCpu, Value::Number(part)) => share(part),
            (Column::Ring | Column::Socket | Column::Service, Value::Number(ns)) => time(ns),
            (_, Value::Number(number)) => rate(number),
        }
    }

    fn value(self, napi: &NapiRates) -> Value {
        Value::Number(match self {
            Column::Dev => return Value::Text(napi.ifname.clone()),
            Column::Rx => return Value::Text(ranges(&napi.rx_queues).replace(',', " ")),
            Column::Policy => return Value::Text(napi.policy.clone()),
            Column::Owners => return Value::Text(napi.owners.join(" ")),
            Column::Napi => Some(f64::from(napi.id)),
            Column::Irq => napi.irq.map(f64::from),
            Column::Cpu => napi.cpu.map(|cpu| cpu as f64),
            Column::Packets => napi.packets_per_s,
            Column::Interrupts => napi.interrupts_per_s,
            Column::Polls => napi.polls_per_s,
            Column::Softirq => napi.softirq_polls_per_s,
            Column::Thread => napi.thread_polls_per_s,
            Column::Application => napi.application_polls_per_s,
            Column::Empty => napi.empty_polls,
            Column::Full => napi.full_polls_per_s,
            Column::Deferrals => napi.deferrals_per_s,
            Column::Watchdogs => napi.watchdogs_per_s,
            Column::Suspensions => napi.suspensions_per_s,
            Column::Squeezes => napi.time_squeezes_per_s,
            Column::ThreadCpu => napi.thread_cpu,
            Column::Ring => napi.latency_ns.get("ring").and_then(|it| it.p99),
            Column::Socket => napi.latency_ns.get("socket").and_then(|it| it.p99),
            Column::Service => napi.latency_ns.get("service").and_then(|it| it.p99),
        })
    }

    /// Compares two instances. Unknown values come last in both directions.
    pub fn compare(self, a: &NapiRates, b: &NapiRates, descending: bool) -> Ordering {
        let directed = |order: Ordering| if descending { order.reverse() } else { order };
        match (self.value(a), self.value(b)) {
            (Value::Text(a), Value::Text(b)) => match (a.is_empty(), b.is_empty()) {
                (false, false) => directed(a.cmp(&b)),
                (a, b) => a.cmp(&b),
            },
            (Value::Number(Some(a)), Value::Number(Some(b))) => directed(a.total_cmp(&b)),
            (Value::Number(a), Value::Number(b)) => b.is_some().cmp(&a.is_some()),
            _ => Ordering::Equal,
        }
    }

    /// The minimum width.
    fn least(self, rows: &[&NapiRates]) -> usize {
        match self {
            // A text gets the width it wants, up to a length that few exceed, before a less important column
            // gets any.
            Column::Dev => self.wanted(rows).min(10),
            Column::Rx => self.wanted(rows).min(7),
            Column::Policy => self.wanted(rows).min(12),
            Column::Owners => self.wanted(rows).min(16),
            // IDs may have any length; rates have at most five characters, so that the columns do not move
            // with every number.
            Column::Napi | Column::Irq | Column::Cpu => self.wanted(rows),
            _ => self.name().len().max(5),
        }
    }

    /// The width that shows everything.
    fn wanted(self, rows: &[&NapiRates]) -> usize {
        let widest = rows.iter().map(|napi| width(&self.cell(napi))).max().unwrap_or(0);
        widest.max(self.name().len())
    }

    /// Whether it has a value for any instance.
    fn has_value(self, napis: &[NapiRates]) -> bool {
        napis.iter().any(|napi| self.cell(napi) != UNKNOWN)
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Column, String> {
        // The name of this column in earlier versions.
        let text = if text == "mode" { "policy" } else { text };
        Column::ALL.into_iter().find(|column| column.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Column::ALL.map(Column::name).to_vec();
            format!("no column is called {text:?}: there are {}", names.join(", "))
        })
    }
}

/// Selects the columns that fit on `line` characters, from left to right, each with its width. The sorted
/// column is placed first; columns without any value are placed last.
pub(crate) fn fit(
    line: usize,
    sort: Column,
    rates: &Rates,
    shown: &[&NapiRates],
) -> Vec<(Column, usize)> {
    let (known, unknown): (Vec<Column>, Vec<Column>) = Column::BY_IMPORTANCE
        .into_iter()
        .filter(|column| *column != sort)
        .partition(|column| column.has_value(&rates.napis));
    // Before the first rates it is unknown which columns will have values.
    let order: Vec<Column> = match rates.window_ns {
        Some(_) => [sort].into_iter().chain(known).chain(unknown).collect(),
        None => {
            let rest = Column::BY_IMPORTANCE.into_iter().filter(|column| *column != sort);
            [sort].into_iter().chain(rest).collect()
        }
    };
    let (mut chosen, mut used): (Vec<(Column, usize)>, usize) = (Vec::new(), 0);
    for column in order {
        let least = column.least(shown);
        let needed = least + if chosen.is_empty() { 0 } else { GAP };
        if used + needed > line {
            break;
        }
        used += needed;
        chosen.push((column, least));
    }
    // The rest goes to texts that are longer than their column, in turn.
    let mut left = line - used;
    loop {
        let before = left;
        for (column, has) in chosen.iter_mut().filter(|(column, _)| column.is_text()) {
            if left > 0 && *has < column.wanted(shown) {
                (*has, left) = (*has + 1, left - 1);
            }
        }
        if left == before || left == 0 {
            break;
        }
    }
    chosen.sort_by_key(|(column, _)| Column::ALL.iter().position(|it| it == column));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(napis: Vec<NapiRates>) -> Rates {
        Rates { window_ns: Some(1), napis, ..Rates::default() }
    }

    fn napi() -> NapiRates {
        NapiRates {
            ifname: "enp129s0f0np0".into(),
            id: 8_193,
            rx_queues: vec![0, 1, 2, 9],
            cpu: Some(3),
            policy: "suspend20".into(),
            packets_per_s: Some(123_456.0),
            polls_per_s: Some(4_000.0),
            empty_polls: Some(0.25),
            owners: vec!["memcached[812]".into()],
            ..NapiRates::default()
        }
    }

    fn fitted(line: usize, sort: Column) -> Vec<(Column, usize)> {
        let rates = rates(vec![napi()]);
        fit(line, sort, &rates, &rates.napis.iter().collect::<Vec<_>>())
    }

    #[test]
    fn every_column_has_its_importance_and_its_name() {
        for column in Column::ALL {
            assert_eq!(column.name().parse(), Ok(column));
            let places = Column::BY_IMPORTANCE.iter().filter(|it| **it == column).count();
            assert_eq!(places, 1, "{column}");
        }
        assert_eq!("mode".parse(), Ok(Column::Policy), "as it was called before");
        let error = "speed".parse::<Column>().expect_err("there is none");
        assert!(error.contains("\"speed\"") && error.contains("thr-cpu"), "{error}");
    }

    #[test]
    fn what_fits_never_takes_more_than_the_line_and_never_cuts_a_number() {
        for line in 0..=250 {
            let fitted = fitted(line, Column::Packets);
            let used: usize = fitted.iter().map(|(_, width)| width + GAP).sum();
            assert!(used <= line + GAP, "{line}: {used}");
            for (column, has) in fitted.iter().filter(|(column, _)| !column.is_text()) {
                assert!(width(&column.cell(&napi())) <= *has, "{column} at {line}");
            }
        }
    }

    #[test]
    fn the_less_important_go_first_and_the_sorted_one_last() {
        let names = |line, sort| -> Vec<Column> {
            fitted(line, sort).into_iter().map(|(column, _)| column).collect()
        };
        assert_eq!(names(250, Column::Packets).len(), Column::ALL.len());
        assert_eq!(names(12, Column::Packets), [Column::Napi, Column::Packets]);
        assert_eq!(names(8, Column::Full), [Column::Full]);
        let eighty = names(80, Column::Packets);
        for column in [Column::Dev, Column::Napi, Column::Packets, Column::Policy, Column::Owners] {
            assert!(eighty.contains(&column), "{column}");
        }
        assert!(!eighty.contains(&Column::Watchdogs), "nothing is known of them");
    }

    #[test]
    fn times_of_requests_are_shown_where_they_are_known() {
        let p99 = napkin_watch::Percentiles { p99: Some(34_100.0), ..Default::default() };
        let timed = NapiRates { latency_ns: [("socket", p99)].into(), ..napi() };
        let cells = [Column::Ring, Column::Socket, Column::Service].map(|it| it.cell(&timed));
        assert_eq!(cells, ["-", "34us", "-"]);
    }

    #[test]
    fn a_name_gets_what_is_left() {
        let of = |line| fitted(line, Column::Packets).into_iter().find(|it| it.0 == Column::Dev);
        assert_eq!(of(250), Some((Column::Dev, "enp129s0f0np0".len())));
    }

    #[test]
    fn the_unknown_comes_last_in_both_directions() {
        let (known, unknown) = (napi(), NapiRates::default());
        for column in [Column::Packets, Column::Policy, Column::Cpu] {
            for descending in [true, false] {
                assert_eq!(column.compare(&known, &unknown, descending), Ordering::Less);
            }
        }
        let more = NapiRates { packets_per_s: Some(1e9), ..napi() };
        assert_eq!(Column::Packets.compare(&known, &more, true), Ordering::Greater);
        assert_eq!(Column::Packets.compare(&known, &more, false), Ordering::Less);
    }

    #[test]
    fn queues_are_drawn_together() {
        let napi = NapiRates { rx_queues: vec![3, 0, 1, 2, 7], ..napi() };
        assert_eq!(Column::Rx.cell(&napi), "0-3 7");
        assert_eq!(Column::Rx.cell(&NapiRates::default()), "-");
    }
}
