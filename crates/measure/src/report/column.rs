//! Definitions of table columns: name, field in the JSON report, unit and description.
//!
//! Headers, help and cells come from [`COLUMNS`]. A cell is the value of the column's field in a row of the JSON
//! report, rounded to three digits and with its unit. Nothing is computed here.

use serde_json::{Map, Value};

use super::text::{count, percent, plain, rate, ratio, time, time_range};
use Unit::{Count, Plain, Rate, Ratio, Share, Time};

/// Shown for a figure that a row does not have.
pub const ABSENT: &str = "-";

/// The unit of a value in the JSON report, which determines how it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Text, or a number that is printed unchanged.
    Plain,
    /// A count; a map of counts is summed up.
    Count,
    /// Nanoseconds, printed in a suitable unit.
    Time,
    /// A number per second.
    Rate,
    /// A fraction from 0 to 1, printed in per cent.
    Share,
    /// A quotient of two counts.
    Ratio,
}

/// A column of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Path of its field in a row of the JSON report, separated by dots.
    pub field: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// A one-line description.
    pub what: &'static str,
}

/// Defines a constant for each column, and the list of all.
macro_rules! columns {
    ($($id:ident: $name:literal, $field:literal, $unit:ident, $what:literal;)*) => {
        $(
            #[doc = concat!($what, ".")]
            pub const $id: &Column =
                &Column { name: $name, field: $field, unit: $unit, what: $what };
        )*

        /// All columns by importance, the order in which they are fitted onto a line.
        pub const COLUMNS: &[&Column] = &[$($id),*];
    };
}

columns! {
    WORLD: "world", "world", Plain, "where it ran, of several worlds";
    POLICY: "policy", "name", Plain, "the policy, or the name that was given to it";
    // The load, in the workload's own terms.
    CLIENT: "client", "load.client", Plain, "who sends; flood and ping -f wait for each reply, extreme does not";
    TIMES_PEAK: "times peak", "load.times_peak", Plain, "offered, as a multiple of the rate that fills the CPU";
    CORNER: "corner", "load.corner", Plain, "when packets come, where not at a rate";
    REQUESTS_PER_S: "requests/s", "load.requests_per_s", Plain, "requests a second; flood and max: as many as are answered";
    PACKETS_PER_S: "packets/s", "load.packets_per_s", Plain, "packets sent a second; max: as many as can be";
    FRAMES_PER_S: "frames/s", "load.frames_per_s", Plain, "frames sent a second";
    OPERATIONS_PER_S: "ops/s", "load.operations_per_s", Plain, "operations a second";
    BYTES: "bytes", "load.bytes", Plain, "size of a request, or of an operation";
    DELAY: "delay", "load.delay_ns", Time, "how long the application is busy after each reply";
    // The figures.
    ACHIEVED: "achieved", "achieved_per_s", Rate, "replies, answers or received datagrams a second";
    P50: "p50", "latency_ns.p50", Time, "median latency, from the time at which it was meant to be sent; > is a bound, as requests had no answer; grows: less than 99 % were answered, by more than chance, and it lasts as long as the run lets it";
    P99: "p99", "latency_ns.p99", Time, "latency that 99 % do not exceed [least..most of the repetitions]; = overlaps the best row's";
    CPU_PER_REQUEST: "cpu/req", "cpu_ns_per_request", Time, "the serving CPU's time for a request: threads, interrupts and softirqs, polls that found nothing among them";
    WORK: "work", "cpu.work", Share, "of the serving CPUs' time: ran, and found something to do";
    POLL: "poll", "cpu.poll", Share, "of the same: ran, in polls that found nothing";
    UNANSWERED: "unanswered", "unanswered", Count, "due in the window and not answered (received) in it: waiting, never sent, or lost";
    INTERRUPTED: "interrupted", "interrupted", Share, "of the time: another program or the hypervisor had a CPU that the run wanted";
    WAITING: "waiting", "cpu.waiting", Share, "of the same: ready to run, and had no CPU";
    DROPS: "drops", "drops", Count, "packets lost, by all counters";
    BUSY: "busy", "server_busy", Share, "of the serving CPU's time: neither idle nor stolen";
    INTERRUPTS_PER_PACKET: "irqs/pkt", "interrupts_per_packet", Ratio, "receive interrupts for each packet polled; in the machine of both kinds, where the card raises both";
    ASLEEP: "asleep", "cpu.asleep", Share, "of the serving CPUs' time: the rest";
    SOFTIRQ_POLLS: "softirq", "polls_softirq", Count, "polls by a softirq, empty ones among them";
    THREAD_POLLS: "thread", "polls_thread", Count, "polls by a thread of the kernel's, likewise";
    APPLICATION_POLLS: "app", "polls_application", Count, "polls by an application's busy poll, likewise";
    OFFERED: "offered", "offered_per_s", Rate, "meant to be sent a second; none in a closed loop";
    SENT: "sent", "sent", Count, "datagrams that the sender got rid of";
    POLLED_PER_RECEIVED: "polled/rcvd", "polled_ratio", Ratio, "packets polled for each datagram received";
    RING_SHARE: "ring share", "ring_share", Share, "of the drops: those in the ring, which cost no CPU";
    P999: "p99.9", "latency_ns.p999", Time, "latency that 99.9 % do not exceed";
    P90: "p90", "latency_ns.p90", Time, "latency that 90 % do not exceed";
    RATE_OF_REFERENCE: "rate x", "achieved_of_reference", Ratio, "achieved, as a multiple of base's in the same world";
    P50_OF_REFERENCE: "p50 x", "p50_of_reference", Ratio, "median latency, likewise";
    P99_OF_REFERENCE: "p99 x", "p99_of_reference", Ratio, "p99, likewise";
    P999_OF_REFERENCE: "p99.9 x", "p999_of_reference", Ratio, "p99.9, likewise";
    CPU_OF_REFERENCE: "cpu x", "cpu_of_reference", Ratio, "work and poll, likewise";
    P95: "p95", "latency_ns.p95", Time, "latency that 95 % do not exceed";
    SWITCHES_PER_PACKET: "switches/pkt", "context_switches_per_packet", Ratio, "context switches for each packet served";
    POLLS: "polls", "polls", Count, "polls, those that found nothing among them";
    EMPTY_POLLS: "empty", "empty_polls", Count, "polls that received no frame";
    PACKETS_PER_POLL: "pkts/poll", "packets_per_poll", Ratio, "packets of a poll that found some";
    DEFERRALS: "defer", "deferrals", Count, "timers armed in the place of an interrupt";
    WATCHDOGS: "wdog", "watchdogs", Count, "such timers that fired";
    SUSPENSIONS: "suspend", "suspensions", Count, "waits of applications that suspended the interrupt";
    P5: "p5", "latency_ns.p5", Time, "latency that 5 % do not exceed";
    PACKETS: "packets", "packets", Count, "packets served in the window";
    INTERRUPTS: "irqs", "interrupts", Count, "receive interrupts that found the instance free; in the machine of both kinds, where the card raises both";
    TX_INTERRUPTS_PER_PACKET: "tx irqs/pkt", "interrupts_tx_per_packet", Ratio, "transmit interrupts for each packet polled";
    INTERRUPTS_WON: "irqs won", "interrupts_won", Count, "interrupts of either kind that found it free";
    AFTER_HOLD: "after hold", "interrupts_after_hold", Count, "of these, the ones that came after a hold";
    IDLE_GAP: "idle gap", "idle_gap_min_ns", Time, "shortest time from the last work to an interrupt";
    LATE: "late", "late", Count, "requests due while their connection waited for an answer";
    SOFTIRQ_BUSY: "softirq busy", "server_softirq", Share, "of the serving CPU's time: in softirqs";
    PUBLISHED_P5: "\"p5\"", "published_estimator_ns.p5", Time, "of the 2025 document: mean of the fastest 5 %, rounded down";
    PUBLISHED_P50: "\"p50\"", "published_estimator_ns.p50", Time, "of the same, the fastest 50 %: none of these is a percentile";
    PUBLISHED_P95: "\"p95\"", "published_estimator_ns.p95", Time, "of the same, the fastest 95 %";
    PUBLISHED_P99: "\"p99\"", "published_estimator_ns.p99", Time, "of the same, the fastest 99 %";
}

impl Column {
    /// The column of a field of a row's `load`.
    pub fn of_load(key: &str) -> Option<&'static Column> {
        COLUMNS.iter().copied().find(|column| column.field.strip_prefix(LOAD) == Some(key))
    }

    /// Whether it is a field of the load.
    pub fn is_load(&self) -> bool {
        self.field.starts_with(LOAD)
    }

    /// Its position among all columns; lower is more important.
    pub fn rank(&self) -> usize {
        COLUMNS.iter().position(|column| *column == self).unwrap_or(COLUMNS.len())
    }

    /// Its value in a row of the JSON report; `None` if missing or `null`.
    pub fn value<'a>(&self, row: &'a Value) -> Option<&'a Value> {
        let found = self.field.split('.').try_fold(row, |value, name| value.get(name))?;
        // An empty map of counts means 0, unless nothing was measured at all.
        let empty = found.as_object().is_some_and(Map::is_empty) && row.get("window_ns").is_none();
        (!found.is_null() && !empty).then_some(found)
    }

    /// Its cell for a row of the JSON report.
    pub fn cell(&self, row: &Value) -> String {
        let shown = self.value(row).and_then(|value| self.show(value));
        let shown = shown.map(|shown| match self.range(row) {
            Some(range) => format!("{shown} {range}"),
            None => shown,
        });
        shown.or_else(|| self.bound(row)).unwrap_or_else(|| ABSENT.to_owned())
    }

    /// Its heading above these rows; that of a p99 also mentions the range if the rows have one.
    pub fn heading(&self, rows: &[Value]) -> String {
        let ranges = rows.iter().any(|row| self.value(row).and(self.range(row)).is_some());
        if ranges { format!("{} [min..max]", self.name) } else { self.name.to_owned() }
    }

    /// The range of a p99's repetitions, and whether it overlaps that of the best row.
    fn range(&self, row: &Value) -> Option<String> {
        let spread = (self == P99).then(|| row.get("spread")?.get("latency_p99_ns")).flatten()?;
        let several = row.get("repetitions")?.as_array()?.len() > 1;
        let [least, most] = ["min", "max"].map(|end| spread.get(end).and_then(Value::as_f64));
        let range = time_range(least?, most?);
        let best = row.get("p99_overlaps_best").and_then(Value::as_bool).unwrap_or(false);
        several.then(|| format!("[{range}]{}", if best { " =" } else { "" }))
    }

    /// The lower bound of an unknown percentile.
    fn bound(&self, row: &Value) -> Option<String> {
        let percentile = self.field.strip_prefix("latency_ns.")?;
        let bound = row.get("latency_ns")?.get("above")?.get(percentile)?.as_f64()?;
        let grows = row.get("grows").and_then(Value::as_bool).unwrap_or(false);
        Some(format!(">{}{}", time(bound), if grows { " grows" } else { "" }))
    }

    /// A value with its unit; `None` if it is of another type.
    fn show(&self, value: &Value) -> Option<String> {
        Some(match self.unit {
            Plain => plain(value),
            Count => match value.as_object() {
                Some(counts) => count(counts.values().filter_map(Value::as_u64).sum()),
                None => count(value.as_u64()?),
            },
            Time => time(value.as_f64()?),
            Rate => rate(value.as_f64()?),
            Share => percent(value.as_f64()?),
            Ratio => ratio(value.as_f64()?),
        })
    }
}

/// Prefix of the fields of a load.
const LOAD: &str = "load.";

/// Help on all columns: name, description, and field in a row of the JSON report.
pub fn explained() -> String {
    const LINE: usize = 80;
    let longest = COLUMNS.iter().map(|column| column.name.len()).max().unwrap_or(0);
    let indent = " ".repeat(longest + 4);
    let options = textwrap::Options::new(LINE).subsequent_indent(&indent);
    let mut text =
        "Columns of the tables, and where each stands in a row of --json (there times are\n\
                    in ns, shares from 0 to 1; what ends in _of_reference is in the table of\n\
                    several worlds alone):"
            .to_owned();
    for Column { name, field, what, .. } in COLUMNS {
        let line = format!("  {name:longest$}  {what} [{field}]");
        text.push('\n');
        text.push_str(&textwrap::fill(&line, &options));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_name_and_a_field_of_its_own() {
        for (place, column) in COLUMNS.iter().enumerate() {
            assert_eq!(column.rank(), place, "{}", column.name);
            let same = |other: &&&Column| other.name == column.name || other.field == column.field;
            assert_eq!(COLUMNS.iter().filter(same).count(), 1, "{}", column.name);
        }
        assert_eq!(Column::of_load("delay_ns"), Some(DELAY));
        assert_eq!(Column::of_load("weather"), None);
    }

    #[test]
    fn a_cell_is_what_stands_in_the_report_in_its_unit() {
        let row = serde_json::json!({
            "name": "base",
            "load": { "requests_per_s": "max", "delay_ns": 78_000 },
            "latency_ns": { "p50": 12_700 },
            "cpu": { "work": 0.1234 },
            "achieved_per_s": 99.96,
            "drops": { "ring_full": 2, "socket_full": 3 },
            "interrupts_per_packet": 0.33333,
            "polls": null,
        });
        let cells = [
            POLICY,
            REQUESTS_PER_S,
            DELAY,
            P50,
            WORK,
            ACHIEVED,
            DROPS,
            INTERRUPTS_PER_PACKET,
            POLLS,
            P99,
        ];
        let cells = cells.map(|column| column.cell(&row));
        let want = ["base", "max", "78.0 us", "12.7 us", "12.3 %", "100/s", "5", "0.333", "-", "-"];
        assert_eq!(cells, want);
        assert_eq!(POLLS.cell(&serde_json::json!({ "polls": "many" })), "-");
    }

    #[test]
    fn a_p99_has_its_range_and_whether_it_reaches_the_best() {
        let mut row = serde_json::json!({
            "latency_ns": { "p50": 9_000, "p99": 44_000 },
            "spread": { "latency_p99_ns": { "min": 40_100, "median": 44_000, "max": 48_000 } },
            "repetitions": [{}, {}],
        });
        assert_eq!(
            (P50.cell(&row), P99.cell(&row)),
            ("9.00 us".into(), "44.0 us [40.1..48.0]".into())
        );
        assert_eq!(
            (P99.heading(&[row.clone()]), P99.heading(&[])),
            ("p99 [min..max]".into(), "p99".into())
        );
        row["p99_overlaps_best"] = true.into();
        row["spread"]["latency_p99_ns"]["max"] = 1_200_000.into();
        assert_eq!(P99.cell(&row), "44.0 us [40.1 us..1.20 ms] =");
        row["repetitions"] = serde_json::json!([{}]);
        assert_eq!(P99.cell(&row), "44.0 us");
    }

    #[test]
    fn a_percentile_that_is_not_known_is_what_it_exceeds() {
        let mut row = serde_json::json!({
            "latency_ns": { "p50": 9_000, "p99": null, "above": { "p50": null, "p99": 567_000_000 } },
        });
        let cells = |row: &Value| [P50, P99, P999].map(|column| column.cell(row));
        assert_eq!(cells(&row), ["9.00 us", ">567 ms", "-"]);
        row["grows"] = true.into();
        assert_eq!(cells(&row), ["9.00 us", ">567 ms grows", "-"]);
    }
}
