//! The verdict: a sentence on which policy to use, and how certain that is.
//!
//! Each policy is compared with the reference round by round ([`Ratio`]); a difference counts if the interval of
//! its ratio excludes 1. Latency decides; CPU use is stated beside it, and policies that cost less CPU are named. A
//! policy that answers less has less to do: the requests that it leaves wait where the server's side does not see
//! them, so its latency means little. It is never the best; and if a policy answers more than the reference, or
//! every one answers less, the answers decide. If slices have too few requests for a percentile, or it shows no
//! difference at all, the next lower percentile that all slices have is used: a tail needs many more requests to
//! show what the median shows in seconds.

use napkin_kernel::count::latency::Part;
use napkin_measure::paired::{Ratio, WANTED, fewest_rounds};
use napkin_measure::report::text::time;
use serde::Serialize;

use crate::report::{Report, Row};
use crate::window::Slice;

/// The quantity by which policies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The user's own number; less is better.
    MeasuredLow,
    /// The user's own number; more is better.
    MeasuredHigh,
    /// Answers per second, if not all policies answer as much as the reference; more is better.
    Answers,
    /// The 99th percentile of the server's own latency.
    P99,
    /// The 90th percentile, if a slice has too few requests for the 99th, or that shows no difference.
    P90,
    /// The median, if the same is true of the 90th percentile.
    P50,
}

impl Quantity {
    fn of(self, slice: &Slice) -> Option<f64> {
        match self {
            Quantity::MeasuredLow | Quantity::MeasuredHigh => slice.measured,
            Quantity::Answers => slice.answers_per_s,
            Quantity::P99 => slice.whole().p99,
            Quantity::P90 => slice.whole().p90,
            Quantity::P50 => slice.whole().p50,
        }
    }

    /// Its name in a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Quantity::MeasuredLow | Quantity::MeasuredHigh => "the measure",
            Quantity::Answers => "answers a second",
            Quantity::P99 => "p99 of the server's part",
            Quantity::P90 => "p90 of the server's part",
            Quantity::P50 => "p50 of the server's part",
        }
    }

    /// Whether more is better.
    const fn is_high(self) -> bool {
        matches!(self, Quantity::MeasuredHigh | Quantity::Answers)
    }

    const fn is_better(self, ratio: &Ratio) -> bool {
        self.is_high() == (ratio.median > 1.0)
    }

    /// Whether it covers only the requests that the service took.
    const fn is_latency(self) -> bool {
        matches!(self, Quantity::P99 | Quantity::P90 | Quantity::P50)
    }
}

/// Rates of answers within this fraction of each other count as the same load.
const ONE_LOAD: f64 = 0.05;

/// One policy compared with the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The policy, by the name that was given.
    pub policy: String,
    /// Ratio of the verdict's quantity.
    pub ratio: Option<Ratio>,
    /// Ratio of the total CPU use.
    pub cpu: Option<Ratio>,
    /// Ratio of the answers per second.
    pub answers: Option<Ratio>,
    /// Ratio of the CPU use per answer.
    pub cpu_per_answer: Option<Ratio>,
}

impl Compared {
    fn differs(&self) -> bool {
        self.ratio.is_some_and(|it| it.is_less() || it.is_more())
    }

    fn answers_less(&self) -> bool {
        self.answers.is_some_and(|it| it.is_less() && it.median < 1.0 - ONE_LOAD)
    }

    fn answers_more(&self) -> bool {
        self.answers.is_some_and(|it| it.is_more() && it.median > 1.0 + ONE_LOAD)
    }

    /// Whether its figure is comparable with the reference's.
    fn counts(&self, quantity: Quantity) -> bool {
        !(quantity.is_latency() && self.answers_less())
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The recommendation as a sentence: which policy, and by how much.
    pub sentence: String,
    /// The best policy, which is the reference if nothing is better; `None` if there is no verdict.
    pub best: Option<String>,
    /// The quantity by which it was found; `None` if there is no verdict.
    pub quantity: Option<Quantity>,
    /// Each policy compared with the reference, in their order.
    pub compared: Vec<Compared>,
    /// Number of intervals that were searched for a difference, each of which misses with its own small
    /// probability: one per policy for the answers and for each quantity up to the deciding one.
    pub searched: usize,
    /// Qualifications of the verdict.
    pub notes: Vec<String>,
}

/// The ratio of a figure to the reference's in the same round.
fn ratio(row: &Row, reference: &Row, of: impl Fn(&Slice) -> Option<f64>) -> Option<Ratio> {
    Ratio::of(row.counted().filter_map(|slice| {
        let same = reference.counted().find(|it| it.round == slice.round)?;
        Some((of(slice)?, of(same)?))
    }))
}

/// The quantities that every slice of these rows has, the highest percentile first.
fn quantities(report: &Report, rows: &[&Row]) -> Vec<Quantity> {
    let known =
        |it: &Quantity| rows.iter().all(|row| row.counted().all(|slice| it.of(slice).is_some()));
    match report.higher {
        Some(true) => vec![Quantity::MeasuredHigh],
        Some(false) => vec![Quantity::MeasuredLow],
        None => [Quantity::P99, Quantity::P90, Quantity::P50].into_iter().filter(known).collect(),
    }
}

/// Derives the verdict from a report.
pub fn verdict(report: &Report) -> Verdict {
    let cannot = |why: &str| Verdict {
        sentence: format!("cannot tell: {why}"),
        best: None,
        quantity: None,
        compared: Vec::new(),
        searched: 0,
        notes: Vec::new(),
    };
    let Some((reference, others)) = report.rows.split_first() else {
        return cannot("no policy ran");
    };
    // A policy that broke the guard is never recommended, however good its earlier rounds were.
    let stayed = |row: &&Row| row.out.is_none() && row.counted().next().is_some();
    let others: Vec<&Row> = others.iter().filter(stayed).collect();
    if reference.counted().next().is_none() || others.is_empty() {
        let why =
            report.rows.iter().find_map(|row| Some(format!("{}: {}", row.name, row.out.as_ref()?)));
        return cannot(&why.unwrap_or_else(|| "not two policies were measured".into()));
    }
    let all: Vec<&Row> = others.iter().copied().chain([reference]).collect();
    let known = quantities(report, &all);
    let Some(&highest) = known.first() else {
        return cannot(
            "there are slices with fewer than 20 requests that were timed: give a longer --slice",
        );
    };
    let by = |quantity: Quantity| -> Vec<Compared> {
        let compared = others.iter().map(|row| Compared {
            policy: row.name.clone(),
            ratio: ratio(row, reference, |slice| quantity.of(slice)),
            cpu: ratio(row, reference, |slice| Some(slice.cpu.all())),
            answers: ratio(row, reference, |slice| slice.answers_per_s),
            cpu_per_answer: ratio(row, reference, |slice| {
                Some(slice.cpu.all() / slice.answers_per_s?)
            }),
        });
        compared.collect()
    };
    let answers = Some(by(Quantity::Answers)).filter(|_| highest.is_latency());
    let known_answers = answers.iter().flatten().any(|it| it.answers.is_some());
    let decides = |all: &Vec<Compared>| {
        all.iter().any(Compared::answers_more) || all.iter().all(Compared::answers_less)
    };
    let mut searched = usize::from(known_answers) * others.len();
    let mut found = answers.filter(decides).map(|compared| (Quantity::Answers, compared));
    for quantity in &known {
        if found.is_none() {
            let compared = by(*quantity);
            searched += others.len();
            let differs = compared.iter().any(|it| it.counts(*quantity) && it.differs());
            found = differs.then_some((*quantity, compared));
        }
    }
    let chance = found.as_ref().and_then(|(_, compared)| by_chance(compared, searched));
    let (quantity, compared) = found.unwrap_or_else(|| (highest, by(highest)));
    let mut notes = Vec::new();
    if matches!(highest, Quantity::P90 | Quantity::P50) {
        let fewest =
            all.iter().flat_map(|row| row.counted()).map(|slice| slice.whole().count).min();
        let fewest = fewest.unwrap_or(0);
        let times = (1_000.0 / fewest.max(1) as f64).ceil();
        notes.push(format!(
            "slices are too short for p99: {fewest} requests were timed in one, which takes 1000; a \
             --slice {times:.0} times as long would have them"
        ));
    }
    if quantity == Quantity::Answers {
        notes.push(
            "not every policy takes all requests: what it leaves waits where the server's side does not see it, so \
             that p50 and p99 are of those that it took"
                .into(),
        );
    }
    notes.extend(overloaded(reference));
    notes.extend(chance);
    let best = best_of(quantity, &compared);
    let mut sentence = sentence(report, reference, quantity, &compared, best);
    let rounds_tell = compared.iter().any(|it| rounds_of(it) >= fewest_rounds());
    let best = rounds_tell.then(|| best.map_or(&reference.name, |it| &it.policy).clone());
    if quantity.is_latency() && quantity != highest {
        let above = known.iter().take_while(|it| **it != quantity).map(|it| short(*it));
        let above = above.collect::<Vec<_>>().join(" and ");
        sentence = format!("no difference in {above} was shown; {sentence}");
    }
    Verdict { sentence, best, quantity: Some(quantity), compared, searched, notes }
}

fn rounds_of(compared: &Compared) -> usize {
    compared.ratio.map_or(0, |it| it.rounds)
}

/// The best of the policies that are better than the reference, if any.
fn best_of(quantity: Quantity, compared: &[Compared]) -> Option<&Compared> {
    let better = |it: &&Compared| {
        let good = it.ratio.is_some_and(|ratio| quantity.is_better(&ratio));
        good && it.differs() && it.counts(quantity)
    };
    let gain = |it: &Compared| {
        let median = it.ratio.map_or(1.0, |ratio| ratio.median);
        if quantity.is_high() { 1.0 / median } else { median }
    };
    compared.iter().filter(better).min_by(|one, other| gain(one).total_cmp(&gain(other)))
}

/// A note on multiple intervals: how likely at least one of several misses, since the sentence gives the
/// probability of each alone.
fn by_chance(compared: &[Compared], searched: usize) -> Option<String> {
    let confidence = compared.iter().filter_map(|it| Some(it.ratio?.confidence));
    let least = confidence.min_by(f64::total_cmp).filter(|_| searched > 1)?;
    let missing = (searched as f64 * (1.0 - least)).min(1.0);
    Some(format!(
        "of {searched} intervals that were searched for a difference each holds its middle with {:.0} %: that at \
         least one does not has a chance of up to {:.0} %",
        least * 100.0,
        missing * 100.0
    ))
}

/// A note if most requests under the reference wait for the program itself, a wait that a policy changes little.
fn overloaded(reference: &Row) -> Option<String> {
    let p50 = |part: Part| reference.median(Row::part(part.name(), |it| it.p50));
    let [socket, service, whole] = [Part::Socket, Part::Service, Part::Whole].map(p50);
    let (socket, service, whole) = (socket?, service?, whole?);
    (socket > 0.8 * whole && socket > 4.0 * service).then(|| {
        format!(
            "under {} half of the requests wait {} or longer in their sockets for the program, which works on one \
             for {} (p50): it has about as much to do as it can. A policy changes little of that wait; fewer \
             requests or more threads do",
            reference.name,
            time(socket),
            time(service)
        )
    })
}

/// `0.41 (97 %: 0.36 to 0.47)`
fn shown(ratio: &Ratio) -> String {
    format!(
        "{:.2} ({:.0} %: {:.2} to {:.2})",
        ratio.median,
        ratio.confidence * 100.0,
        ratio.low,
        ratio.high
    )
}

/// `0.41 of base (97 %: 0.36 to 0.47)`
fn shown_of(ratio: &Ratio, of: &str) -> String {
    let text = shown(ratio);
    match text.split_once(' ') {
        Some((median, interval)) => format!("{median} of {of} {interval}"),
        None => text,
    }
}

fn at_cpu(compared: &Compared) -> String {
    match &compared.cpu {
        Some(cpu) if cpu.is_less() || cpu.is_more() => format!(" at {}", shown_of(cpu, "its CPU")),
        Some(cpu) => format!(" at {:.2} of its CPU, which may be the same", cpu.median),
        None => String::new(),
    }
}

/// The ratio of its answers to the reference's, if that differs and is not the verdict's quantity.
fn at_answers(compared: &Compared, quantity: Quantity) -> String {
    let Some(answers) = compared.answers.filter(|it| it.is_less() || it.is_more()) else {
        return String::new();
    };
    let cpu = at_cpu_per_answer(compared);
    if quantity == Quantity::Answers {
        return cpu;
    }
    let but = if answers.is_less() { "but " } else { "" };
    format!(", {but}with {}{cpu}", shown_of(&answers, "its answers"))
}

fn at_cpu_per_answer(compared: &Compared) -> String {
    let cpu = compared.cpu_per_answer.map(|cpu| shown_of(&cpu, "its CPU per answer"));
    cpu.map_or_else(String::new, |cpu| format!(", at {cpu}"))
}

fn sentence(
    report: &Report,
    reference: &Row,
    quantity: Quantity,
    compared: &[Compared],
    best: Option<&Compared>,
) -> String {
    let base = &reference.name;
    let seconds: f64 = reference.counted().map(|slice| slice.seconds).sum();
    let what = quantity.words();
    let rounds = compared.iter().map(rounds_of).max().unwrap_or(0);
    let mut clauses = Vec::new();
    if rounds < fewest_rounds() {
        let medians =
            compared.iter().filter_map(|it| Some(format!("{} {:.2}", it.policy, it.ratio?.median)));
        clauses.push(format!(
            "cannot tell: {rounds} whole rounds have no interval of {:.0} %, {} have ({what}, of {base}: {})",
            WANTED * 100.0,
            fewest_rounds(),
            medians.collect::<Vec<_>>().join(", ")
        ));
        return with_outs(report, clauses);
    }
    // A policy that answers less has a clause of its own, unless that is what makes it worse.
    let separate = quantity.is_latency() || quantity == Quantity::Answers && best.is_some();
    let (alike, less): (Vec<&Compared>, Vec<&Compared>) =
        compared.iter().partition(|it| !(separate && it.answers_less()));
    match best {
        Some(best) => {
            let ratio = best.ratio.as_ref();
            let ratio = ratio.map_or_else(String::new, |ratio| shown_of(ratio, base));
            let (cpu, answers) = (at_cpu(best), at_answers(best, quantity));
            clauses.push(format!("{}: {what} {ratio}{cpu}{answers}", best.policy));
        }
        None => {
            let worse: Vec<&Compared> = alike.iter().copied().filter(|it| it.differs()).collect();
            let shown = |it: &&Compared| {
                let ratio = shown(it.ratio.as_ref()?);
                Some(format!("{} {ratio}{}", it.policy, at_answers(it, quantity)))
            };
            if worse.is_empty() {
                let all: Vec<String> = alike.iter().filter_map(shown).collect();
                clauses.push(format!(
                    "no difference from {base} in {what} that {seconds:.0} s of each could show ({})",
                    all.join(", ")
                ));
            } else {
                let all: Vec<String> = worse.iter().filter_map(shown).collect();
                clauses.push(format!(
                    "{base}: nothing is better in {what}, and worse are {}",
                    all.join(", ")
                ));
            }
        }
    }
    for it in less {
        let answers = it.answers.map_or_else(String::new, |it| shown_of(&it, base));
        clauses.push(format!("{} answers less, {answers}{}", it.policy, at_cpu_per_answer(it)));
    }
    // Those that save CPU, the cheapest first.
    let mut cheaper: Vec<&Compared> = alike
        .into_iter()
        .filter(|it| best.is_none_or(|best| best.policy != it.policy))
        .filter(|it| it.cpu.is_some_and(|cpu| cpu.is_less()))
        .filter(|it| quantity != Quantity::Answers || !it.answers_less())
        .filter(|it| best.is_none_or(|best| cpu_of(it) < cpu_of(best)))
        .collect();
    cheaper.sort_by(|one, other| cpu_of(one).total_cmp(&cpu_of(other)));
    for it in cheaper.iter().take(2) {
        let (Some(cpu), Some(ratio)) = (&it.cpu, &it.ratio) else { continue };
        let latency = match ratio.is_less() || ratio.is_more() {
            true => format!("at {:.2} of its {}", ratio.median, short(quantity)),
            false => format!("and its {} may be the same ({:.2})", short(quantity), ratio.median),
        };
        let (cpu, answers) = (shown_of(cpu, base), at_answers(it, quantity));
        clauses.push(format!("{} costs less CPU, {cpu}, {latency}{answers}", it.policy));
    }
    with_outs(report, clauses)
}

fn cpu_of(compared: &Compared) -> f64 {
    compared.cpu.map_or(1.0, |cpu| cpu.median)
}

fn short(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::MeasuredLow | Quantity::MeasuredHigh => "measure",
        Quantity::Answers => "answers",
        Quantity::P99 => "p99",
        Quantity::P90 => "p90",
        Quantity::P50 => "p50",
    }
}

fn with_outs(report: &Report, mut clauses: Vec<String>) -> String {
    let outs = report
        .rows
        .iter()
        .filter_map(|row| Some(format!("{} is out: {}", row.name, row.out.as_ref()?)));
    clauses.extend(outs);
    clauses.join("; ")
}

#[cfg(test)]
mod tests;
