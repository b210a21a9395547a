//! Converts a sample into families of metrics, named by Prometheus' conventions.
//!
//! A counter's name is without its `_total`, which belongs to the text format. Instances are labelled by
//! `device` and `napi` only, so that a change of policy starts no new series; other properties of an instance
//! are labels of `napkin_instance_info`, for joins.

use std::fmt::Write;

use napkin_watch::{NapiSample, Part, Sample, Squeezes};

const SECOND_NS: f64 = 1e9;

/// How the values of a family behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Values that rise, and restart at 0 together with their subject.
    Counter,
    /// Values that rise and fall.
    Gauge,
    /// Counts of observations up to each bound `le`, with their sum and number.
    Histogram,
}

/// Metrics of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name, without `_total`.
    pub name: &'static str,
    /// How its values behave.
    pub kind: Kind,
    /// Its description, one sentence.
    pub help: &'static str,
    /// Its values, one for each set of labels.
    pub series: Vec<Series>,
}

/// One value of a family, with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The suffix of the family's name: `_bucket`, `_sum` or `_count` for a histogram, else empty.
    pub suffix: &'static str,
    /// Names and values, each name once.
    pub labels: Vec<(&'static str, String)>,
    /// The value: finite, and not negative for a counter.
    pub value: f64,
}

impl Series {
    /// Creates a value of a counter or a gauge.
    pub fn new(labels: Vec<(&'static str, String)>, value: f64) -> Series {
        Series { suffix: "", labels, value }
    }
}

/// A count of an instance: its family's name and help, and its field in a sample.
type Count = (&'static str, &'static str, fn(&NapiSample) -> Option<u64>);

/// Families with one value for each instance.
const COUNTS: &[Count] = &[
    ("napkin_packets", "Packets that polls took from the instance's queues.", |it| it.packets),
    (
        "napkin_interrupts",
        "Interrupts of the instance; one that is shared counts for each.",
        |it| it.interrupts,
    ),
    ("napkin_empty_polls", "Polls that found nothing.", |it| Some(it.polls?.empty)),
    ("napkin_full_polls", "Polls that used their whole budget.", |it| it.full_polls),
    (
        "napkin_deferrals",
        "Polls after which the timer was armed in the place of the interrupt.",
        |it| it.deferrals,
    ),
    (
        "napkin_watchdogs",
        "Times that the instance's timer fired: there was no poll before it.",
        |it| it.watchdogs,
    ),
    ("napkin_suspensions", "Waits of applications that suspended the interrupt.", |it| {
        it.suspensions
    }),
];

/// Families of request times, one for each part.
const TIMES: &[(Part, &str, &str)] = &[
    (
        Part::Ring,
        "napkin_ring_wait_seconds",
        "How long requests waited in the instance's receive ring; of those that were timed.",
    ),
    (
        Part::Socket,
        "napkin_socket_wait_seconds",
        "From a request's delivery to the program's read; of those that were timed.",
    ),
    (
        Part::Service,
        "napkin_service_seconds",
        "From the program's read to its answer on the same connection; of those that were timed.",
    ),
    (
        Part::Whole,
        "napkin_request_seconds",
        "From a request's arrival in the ring to its answer; of those that were timed.",
    ),
];

/// The histograms' bounds as exponents of two, in nanoseconds: 1 us to 0.27 s. Times are counted by powers of two.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=28;

/// Returns all families of a sample, in a fixed order.
pub fn families(sample: &Sample) -> Vec<Family> {
    let napis = &sample.napis;
    let mut all = vec![
        info(napis),
        Family {
            name: "napkin_polls",
            kind: Kind::Counter,
            help: "Polls of the instance, by who polled.",
            series: napis.iter().flat_map(polls).collect(),
        },
    ];
    all.extend(COUNTS.iter().map(|(name, help, count)| {
        let one = |napi: &NapiSample| Some(Series::new(of(napi), count(napi)? as f64));
        let series = napis.iter().filter_map(one).collect();
        Family { name, kind: Kind::Counter, help, series }
    }));
    all.push(Family {
        name: "napkin_thread_cpu_seconds",
        kind: Kind::Counter,
        help: "CPU that the instance's own thread has used.",
        series: napis
            .iter()
            .filter_map(|napi| Some(Series::new(of(napi), napi.thread_cpu_ns? as f64 / SECOND_NS)))
            .collect(),
    });
    all.extend(TIMES.iter().map(|(part, name, help)| Family {
        name,
        kind: Kind::Histogram,
        help,
        series: napis.iter().flat_map(|napi| times(napi, *part)).collect(),
    }));
    all.push(squeezes(sample));
    all.push(cpu_seconds(sample));
    all.retain(|family| !family.series.is_empty());
    all
}

/// The labels that identify an instance.
fn of(napi: &NapiSample) -> Vec<(&'static str, String)> {
    vec![("device", napi.ifname.clone()), ("napi", napi.id.to_string())]
}

fn info(napis: &[NapiSample]) -> Family {
    let series = |napi: &NapiSample| {
        let mut queues = String::new();
        for queue in &napi.rx_queues {
            let comma = if queues.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(queues, "{comma}{queue}");
        }
        let mut labels = of(napi);
        labels.push(("policy", napi.mode.clone()));
        labels.push(("rx_queues", queues));
        labels.push(("irq", napi.irq.map(|irq| irq.to_string()).unwrap_or_default()));
        Series::new(labels, 1.0)
    };
    Family {
        name: "napkin_instance_info",
        kind: Kind::Gauge,
        help: "Always 1: the policy in force on each NAPI instance, its receive queues and its interrupt.",
        series: napis.iter().map(series).collect(),
    }
}

fn polls(napi: &NapiSample) -> Vec<Series> {
    let Some(polls) = napi.polls else { return Vec::new() };
    let by = |who: &str, count: u64| {
        let mut labels = of(napi);
        labels.push(("by", who.to_owned()));
        Series::new(labels, count as f64)
    };
    vec![
        by("softirq", polls.softirq),
        by("thread", polls.thread),
        by("application", polls.application),
    ]
}

/// The histogram of an instance; empty until one of its requests was timed.
fn times(napi: &NapiSample, part: Part) -> Vec<Series> {
    let Some(times) = napi.latency.as_ref().map(|parts| parts.of(part)) else { return Vec::new() };
    let (count, Some(mean)) = (times.count() as f64, times.mean()) else { return Vec::new() };
    let bucket = |le: String, count: f64| {
        let mut labels = of(napi);
        labels.push(("le", le));
        Series { suffix: "_bucket", labels, value: count }
    };
    let bounds = BOUNDS.map(|exponent| {
        let bound = 1_u64 << exponent;
        bucket((bound as f64 / SECOND_NS).to_string(), times.below(bound) as f64)
    });
    let value = mean * count / SECOND_NS;
    bounds
        .chain([
            bucket("+Inf".to_owned(), count),
            Series { suffix: "_sum", labels: of(napi), value },
            Series { suffix: "_count", labels: of(napi), value: count },
        ])
        .collect()
}

/// The kernel counts squeezes for each CPU, an engine for each instance.
fn squeezes(sample: &Sample) -> Family {
    let cpus = sample.cpus.iter().filter_map(|cpu| {
        let labels = vec![("cpu", cpu.cpu.to_string())];
        Some(Series::new(labels, cpu.time_squeezes? as f64))
    });
    let napis = sample.napis.iter().filter_map(|napi| match napi.time_squeezes {
        Squeezes::Counted(count) => Some(Series::new(of(napi), count as f64)),
        Squeezes::Unknown | Squeezes::OfCpu => None,
    });
    let counted: Vec<Series> = napis.collect();
    Family {
        name: "napkin_time_squeezes",
        kind: Kind::Counter,
        help: "Rounds of the receive softirq that ended for lack of time or budget, work left or not.",
        series: if counted.is_empty() { cpus.collect() } else { counted },
    }
}

fn cpu_seconds(sample: &Sample) -> Family {
    let series = sample.cpus.iter().flat_map(|cpu| {
        let parts = [
            ("hard_irq", cpu.hard_irq_ns),
            ("softirq", cpu.softirq_ns),
            ("thread", cpu.thread_ns),
            ("idle", cpu.idle_ns),
            ("steal", cpu.steal_ns),
        ];
        parts.map(|(mode, ns)| {
            let labels = vec![("cpu", cpu.cpu.to_string()), ("mode", mode.to_owned())];
            Series::new(labels, ns as f64 / SECOND_NS)
        })
    });
    Family {
        name: "napkin_cpu_seconds",
        kind: Kind::Counter,
        help: "Where each CPU's time went: hard interrupts, softirqs, threads, idle, or stolen by a hypervisor.",
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_watch::{CpuSample, Polls};

    fn eth0() -> NapiSample {
        NapiSample {
            ifname: "eth0".into(),
            id: 513,
            rx_queues: vec![0, 4],
            irq: Some(44),
            mode: "suspend20".into(),
            ..NapiSample::default()
        }
    }

    fn named<'a>(all: &'a [Family], name: &str) -> Option<&'a Family> {
        all.iter().find(|family| family.name == name)
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let sample = Sample { napis: vec![eth0()], ..Sample::default() };
        let all = families(&sample);
        let names: Vec<_> = all.iter().map(|family| family.name).collect();
        assert_eq!(names, ["napkin_instance_info"]);
        let labels = &all[0].series[0].labels;
        let expected = [
            ("device", "eth0"),
            ("napi", "513"),
            ("policy", "suspend20"),
            ("rx_queues", "0,4"),
            ("irq", "44"),
        ];
        assert!(labels.iter().map(|(name, value)| (*name, value.as_str())).eq(expected));
    }

    #[test]
    fn every_count_has_its_family() {
        let polls = Polls { softirq: 1, thread: 2, application: 3, empty: 4 };
        let napi = NapiSample {
            packets: Some(10),
            polls: Some(polls),
            interrupts: Some(20),
            full_polls: Some(30),
            deferrals: Some(40),
            watchdogs: Some(50),
            suspensions: Some(60),
            thread_cpu_ns: Some(1_500_000_000),
            ..eth0()
        };
        let cpu = CpuSample {
            cpu: 1,
            softirq_ns: 500_000_000,
            time_squeezes: Some(7),
            ..CpuSample::default()
        };
        let sample = Sample { napis: vec![napi], cpus: vec![cpu], ..Sample::default() };
        let all = families(&sample);
        let first = |name: &str| named(&all, name).map(|family| family.series[0].value);
        assert_eq!(first("napkin_packets"), Some(10.0));
        assert_eq!(first("napkin_interrupts"), Some(20.0));
        assert_eq!(first("napkin_full_polls"), Some(30.0));
        assert_eq!(first("napkin_empty_polls"), Some(4.0));
        assert_eq!(first("napkin_deferrals"), Some(40.0));
        assert_eq!(first("napkin_watchdogs"), Some(50.0));
        assert_eq!(first("napkin_suspensions"), Some(60.0));
        assert_eq!(first("napkin_thread_cpu_seconds"), Some(1.5));
        assert_eq!(first("napkin_time_squeezes"), Some(7.0));
        let by: Vec<_> =
            named(&all, "napkin_polls").unwrap().series.iter().map(|it| it.value).collect();
        assert_eq!(by, [1.0, 2.0, 3.0]);
        let softirq = &named(&all, "napkin_cpu_seconds").unwrap().series[1];
        assert_eq!((softirq.labels[1].1.as_str(), softirq.value), ("softirq", 0.5));
    }

    #[test]
    fn an_engine_squeezes_by_instance() {
        let napi = NapiSample { time_squeezes: Squeezes::Counted(3), ..eth0() };
        let cpu = CpuSample { time_squeezes: Some(7), ..CpuSample::default() };
        let all = families(&Sample { napis: vec![napi], cpus: vec![cpu], ..Sample::default() });
        let squeezes = named(&all, "napkin_time_squeezes").unwrap();
        assert_eq!((squeezes.series.len(), squeezes.series[0].value), (1, 3.0));
        assert_eq!(squeezes.series[0].labels[0], ("device", "eth0".to_owned()));
    }
}
