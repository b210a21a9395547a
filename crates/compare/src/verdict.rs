//! What to take, in a sentence, and how sure that is.
//!
//! Each policy is set against the reference round by round ([`Ratio`]); a difference is one that the
//! interval of its ratio shows. Latency decides; CPU is told beside it, and decides where latency does not
//! differ. Whoever answers less has less to do: where answers differ that is said as well, with the CPU of each.
//! Where slices have too few requests for a percentile, or it shows no difference at all, the next lower one that all
//! have is taken: a tail needs many more requests to show what the median shows in seconds.

use napkin_kernel::count::latency::Part;
use napkin_measure::paired::{Ratio, WANTED, fewest_rounds};
use napkin_measure::report::text::time;
use serde::Serialize;

use crate::report::{Report, Row};
use crate::window::Slice;

/// By what policies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The user's own number; less is better.
    MeasuredLow,
    /// The user's own number; more is better.
    MeasuredHigh,
    /// The 99th percentile of the server's own latency, as a whole.
    P99,
    /// The 90th, where a slice has too few requests for the 99th, or that shows no difference.
    P90,
    /// The median, where the same is so of the 90th.
    P50,
}

impl Quantity {
    fn of(self, slice: &Slice) -> Option<f64> {
        match self {
            Quantity::MeasuredLow | Quantity::MeasuredHigh => slice.measured,
            Quantity::P99 => slice.whole().p99,
            Quantity::P90 => slice.whole().p90,
            Quantity::P50 => slice.whole().p50,
        }
    }

    /// Its name in a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Quantity::MeasuredLow | Quantity::MeasuredHigh => "the measure",
            Quantity::P99 => "p99 of the server's part",
            Quantity::P90 => "p90 of the server's part",
            Quantity::P50 => "p50 of the server's part",
        }
    }

    const fn is_better(self, ratio: &Ratio) -> bool {
        matches!(self, Quantity::MeasuredHigh) == (ratio.median > 1.0)
    }
}

/// A policy beside the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The policy, by the name that was given.
    pub policy: String,
    /// By the verdict's quantity.
    pub ratio: Option<Ratio>,
    /// By all of its CPU.
    pub cpu: Option<Ratio>,
    /// By its answers a second.
    pub answers: Option<Ratio>,
    /// By its CPU of each answer.
    pub cpu_per_answer: Option<Ratio>,
}

/// What a comparison shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What is to be made of it, in a sentence: which policy, and by how much.
    pub sentence: String,
    /// By what it was found; `None` if nothing could be.
    pub quantity: Option<Quantity>,
    /// Each policy beside the first, in their order.
    pub compared: Vec<Compared>,
    /// In how many intervals a difference was looked for, each of which misses with its own small chance: one of each
    /// policy, in each quantity up to this one.
    pub searched: usize,
    /// Why it says less than it might.
    pub notes: Vec<String>,
}

/// The ratio of a figure to the reference's of the same round.
fn ratio(row: &Row, reference: &Row, of: impl Fn(&Slice) -> Option<f64>) -> Option<Ratio> {
    Ratio::of(row.counted().filter_map(|slice| {
        let same = reference.counted().find(|it| it.round == slice.round)?;
        Some((of(slice)?, of(same)?))
    }))
}

/// The quantities that every slice of these rows has, the best first.
fn quantities(report: &Report, rows: &[&Row]) -> Vec<Quantity> {
    let known =
        |it: &Quantity| rows.iter().all(|row| row.counted().all(|slice| it.of(slice).is_some()));
    match report.higher {
        Some(true) => vec![Quantity::MeasuredHigh],
        Some(false) => vec![Quantity::MeasuredLow],
        None => [Quantity::P99, Quantity::P90, Quantity::P50].into_iter().filter(known).collect(),
    }
}

/// Says what a report shows.
pub fn verdict(report: &Report) -> Verdict {
    let cannot = |why: &str| Verdict {
        sentence: format!("cannot tell: {why}"),
        quantity: None,
        compared: Vec::new(),
        searched: 0,
        notes: Vec::new(),
    };
    let Some((reference, others)) = report.rows.split_first() else {
        return cannot("no policy ran");
    };
    // One that broke the guard is none to go on with, however good it was in the rounds before.
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
    let differs = |it: &Compared| it.ratio.is_some_and(|it| it.is_less() || it.is_more());
    let mut tried = known.iter().map(|quantity| (*quantity, by(*quantity)));
    let found = tried.find(|(_, compared)| compared.iter().any(differs));
    let place = |it: &Quantity| known.iter().take_while(|other| *other != it).count();
    let quantities = found.as_ref().map_or(known.len(), |(quantity, _)| place(quantity) + 1);
    let searched = quantities * others.len();
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
    notes.extend(overloaded(reference));
    notes.extend(chance);
    let mut sentence = sentence(report, reference, quantity, &compared);
    if quantity != highest {
        let above = known.iter().take_while(|it| **it != quantity).map(|it| short(*it));
        let above = above.collect::<Vec<_>>().join(" and ");
        sentence = format!("no difference in {above} was shown; {sentence}");
    }
    Verdict { sentence, quantity: Some(quantity), compared, searched, notes }
}

/// That a difference was looked for in several intervals, and how likely one of them misses: the sentence gives the
/// chance of each alone.
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

/// That requests mostly wait for the program itself, if they do under the reference: how packets reach it changes
/// little of that.
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

/// What it answered beside the reference, where that differs.
fn at_answers(compared: &Compared) -> String {
    let Some(answers) = compared.answers.filter(|it| it.is_less() || it.is_more()) else {
        return String::new();
    };
    let but = if answers.is_less() { "but " } else { "" };
    let answers = shown_of(&answers, "its answers");
    let cpu = compared.cpu_per_answer.map(|cpu| shown_of(&cpu, "its CPU per answer"));
    format!(", {but}with {answers}{}", cpu.map_or_else(String::new, |cpu| format!(", at {cpu}")))
}

fn sentence(report: &Report, reference: &Row, quantity: Quantity, compared: &[Compared]) -> String {
    let base = &reference.name;
    let seconds: f64 = reference.counted().map(|slice| slice.seconds).sum();
    let what = quantity.words();
    let rounds = compared.iter().filter_map(|it| Some(it.ratio?.rounds)).max().unwrap_or(0);
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
    let told = |it: &&Compared| it.ratio.is_some_and(|ratio| ratio.is_less() || ratio.is_more());
    let good = |it: &&Compared| it.ratio.is_some_and(|ratio| quantity.is_better(&ratio));
    let gain = |it: &Compared| {
        let median = it.ratio.map_or(1.0, |ratio| ratio.median);
        if quantity == Quantity::MeasuredHigh { 1.0 / median } else { median }
    };
    let mut better: Vec<&Compared> = compared.iter().filter(told).filter(good).collect();
    better.sort_by(|one, other| gain(one).total_cmp(&gain(other)));
    let best = better.first().copied();
    match best {
        Some(best) => {
            let ratio = best.ratio.as_ref();
            let ratio = ratio.map_or_else(String::new, |ratio| shown_of(ratio, base));
            let (cpu, answers) = (at_cpu(best), at_answers(best));
            clauses.push(format!("{}: {what} {ratio}{cpu}{answers}", best.policy));
        }
        None => {
            let worse: Vec<&Compared> = compared.iter().filter(told).collect();
            let shown = |it: &&Compared| {
                let ratio = shown(it.ratio.as_ref()?);
                Some(format!("{} {ratio}{}", it.policy, at_answers(it)))
            };
            if worse.is_empty() {
                let all: Vec<String> =
                    compared.iter().collect::<Vec<_>>().iter().filter_map(shown).collect();
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
    // Those that save CPU, the most first.
    let mut cheaper: Vec<&Compared> = compared
        .iter()
        .filter(|it| best.is_none_or(|best| best.policy != it.policy))
        .filter(|it| it.cpu.is_some_and(|cpu| cpu.is_less()))
        .filter(|it| best.is_none_or(|best| cpu_of(it) < cpu_of(best)))
        .collect();
    cheaper.sort_by(|one, other| cpu_of(one).total_cmp(&cpu_of(other)));
    for it in cheaper.iter().take(2) {
        let (Some(cpu), Some(ratio)) = (&it.cpu, &it.ratio) else { continue };
        let latency = match ratio.is_less() || ratio.is_more() {
            true => format!("at {:.2} of its {}", ratio.median, short(quantity)),
            false => format!("and its {} may be the same ({:.2})", short(quantity), ratio.median),
        };
        let (cpu, answers) = (shown_of(cpu, base), at_answers(it));
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
