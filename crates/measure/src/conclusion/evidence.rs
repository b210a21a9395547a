//! When figures of two rows may be compared, and how they compare.
//!
//! On a real host two things speak against it: that the host [interrupted](crate::Interruption)
//! a run for longer than the figure bears, and that the repetitions of the rows overlap. In the machine
//! time is virtual and nobody interrupts; there the repetitions are seeds. In linux nobody's CPU is compared
//! with the reference's: a veth has most of that on the sender's CPU.

use serde_json::{Map, Value};

use crate::Spread;
use crate::report::text::{percent, rate, ratio, time};
use crate::report::{Column, Measurement, Report, Row};

/// Medians that differ by less are alike ...
const ALIKE: f64 = 1.25;

/// ... if no two repetitions lie further apart than this.
const TOGETHER: f64 = 1.5;

/// A figure by which rows are compared.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    /// Its name in a sentence.
    pub(super) name: &'static str,
    get: fn(&Measurement) -> Option<f64>,
    /// The longest that a host may interrupt a run before the figure is the host's, as a share of the
    /// time.
    pub(super) bears: f64,
    show: fn(f64) -> String,
}

/// One in a hundred requests is in it, and so is whatever takes a hundredth of the time, or two, since
/// ticks tell no better.
pub(super) const P99: Figure = Figure {
    name: "p99",
    get: |figures| figures.latency_ns?.at.p99.map(|ns| ns as f64),
    bears: 0.02,
    show: time,
};

/// One in a thousand: as the p99, but sooner.
pub(super) const P999: Figure = Figure {
    name: "p99.9",
    get: |figures| figures.latency_ns?.at.p999.map(|ns| ns as f64),
    bears: 0.005,
    show: time,
};

/// Bears more, but not all that is below a half: queues outlast what made them.
pub(super) const P50: Figure = Figure {
    name: "p50",
    get: |figures| figures.latency_ns?.at.p50.map(|ns| ns as f64),
    bears: 0.1,
    show: time,
};

/// What of the serving CPUs ran.
pub(super) const CPU: Figure =
    Figure { name: "CPU", get: Measurement::cpu_busy, bears: 0.1, show: percent };

/// Replies, answers or received datagrams a second.
pub(super) const RATE: Figure =
    Figure { name: "rate", get: |figures| figures.achieved_per_s, bears: 0.1, show: rate };

/// Receive interrupts a packet: a quotient of counts, which an interruption stretches alike.
pub(super) const INTERRUPTS: Figure = Figure {
    name: "interrupts a packet",
    get: |figures| figures.interrupts_per_packet,
    bears: 1.0,
    show: |value| if value == 0.0 { "no".to_owned() } else { ratio(value) },
};

/// How a row stands to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Its figure is clearly smaller.
    Less,
    /// The figures are alike.
    Alike,
    /// It is clearly larger.
    More,
}

/// Why nothing can be told.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Inconclusive {
    /// A run was interrupted, for this share of the time.
    Interrupted(f64),
    /// Some repetitions of a row do not tell the figure: mostly those in which it is worst.
    Partly(String),
    /// The repetitions of a row lie too far apart.
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

/// What is said of an interruption.
pub(super) fn interrupted(share: f64) -> String {
    format!("this host interrupted it for {:.0} % of the time", share * 100.0)
}

/// The sentence that is none.
pub(super) fn cannot_tell(doubt: &Inconclusive) -> String {
    format!("cannot tell: {doubt}")
}

/// A row, as evidence.
#[derive(Clone, Copy)]
pub(super) struct Witness<'a> {
    row: &'a Row,
    /// In virtual time nobody interrupts, and a single run is not chance.
    virtual_time: bool,
    /// Over a veth the reference is served on the sender's CPU, mostly.
    over_veth: bool,
}

impl<'a> Witness<'a> {
    pub(super) fn name(&self) -> &'a str {
        &self.row.name
    }

    pub(super) fn load(&self) -> &'a Map<String, Value> {
        &self.row.load
    }

    /// Whether it is what Linux does without being told.
    pub(super) fn is_reference(&self) -> bool {
        let policy = self.row.policy.as_str();
        ["base", "base-6.4", "interrupts"].contains(&policy)
    }

    /// Whether it is known who served, and it was not napkin.
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

    /// The median as it is shown.
    pub(super) fn shown(&self, figure: Figure) -> String {
        self.median(figure).map(figure.show).unwrap_or_default()
    }

    /// What was asked of it a second; `None` in a closed loop.
    pub(super) fn offered(&self) -> Option<f64> {
        self.row.figures.offered_per_s
    }

    /// Why a figure of this row says nothing, by itself.
    pub(super) fn doubt(&self, figure: Figure) -> Option<Inconclusive> {
        if let Some(share) = self.interrupted().filter(|share| *share > figure.bears) {
            return Some(Inconclusive::Interrupted(share));
        }
        let all = &self.row.repetitions;
        let known = all.iter().filter(|it| (figure.get)(&it.figures).is_some()).count();
        // A p99 that too many requests without an answer may exceed is such a figure, in whatever time.
        if known != 0 && known != all.len() {
            return Some(Inconclusive::Partly(format!("{} of {}", figure.name, self.name())));
        }
        (!self.virtual_time && all.len() < 2).then_some(Inconclusive::Once)
    }

    /// Whether both rows have all of a figure: over a veth the reference does not of its CPU.
    pub(super) fn has_beside(&self, figure: Figure, other: &Witness<'_>) -> bool {
        let elsewhere = |it: &Witness<'_>| it.over_veth && it.is_reference();
        figure.name != CPU.name || !(elsewhere(self) || elsewhere(other))
    }

    /// How this row's figure stands to another's, with the quotient of the medians. `None` if one of them
    /// does not have it, or, of CPU over a veth, not all of it.
    pub(super) fn compare(
        &self,
        figure: Figure,
        other: &Witness<'_>,
    ) -> Option<Result<(Order, f64), Inconclusive>> {
        if !self.has_beside(figure, other) {
            return None;
        }
        let (one, two) = (self.spread(figure)?, other.spread(figure)?);
        if let Some(doubt) =
            [self, other].into_iter().filter_map(|it| it.doubt(figure)).reduce(worse)
        {
            return Some(Err(doubt));
        }
        // Of two zeros there is no quotient, and no difference.
        let by = |a: f64, b: f64| if a == b { 1.0 } else { a / b };
        let quotient = by(one.median, two.median);
        let furthest = by(one.max.max(two.max), one.min.min(two.min));
        let alike = quotient < ALIKE && quotient > 1.0 / ALIKE;
        if alike && furthest <= TOGETHER {
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

/// The doubt that is told of two: the longer interruption.
pub(super) fn worse(one: Inconclusive, other: Inconclusive) -> Inconclusive {
    match (&one, &other) {
        (Inconclusive::Interrupted(a), Inconclusive::Interrupted(b)) if b > a => other,
        (Inconclusive::Interrupted(_), _) => one,
        (_, Inconclusive::Interrupted(_)) => other,
        _ => one,
    }
}

/// The rows under one load, in their order.
pub(super) struct Group<'a> {
    /// The load in words, if there is more than one.
    pub(super) load: Option<String>,
    pub(super) rows: Vec<Witness<'a>>,
}

impl<'a> Group<'a> {
    /// The groups of a report, without rows of which nothing was measured.
    pub(super) fn all(report: &'a Report) -> Vec<Group<'a>> {
        let [virtual_time, over_veth] = ["machine", "linux"].map(|world| report.world == world);
        let mut groups: Vec<(&Row, Vec<Witness<'_>>)> = Vec::new();
        for row in report.rows.iter().filter(|row| !row.repetitions.is_empty()) {
            let witness = Witness { row, virtual_time, over_veth };
            match groups.iter_mut().find(|(first, _)| first.load == row.load) {
                Some((_, rows)) => rows.push(witness),
                None => groups.push((row, vec![witness])),
            }
        }
        let loads: Vec<&Row> = groups.iter().map(|(first, _)| *first).collect();
        let words = |row: &Row| (loads.len() > 1).then(|| in_words(row, &loads));
        groups
            .iter()
            .map(|(first, rows)| Group { load: words(first), rows: rows.clone() })
            .collect()
    }

    /// ` at requests/s 600000`, or nothing where there is one load.
    pub(super) fn at(&self) -> String {
        self.load.as_ref().map(|load| format!(" at {load}")).unwrap_or_default()
    }

    /// What others are compared with: what Linux does without being told, or the first. Of several
    /// servers the last that is not napkin: a program of others, if there is one.
    pub(super) fn reference(&self) -> Option<Witness<'a>> {
        let linux = self.rows.iter().rfind(|row| row.is_reference() && row.is_another_server());
        linux.or(self.rows.iter().find(|row| row.is_reference())).or(self.rows.first()).copied()
    }

    /// What is offered a second under this load; `None` in a closed loop.
    pub(super) fn offered(&self) -> Option<f64> {
        let offered: Option<Vec<f64>> = self.rows.iter().map(Witness::offered).collect();
        offered?.into_iter().reduce(f64::max)
    }

    /// The rows that have a figure and may be believed in it, and the doubt about the others.
    pub(super) fn sound(
        &self,
        figure: Figure,
    ) -> (Vec<Witness<'a>>, Option<Inconclusive>, Vec<&'a str>) {
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

/// What tells a load from the others: columns and their values.
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

/// The row with the least of a figure.
pub(super) fn least<'a>(rows: &[Witness<'a>], figure: Figure) -> Option<Witness<'a>> {
    let known = rows.iter().filter_map(|row| Some((row.median(figure)?, *row)));
    known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|it| it.1)
}

/// The row with the most of a figure.
pub(super) fn most<'a>(rows: &[Witness<'a>], figure: Figure) -> Option<Witness<'a>> {
    let known = rows.iter().filter_map(|row| Some((row.median(figure)?, *row)));
    // Of two with the same, the first.
    known.rev().max_by(|a, b| a.0.total_cmp(&b.0)).map(|it| it.1)
}

/// Rows of fixed figures, for tests.
#[cfg(test)]
pub(crate) mod fixed {
    use serde_json::{Map, Value};

    use crate::report::{Measurement, Repetition, Report, Row};
    use crate::{CpuSplit, Host, Latency};

    /// A row in the making.
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
                // As many as a p99 takes.
                (0..1_000).for_each(|_| latency.record(value as u64));
                it.latency_ns = latency.summary(0);
                // As it was given, and not as a histogram keeps it.
                it.latency_ns.iter_mut().for_each(|latency| latency.at.p50 = Some(value as u64));
            })
        }

        pub(crate) fn p99(self, values: &[f64]) -> Fixed {
            self.each(values, |it, value| {
                let latency = it.latency_ns.as_mut().expect("p50 before");
                latency.at.p99 = Some(value as u64);
            })
        }

        /// In the last repetition so many percent of the requests had no answer.
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
            // A run of which nothing is known was not made.
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
