//! Decides whether figures of two rows may be compared, and how they compare.
//!
//! On a real host, two things prevent a comparison: the host [interrupted](crate::Interruption) a run for longer
//! than the figure tolerates, or the repetitions of the rows overlap. In the machine, time is virtual, nothing
//! interrupts a run, and repetitions are seeds. In linux, no CPU figure is compared with the reference's: over a
//! veth, most of the reference's work runs on the sender's CPU.

use serde_json::{Map, Value};

use crate::Spread;
use crate::report::text::{percent, rate, ratio, time};
use crate::report::{Column, Measurement, Report, Row};

/// Medians whose quotient is below this are alike ...
const ALIKE: f64 = 1.25;

/// ... if no two repetitions differ by a larger factor than this.
const CLOSE: f64 = 1.5;

/// A figure by which rows are compared.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    /// Its name in sentences.
    pub(super) name: &'static str,
    get: fn(&Measurement) -> Option<f64>,
    /// The longest interruption by the host, as a share of the time, that does not distort the figure.
    pub(super) tolerates: f64,
    show: fn(f64) -> String,
}

/// One in a hundred requests exceeds it, so that an interruption for 1 % of the time can set it. The limit is 2 %,
/// because tick-based accounting is no more precise.
pub(super) const P99: Figure = Figure {
    name: "p99",
    get: |figures| figures.latency_ns?.at.p99.map(|ns| ns as f64),
    tolerates: 0.02,
    show: time,
};

/// As [`P99`], for one request in a thousand.
pub(super) const P999: Figure = Figure {
    name: "p99.9",
    get: |figures| figures.latency_ns?.at.p999.map(|ns| ns as f64),
    tolerates: 0.005,
    show: time,
};

/// Tolerates more than the tail, but far less than one half, because queues outlast the interruption that caused
/// them.
pub(super) const P50: Figure = Figure {
    name: "p50",
    get: |figures| figures.latency_ns?.at.p50.map(|ns| ns as f64),
    tolerates: 0.1,
    show: time,
};

/// The busy share of the serving CPUs' time.
pub(super) const CPU: Figure =
    Figure { name: "CPU", get: Measurement::cpu_busy, tolerates: 0.1, show: percent };

/// Replies, answers or received datagrams per second.
pub(super) const RATE: Figure =
    Figure { name: "rate", get: |figures| figures.achieved_per_s, tolerates: 0.1, show: rate };

/// Receive interrupts per packet: a quotient of counts, both of which an interruption affects alike.
pub(super) const INTERRUPTS: Figure = Figure {
    name: "interrupts a packet",
    get: |figures| figures.interrupts_per_packet,
    tolerates: 1.0,
    show: |value| if value == 0.0 { "no".to_owned() } else { ratio(value) },
};

/// The result of comparing a row's figure with another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The figure is clearly smaller.
    Less,
    /// The figures are alike.
    Alike,
    /// The figure is clearly larger.
    More,
}

/// The reason why figures cannot be compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Inconclusive {
    /// The host interrupted a run, for this share of the time.
    Interrupted(f64),
    /// Some repetitions of a row lack the figure, usually those in which it would be worst.
    Partly(String),
    /// The repetitions of a row differ too much.
    Apart(String),
    /// There is only one repetition.
    Once,
}

impl std::fmt::Display for Inconclusive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Inconclusive::Interrupted(share) => f.write_str(&interrupted(*share)),
            Inconclusive::Partly(what) => write!(f, "not every repetition tells {what}"),
            Inconclusive::Apart(what) => {
                write!(f, "repetitions differ more than policies do ({what})")
            }
            Inconclusive::Once => f.write_str(
                "one repetition does not say how far the next would be off; give --repetitions 6",
            ),
        }
    }
}

/// The text for an interruption.
pub(super) fn interrupted(share: f64) -> String {
    format!("this host interrupted it for {:.0} % of the time", share * 100.0)
}

/// The sentence that takes the place of a conclusion.
pub(super) fn cannot_tell(doubt: &Inconclusive) -> String {
    format!("cannot tell: {doubt}")
}

/// A row with what is needed to judge its figures.
#[derive(Clone, Copy)]
pub(super) struct Evidence<'a> {
    row: &'a Row,
    /// Whether time is virtual: then nothing interrupts a run, and a single repetition is not subject to chance.
    virtual_time: bool,
    /// Whether the run used a veth, over which most of the reference's work runs on the sender's CPU.
    over_veth: bool,
}

impl<'a> Evidence<'a> {
    pub(super) fn name(&self) -> &'a str {
        &self.row.name
    }

    pub(super) fn load(&self) -> &'a Map<String, Value> {
        &self.row.load
    }

    /// Whether it is Linux's default, without a policy applied.
    pub(super) fn is_reference(&self) -> bool {
        let policy = self.row.policy.as_str();
        ["base", "base-6.4", "interrupts"].contains(&policy)
    }

    /// Whether the server is known, and is not napkin.
    fn is_another_server(&self) -> bool {
        self.row.server.as_deref().is_some_and(|server| server != "napkin")
    }

    pub(super) fn interrupted(&self) -> Option<f64> {
        self.row.figures.interrupted.filter(|_| !self.virtual_time)
    }

    fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(self.row.repetitions.iter().filter_map(|it| (figure.get)(&it.figures)))
    }

    pub(super) fn median(&self, figure: Figure) -> Option<f64> {
        (figure.get)(&self.row.figures).filter(|value| value.is_finite())
    }

    /// The median with its unit.
    pub(super) fn shown(&self, figure: Figure) -> String {
        self.median(figure).map(figure.show).unwrap_or_default()
    }

    /// The offered rate per second; `None` in a closed loop.
    pub(super) fn offered(&self) -> Option<f64> {
        self.row.figures.offered_per_s
    }

    /// The reason why the row's figure cannot be used at all.
    pub(super) fn doubt(&self, figure: Figure) -> Option<Inconclusive> {
        if let Some(share) = self.interrupted().filter(|share| *share > figure.tolerates) {
            return Some(Inconclusive::Interrupted(share));
        }
        let all = &self.row.repetitions;
        let known = all.iter().filter(|it| (figure.get)(&it.figures).is_some()).count();
        // A p99 that too many unanswered requests may exceed is such a figure, in virtual time as well.
        if known != 0 && known != all.len() {
            return Some(Inconclusive::Partly(format!("{} of {}", figure.name, self.name())));
        }
        (!self.virtual_time && all.len() < 2).then_some(Inconclusive::Once)
    }

    /// Whether the figure can be compared between these rows; CPU over a veth cannot if one is the reference.
    pub(super) fn is_comparable(&self, figure: Figure, other: &Evidence<'_>) -> bool {
        let elsewhere = |it: &Evidence<'_>| it.over_veth && it.is_reference();
        figure.name != CPU.name || !(elsewhere(self) || elsewhere(other))
    }

    /// Compares the figure with that of another row; returns the order and the quotient of the medians. `None` if a
    /// row lacks the figure, or if it is CPU over a veth and one row is the reference.
    pub(super) fn compare(
        &self,
        figure: Figure,
        other: &Evidence<'_>,
    ) -> Option<Result<(Order, f64), Inconclusive>> {
        if !self.is_comparable(figure, other) {
            return None;
        }
        let (one, two) = (self.spread(figure)?, other.spread(figure)?);
        if let Some(doubt) =
            [self, other].into_iter().filter_map(|it| it.doubt(figure)).reduce(worse)
        {
            return Some(Err(doubt));
        }
        // Two zeros have no quotient, and are alike.
        let by = |a: f64, b: f64| if a == b { 1.0 } else { a / b };
        let quotient = by(one.median, two.median);
        let furthest = by(one.max.max(two.max), one.min.min(two.min));
        let alike = quotient < ALIKE && quotient > 1.0 / ALIKE;
        if alike && furthest <= CLOSE {
            return Some(Ok((Order::Alike, quotient)));
        }
        if one.max < two.min {
            return Some(Ok((if alike { Order::Alike } else { Order::Less }, quotient)));
        }
        if one.min > two.max {
            return Some(Ok((if alike { Order::Alike } else { Order::More }, quotient)));
        }
        let wide = |spread: &Spread| by(spread.max, spread.min);
        let (name, spread) =
            if wide(&one) >= wide(&two) { (self.name(), one) } else { (other.name(), two) };
        let (least, most) = ((figure.show)(spread.min), (figure.show)(spread.max));
        Some(Err(Inconclusive::Apart(format!("{} of {name} {least} to {most}", figure.name))))
    }
}

/// The more important of two doubts: the longer interruption.
pub(super) fn worse(one: Inconclusive, other: Inconclusive) -> Inconclusive {
    match (&one, &other) {
        (Inconclusive::Interrupted(a), Inconclusive::Interrupted(b)) if b > a => other,
        (Inconclusive::Interrupted(_), _) => one,
        (_, Inconclusive::Interrupted(_)) => other,
        _ => one,
    }
}

/// The rows under one load, in the report's order.
pub(super) struct Group<'a> {
    /// The load in words, if there are several.
    pub(super) load: Option<String>,
    pub(super) rows: Vec<Evidence<'a>>,
}

impl<'a> Group<'a> {
    /// The groups of a report, without rows that were not measured.
    pub(super) fn all(report: &'a Report) -> Vec<Group<'a>> {
        let [virtual_time, over_veth] = ["machine", "linux"].map(|world| report.world == world);
        let mut groups: Vec<(&Row, Vec<Evidence<'_>>)> = Vec::new();
        for row in report.rows.iter().filter(|row| !row.repetitions.is_empty()) {
            let evidence = Evidence { row, virtual_time, over_veth };
            match groups.iter_mut().find(|(first, _)| first.load == row.load) {
                Some((_, rows)) => rows.push(evidence),
                None => groups.push((row, vec![evidence])),
            }
        }
        let loads: Vec<&Row> = groups.iter().map(|(first, _)| *first).collect();
        let words = |row: &Row| (loads.len() > 1).then(|| in_words(row, &loads));
        groups
            .iter()
            .map(|(first, rows)| Group { load: words(first), rows: rows.clone() })
            .collect()
    }

    /// ` at requests/s 600000`, or nothing if there is only one load.
    pub(super) fn at(&self) -> String {
        self.load.as_ref().map(|load| format!(" at {load}")).unwrap_or_default()
    }

    /// The row to compare with: Linux's default, or else the first row. With several servers, the default policy of
    /// the last server that is not napkin, if there is one.
    pub(super) fn reference(&self) -> Option<Evidence<'a>> {
        let linux = self.rows.iter().rfind(|row| row.is_reference() && row.is_another_server());
        linux.or(self.rows.iter().find(|row| row.is_reference())).or(self.rows.first()).copied()
    }

    /// The offered rate per second under this load; `None` in a closed loop.
    pub(super) fn offered(&self) -> Option<f64> {
        let offered: Option<Vec<f64>> = self.rows.iter().map(Evidence::offered).collect();
        offered?.into_iter().reduce(f64::max)
    }

    /// The rows whose figure is usable, the worst doubt about the others, and the others' names.
    pub(super) fn usable(
        &self,
        figure: Figure,
    ) -> (Vec<Evidence<'a>>, Option<Inconclusive>, Vec<&'a str>) {
        let rows = self.rows.iter().copied().filter(|row| row.median(figure).is_some());
        let (mut sound, mut doubt, mut left_out) = (Vec::new(), None, Vec::new());
        for row in rows {
            match row.doubt(figure) {
                None => sound.push(row),
                Some(new) => {
                    left_out.push(row.name());
                    doubt = doubt.into_iter().chain([new]).reduce(worse);
                }
            }
        }
        (sound, doubt, left_out)
    }
}

/// A load in words: the columns in which loads differ, with their values.
fn in_words(row: &Row, all: &[&Row]) -> String {
    let differs = |key: &&String| all.iter().any(|it| it.load.get(*key) != row.load.get(*key));
    let keys = row.load.keys().filter(differs);
    let words = keys.filter_map(|key| {
        let column = Column::of_load(key)?;
        let value = serde_json::json!({ "load": row.load });
        Some(format!("{} {}", column.name, column.cell(&value)))
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The row with the smallest figure.
pub(super) fn least<'a>(rows: &[Evidence<'a>], figure: Figure) -> Option<Evidence<'a>> {
    let known = rows.iter().filter_map(|row| Some((row.median(figure)?, *row)));
    known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|it| it.1)
}

/// The row with the largest figure.
pub(super) fn most<'a>(rows: &[Evidence<'a>], figure: Figure) -> Option<Evidence<'a>> {
    let known = rows.iter().filter_map(|row| Some((row.median(figure)?, *row)));
    // If several are equal, the first.
    known.rev().max_by(|a, b| a.0.total_cmp(&b.0)).map(|it| it.1)
}

/// Rows with given figures, for tests.
#[cfg(test)]
pub(crate) mod fixed {
    use serde_json::{Map, Value};

    use crate::report::{Measurement, Repetition, Report, Row};
    use crate::{CpuSplit, Host, Latency};

    /// A builder of rows.
    #[derive(Debug, Clone)]
    pub(crate) struct Fixed {
        name: String,
        load: Map<String, Value>,
        repetitions: Vec<Measurement>,
    }

    impl Fixed {
        pub(crate) fn new(name: &str) -> Fixed {
            Fixed {
                name: name.into(),
                load: Map::new(),
                repetitions: vec![Measurement::default(); 3],
            }
        }

        fn each(mut self, values: &[f64], set: impl Fn(&mut Measurement, f64)) -> Fixed {
            self.repetitions.truncate(values.len());
            self.repetitions
                .iter_mut()
                .zip(values)
                .for_each(|(figures, value)| set(figures, *value));
            self
        }

        pub(crate) fn load(mut self, key: &str, value: Value) -> Fixed {
            self.load = Map::from_iter([(key.to_owned(), value)]);
            self
        }

        pub(crate) fn offered(self, value: f64) -> Fixed {
            self.each(&[value; 3], |it, value| it.offered_per_s = Some(value))
        }

        pub(crate) fn served(self, values: &[f64]) -> Fixed {
            self.each(values, |it, value| it.achieved_per_s = Some(value))
        }

        pub(crate) fn p50(self, values: &[f64]) -> Fixed {
            self.each(values, |it, value| {
                let mut latency = Latency::new();
                // Enough samples for a p99.
                (0..1_000).for_each(|_| latency.record(value as u64));
                it.latency_ns = latency.summary(0);
                // The exact value, not the histogram's bucket.
                it.latency_ns.iter_mut().for_each(|latency| latency.at.p50 = Some(value as u64));
            })
        }

        pub(crate) fn p99(self, values: &[f64]) -> Fixed {
            self.each(values, |it, value| {
                let latency = it.latency_ns.as_mut().expect("p50 before");
                latency.at.p99 = Some(value as u64);
            })
        }

        /// Leaves so many per cent of the requests unanswered in the last repetition.
        pub(crate) fn unanswered_last(mut self, percent: u64) -> Fixed {
            if let Some(figures) = self.repetitions.last_mut() {
                figures.set_due(1_000, 1_000 - 10 * percent);
            }
            self
        }

        pub(crate) fn cpu(self, values: &[f64]) -> Fixed {
            let split = |work| CpuSplit { work, poll: 0.0, waiting: 0.0, asleep: 1.0 - work };
            self.each(values, |it, value| it.cpu = Some(split(value)))
        }

        pub(crate) fn interrupts(self, values: &[f64]) -> Fixed {
            self.each(values, |it, value| it.interrupts_per_packet = Some(value))
        }

        pub(crate) fn interrupted(self, share: f64) -> Fixed {
            self.each(&[share; 3], |it, value| it.interrupted = Some(value))
        }

        pub(crate) fn row(self) -> Row {
            // A repetition without any figure counts as not run.
            let measured = self.repetitions.into_iter().filter(|it| *it != Measurement::default());
            let repetitions = measured
                .enumerate()
                .map(|(step, figures)| Repetition { step: step as u64, figures });
            Row::from_repetitions(self.name, self.load, repetitions.collect(), Vec::new())
        }
    }

    pub(crate) fn report(workload: &str, world: &str, rows: Vec<Row>) -> Report {
        Report {
            workload: workload.into(),
            world: world.into(),
            host: Host::default(),
            conclusion: None,
            rows,
            notes: Vec::new(),
            extra: Map::new(),
        }
    }
}
