//! What to take, in a sentence, and how sure that is.
//!
//! Each policy is set against the reference round by round ([`Ratio`]); a difference is one that the
//! interval of its ratio shows. Latency decides; CPU is told beside it, and decides where latency does not
//! differ. Where slices have too few requests for a percentile, or it shows no difference at all, the next lower
//! one that all have is taken: a tail needs many more requests to show what the median shows in seconds.

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
        });
        compared.collect()
    };
    let differs = |it: &Compared| it.ratio.is_some_and(|it| it.is_less() || it.is_more());
    let mut tried = known.iter().map(|quantity| (*quantity, by(*quantity)));
    let (quantity, compared) = tried
        .find(|(_, compared)| compared.iter().any(differs))
        .unwrap_or_else(|| (highest, by(highest)));
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
    let mut sentence = sentence(report, reference, quantity, &compared);
    if quantity != highest {
        let above = known.iter().take_while(|it| **it != quantity).map(|it| short(*it));
        let above = above.collect::<Vec<_>>().join(" and ");
        sentence = format!("no difference in {above} was shown; {sentence}");
    }
    Verdict { sentence, quantity: Some(quantity), compared, notes }
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
            clauses.push(format!("{}: {what} {ratio}{}", best.policy, at_cpu(best)));
        }
        None => {
            let worse: Vec<&Compared> = compared.iter().filter(told).collect();
            let shown =
                |it: &&Compared| Some(format!("{} {}", it.policy, shown(it.ratio.as_ref()?)));
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
        clauses.push(format!("{} costs less CPU, {}, {latency}", it.policy, shown_of(cpu, base)));
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
mod tests {
    use super::*;
    use crate::window::Cpu;
    use napkin_kernel::count::latency::Percentiles;

    /// Rounds of (p99 in microseconds, CPUs).
    fn row(name: &str, rounds: &[(f64, f64)]) -> Row {
        let slice = |(round, (p99, cpu)): (usize, &(f64, f64))| {
            let at = |times: f64| Some(p99 * 1e3 * times);
            let whole = Percentiles {
                p50: at(0.3),
                p90: at(0.7),
                p99: at(1.0),
                count: 5_000,
                ..Percentiles::default()
            };
            Slice {
                round,
                seconds: 4.0,
                answers_per_s: Some(1e4),
                latency_ns: [("whole", whole)].into(),
                cpu: Cpu { application: *cpu, ..Cpu::default() },
                ..Slice::default()
            }
        };
        let slices = rounds.iter().enumerate().map(slice).collect();
        Row { slices, ..Row::new(name, &napkin_policy::Policy::BASE) }
    }

    fn report(rows: Vec<Row>) -> Report {
        Report { rows, ..Report::default() }
    }

    fn rounds(figures: [f64; 6], cpu: f64) -> Vec<(f64, f64)> {
        figures.iter().enumerate().map(|(place, it)| (*it, cpu + 0.001 * place as f64)).collect()
    }

    #[test]
    fn the_best_is_told_with_its_uncertainty_and_who_is_cheaper() {
        let told = verdict(&report(vec![
            row("base", &rounds([100.0, 110.0, 90.0, 100.0, 105.0, 95.0], 1.0)),
            row("suspend20", &rounds([40.0, 44.0, 39.0, 41.0, 43.0, 37.0], 1.1)),
            row("defer200", &rounds([300.0, 310.0, 290.0, 300.0, 305.0, 295.0], 0.5)),
        ]));
        assert_eq!(
            told.sentence,
            "suspend20: p99 of the server's part 0.40 of base (97 %: 0.39 to 0.43) at 1.10 of its CPU (97 %: \
             1.10 to 1.10); defer200 costs less CPU, 0.50 of base (97 %: 0.50 to 0.50), at 3.00 of its p99"
        );
        assert_eq!(told.notes, [""; 0]);
    }

    #[test]
    fn what_differs_in_both_directions_is_no_difference() {
        let told = verdict(&report(vec![
            row("base", &rounds([100.0; 6], 1.0)),
            row("defer20", &rounds([90.0, 110.0, 99.0, 101.0, 95.0, 105.0], 1.0)),
        ]));
        assert_eq!(
            told.sentence,
            "no difference from base in p99 of the server's part that 24 s of each could show (defer20 1.00 \
             (97 %: 0.90 to 1.10))"
        );
    }

    #[test]
    fn where_the_tail_shows_nothing_the_median_may() {
        let mut rows = vec![
            row("base", &rounds([100.0, 300.0, 100.0, 300.0, 100.0, 300.0], 1.0)),
            row("threaded", &rounds([300.0, 100.0, 300.0, 100.0, 300.0, 100.0], 1.0)),
        ];
        for (row, p50) in rows.iter_mut().zip([30e3, 15e3]) {
            let whole = row.slices.iter_mut().filter_map(|it| it.latency_ns.get_mut("whole"));
            whole.for_each(|it| it.p50 = Some(p50));
        }
        let told = verdict(&report(rows));
        assert_eq!(
            told.sentence,
            "no difference in p99 and p90 was shown; threaded: p50 of the server's part 0.50 of base (97 %: \
             0.50 to 0.50) at 1.00 of its CPU, which may be the same"
        );
        assert_eq!((told.quantity, told.notes), (Some(Quantity::P50), vec![]));
    }

    #[test]
    fn a_program_that_has_more_to_do_than_it_can_is_named_as_what_requests_wait_for() {
        let parts = |socket: f64, service: f64| {
            let mut rows = vec![
                row("base", &rounds([40_000.0; 6], 1.0)),
                row("defer20", &rounds([40_000.0; 6], 1.0)),
            ];
            for slice in rows.iter_mut().flat_map(|row| &mut row.slices) {
                for (part, p50) in [("socket", socket), ("service", service)] {
                    let at = Percentiles { p50: Some(p50), ..Percentiles::default() };
                    slice.latency_ns.insert(part, at);
                }
            }
            verdict(&report(rows)).notes
        };
        // p50 of the whole is 12 ms.
        let told = parts(11.9e6, 78e3);
        assert!(
            told[0].starts_with("under base half of the requests wait 11.9 ms or longer in their sockets for the program, which works on one for 78.0 us"),
            "{told:?}"
        );
        // It waits for something itself, or the wait is elsewhere.
        assert_eq!([parts(11.9e6, 10e6), parts(40e3, 78e3)].concat(), [""; 0]);
    }

    #[test]
    fn few_rounds_and_short_slices_are_said_to_be() {
        let mut few =
            report(vec![row("base", &[(100.0, 1.0); 4]), row("defer20", &[(50.0, 1.0); 4])]);
        let told = verdict(&few).sentence;
        assert!(
            told.starts_with("cannot tell: 4 whole rounds have no interval of 95 %, 6 have"),
            "{told}"
        );
        for row in &mut few.rows {
            row.slices.extend(
                row.slices.clone().into_iter().map(|it| Slice { round: it.round + 4, ..it }),
            );
            for slice in &mut row.slices {
                let whole = slice.latency_ns.get_mut("whole").expect("there");
                (whole.p99, whole.count) = (None, 300);
            }
        }
        let told = verdict(&few);
        assert_eq!(told.quantity, Some(Quantity::P90));
        assert!(told.notes[0].contains("--slice 4 times as long"), "{:?}", told.notes);
    }

    #[test]
    fn who_broke_the_guard_is_out_and_no_round_of_it_counts() {
        let mut bad = row("defer5000", &[(5_000.0, 0.2)]);
        bad.out = Some("p99<2x: 50 of 60 requests took more than 200 us".into());
        bad.slices[0].broken = bad.out.clone();
        let told = verdict(&report(vec![row("base", &[(1.0, 1.0); 6]), bad.clone()]));
        assert_eq!(
            told.sentence,
            format!("cannot tell: defer5000: {}", bad.out.as_ref().expect("set"))
        );
        let good = row("defer20", &rounds([0.5; 6], 1.0));
        let told = verdict(&report(vec![row("base", &rounds([1.0; 6], 1.0)), bad, good])).sentence;
        assert!(
            told.starts_with("defer20: p99") && told.contains("; defer5000 is out: p99<2x"),
            "{told}"
        );
        // Nor if it had been the best for as many rounds as a verdict takes.
        let mut late = row("suspend20", &rounds([0.2; 6], 0.5));
        late.out = Some("p99<2x: in its seventh round".into());
        let good = row("defer20", &rounds([0.5; 6], 1.0));
        let told = verdict(&report(vec![row("base", &rounds([1.0; 6], 1.0)), late, good]));
        assert!(told.sentence.starts_with("defer20: p99"), "{}", told.sentence);
        assert!(!told.sentence.contains("suspend20 costs"), "{}", told.sentence);
        assert!(told.sentence.ends_with("suspend20 is out: p99<2x: in its seventh round"));
    }
}
