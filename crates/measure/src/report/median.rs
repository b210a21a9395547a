//! Combines repetitions into a row. No other code combines repetitions.
//!
//! Every figure is the median of the repetitions that have it, with six exceptions for which a median would be
//! wrong:
//!
//! - the maximum of a latency is the largest of all, and its count the sum. A percentile that is unknown in one
//!   repetition (a repetition without answers has no percentiles, and no mean) is unknown in the row, and one that
//!   is a bound in half of them is a bound;
//! - a queue counts as growing if it grows in half of the repetitions;
//! - `cpu` is that of the repetition whose busy share is the median (of an even number, the mean
//!   of the two in the middle), so that its parts still add up to 1;
//! - a drop counter that is missing in a repetition counts as 0 there;
//! - the histogram of receive calls includes all repetitions;
//! - a further figure that is not a number is kept if all repetitions have the same value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::json::{Measurement, Repetition, Row};
use crate::interleave::median;
use crate::{CpuSplit, LatencyNs, Percentiles, Pow2, Published, Spread};
use napkin_policy::NamedPolicy;

impl Row {
    /// Combines repetitions of a policy into its row, after computing their derived ratios.
    pub fn of(
        policy: &NamedPolicy,
        load: Map<String, Value>,
        repetitions: Vec<Repetition>,
        notes: Vec<String>,
    ) -> Row {
        let name = policy.name.clone();
        Row { name, ..Row::from_repetitions(policy.policy.to_string(), load, repetitions, notes) }
    }

    /// As [`Row::of`], for a policy without a name of its own.
    pub fn from_repetitions(
        policy: impl Into<String>,
        load: Map<String, Value>,
        mut repetitions: Vec<Repetition>,
        notes: Vec<String>,
    ) -> Row {
        repetitions.iter_mut().for_each(|repetition| repetition.figures.derive());
        let all: Vec<&Measurement> = repetitions.iter().map(|r| &r.figures).collect();
        let (figures, spread) = (combine(&all), spreads(&all));
        let policy = policy.into();
        let mut notes = notes;
        notes.extend(without_an_answer(&figures));
        let name = policy.clone();
        let p99_overlaps_best = false;
        let server = None;
        Row { name, server, policy, load, figures, spread, p99_overlaps_best, notes, repetitions }
    }
}

fn combine(all: &[&Measurement]) -> Measurement {
    let real = |get: fn(&Measurement) -> Option<f64>| median(all.iter().filter_map(|f| get(f)));
    let count =
        |get: fn(&Measurement) -> Option<u64>| median_count(all.iter().filter_map(|f| get(f)));
    Measurement {
        offered_per_s: real(|f| f.offered_per_s),
        due: count(|f| f.due),
        unanswered: count(|f| f.unanswered),
        grows: half(all.iter().filter(|f| f.grows).count(), all.len()),
        achieved_per_s: real(|f| f.achieved_per_s),
        latency_ns: latency(&present(all, |f| f.latency_ns), all.iter().any(|f| is_silent(f))),
        cpu: cpu(present(all, |f| f.cpu)),
        interrupts: count(|f| f.interrupts),
        polls: count(|f| f.polls),
        empty_polls: count(|f| f.empty_polls),
        packets: count(|f| f.packets),
        drops: drops(all),
        interrupted: real(|f| f.interrupted),
        window_ns: count(|f| f.window_ns),
        polled_packets: count(|f| f.polled_packets),
        interrupts_tx: count(|f| f.interrupts_tx),
        interrupts_per_packet: real(|f| f.interrupts_per_packet),
        context_switches: count(|f| f.context_switches),
        context_switches_per_packet: real(|f| f.context_switches_per_packet),
        wakeups: count(|f| f.wakeups),
        wakeups_per_s: real(|f| f.wakeups_per_s),
        published_estimator_ns: published(&present(all, |f| f.published_estimator_ns)),
        receive_time_histogram: histogram(all),
        extra: extra(all),
    }
}

fn spreads(all: &[&Measurement]) -> BTreeMap<String, Spread> {
    type Get = fn(&Measurement) -> Option<f64>;
    let main: [(&str, Get); 7] = [
        ("achieved_per_s", |f| f.achieved_per_s),
        ("latency_mean_ns", |f| f.latency_ns?.mean),
        ("latency_p50_ns", |f| f.latency_ns?.at.p50.map(|ns| ns as f64)),
        ("latency_p99_ns", |f| f.latency_ns?.at.p99.map(|ns| ns as f64)),
        ("latency_p999_ns", |f| f.latency_ns?.at.p999.map(|ns| ns as f64)),
        ("cpu_busy", Measurement::cpu_busy),
        ("cpu_ns_per_request", |f| f.extra.get("cpu_ns_per_request")?.as_f64()),
    ];
    let spread = |name: &str, get: Get| {
        let known = present(all, get);
        // If a repetition lacks the percentile, it would usually be the largest.
        let whole = known.len() == all.len() || !name.starts_with("latency_");
        Spread::of(known).filter(|_| whole)
    };
    main.into_iter().filter_map(|(name, get)| Some((name.to_owned(), spread(name, get)?))).collect()
}

/// Whether requests fell due and none was answered.
fn is_silent(figures: &Measurement) -> bool {
    figures.latency_ns.is_none() && figures.due.is_some_and(|due| due > 0)
}

fn present<T>(all: &[&Measurement], get: fn(&Measurement) -> Option<T>) -> Vec<T> {
    all.iter().filter_map(|f| get(f)).collect()
}

/// The median of counts; of an even number, the mean of the two middle ones, rounded down.
fn median_count(counts: impl IntoIterator<Item = u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = counts.into_iter().collect();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { u64::midpoint(sorted[middle - 1], upper) })
}

/// Whether `some` is at least half of `all`, and not 0.
fn half(some: usize, all: usize) -> bool {
    some != 0 && 2 * some >= all
}

/// Combines latencies. `silent`: there is another repetition in which requests fell due and none was answered.
fn latency(all: &[LatencyNs], silent: bool) -> Option<LatencyNs> {
    let max = all.iter().map(|l| l.max).max()?;
    let middle = |share: f64, bounds: bool| {
        let bound = |l: &LatencyNs| l.above.and_then(|above| above.of(share));
        let bounded = all.iter().filter(|l| bound(l).is_some()).count();
        // When combining known percentiles, a bound counts as the largest.
        let bound = |l: &LatencyNs| bound(l).map(|ns| if bounds { ns } else { u64::MAX });
        let values: Vec<u64> = all.iter().filter_map(|l| l.at.of(share).or(bound(l))).collect();
        // If a repetition lacks the percentile, it is unknown: the others are not representative.
        let known = !silent && values.len() == all.len() && half(bounded, all.len()) == bounds;
        median_count(values).filter(|_| known)
    };
    let above = Percentiles::each(|share| middle(share, true));
    Some(LatencyNs {
        mean: median(all.iter().filter_map(|l| l.mean)).filter(|_| !silent),
        at: Percentiles::each(|share| middle(share, false)),
        max,
        count: all.iter().fold(0, |sum, l| sum.saturating_add(l.count)),
        above: (above != Percentiles::default()).then_some(above),
    })
}

/// The note on a latency that is missing unanswered requests.
fn without_an_answer(figures: &Measurement) -> Option<String> {
    let (due, unanswered) = (figures.due?, figures.unanswered?);
    figures.latency_ns?.above?;
    let grows = if figures.grows { ", and their queue grows as long as it runs" } else { "" };
    Some(format!(
        "{unanswered} of {due} requests that fell due in a window had no answer at its end{grows}: \
         percentiles behind a > are too low"
    ))
}

fn cpu(mut all: Vec<CpuSplit>) -> Option<CpuSplit> {
    all.sort_by(|a, b| a.busy().total_cmp(&b.busy()));
    let middle = all.len() / 2;
    let upper = *all.get(middle)?;
    Some(if all.len() % 2 == 1 { upper } else { CpuSplit::between(all[middle - 1], upper) })
}

fn published(all: &[Published]) -> Option<Published> {
    let at = |get: fn(&Published) -> u64| median_count(all.iter().map(get));
    Some(Published {
        p5: at(|p| p.p5)?,
        p50: at(|p| p.p50)?,
        p95: at(|p| p.p95)?,
        p99: at(|p| p.p99)?,
    })
}

fn histogram(all: &[&Measurement]) -> Option<Pow2> {
    let mut histograms = all.iter().filter_map(|f| f.receive_time_histogram.as_ref());
    let mut sum = histograms.next()?.clone();
    histograms.for_each(|histogram| sum.merge(histogram));
    Some(sum)
}

fn drops(all: &[&Measurement]) -> BTreeMap<String, u64> {
    let names: BTreeSet<&String> = all.iter().flat_map(|f| f.drops.keys()).collect();
    names
        .into_iter()
        .filter_map(|name| {
            let counts = all.iter().map(|f| f.drops.get(name).copied().unwrap_or(0));
            Some((name.clone(), median_count(counts)?))
        })
        .collect()
}

fn extra(all: &[&Measurement]) -> Map<String, Value> {
    let names: BTreeSet<&String> = all.iter().flat_map(|f| f.extra.keys()).collect();
    names
        .into_iter()
        .filter_map(|name| {
            let values: Vec<&Value> = all.iter().filter_map(|f| f.extra.get(name)).collect();
            Some((name.clone(), middle_value(&values)?))
        })
        .collect()
}

/// Whole numbers stay whole, other numbers become reals, and other values must all be equal.
fn middle_value(values: &[&Value]) -> Option<Value> {
    let whole: Option<Vec<u64>> = values.iter().map(|v| v.as_u64()).collect();
    if let Some(whole) = whole {
        return median_count(whole).map(Value::from);
    }
    let reals: Option<Vec<f64>> = values.iter().map(|v| v.as_f64()).collect();
    if let Some(reals) = reals {
        return median(reals).map(Value::from);
    }
    let first = *values.first()?;
    values.iter().all(|value| *value == first).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latency;

    /// A repetition with twenty requests of `ns`, a share `work` of the CPU, and some of everything else.
    fn repetition(step: u64, ns: u64, work: f64) -> Repetition {
        let mut latency = Latency::new();
        (0..20).for_each(|_| latency.record(ns));
        let mut receive = Pow2::new();
        receive.record(ns);
        let figures = Measurement {
            achieved_per_s: Some(ns as f64),
            latency_ns: latency.summary(0),
            cpu: Some(CpuSplit { work, poll: 0.1, waiting: 0.1, asleep: 0.8 - work }),
            interrupts: Some(step * 10),
            packets: Some(90),
            polled_packets: Some(100),
            drops: BTreeMap::from([("ring_full".into(), step)]),
            receive_time_histogram: Some(receive),
            extra: Map::from_iter([
                ("sets".into(), Value::from(step)),
                ("ratio".into(), Value::from(step as f64 + 0.5)),
                ("keys".into(), Value::from("gev")),
                ("order".into(), Value::from(format!("r{step}"))),
            ]),
            ..Measurement::default()
        };
        Repetition { step, figures }
    }

    fn row(repetitions: Vec<Repetition>) -> Row {
        Row::from_repetitions("softirq", Map::new(), repetitions, Vec::new())
    }

    #[test]
    fn of_three_repetitions_the_middle_one_is_shown() {
        let row =
            row(vec![repetition(1, 1000, 0.5), repetition(3, 9000, 0.2), repetition(5, 2000, 0.3)]);
        let figures = &row.figures;
        assert_eq!(figures.achieved_per_s, Some(2000.0));
        assert_eq!((figures.interrupts, figures.drops["ring_full"]), (Some(30), 3));
        assert_eq!(figures.interrupts_per_packet, Some(0.3));
        let latency = figures.latency_ns.unwrap();
        assert_eq!((latency.at.p50, latency.max, latency.count), (Some(2000), 9000, 60));
        assert_eq!(figures.cpu.unwrap().work, 0.3);
        assert_eq!(figures.receive_time_histogram.as_ref().unwrap().count(), 3);
        assert_eq!(row.repetitions.len(), 3, "each repetition is kept");
    }

    /// A repetition with `due` requests, of which `answered` had an answer after `ns`.
    fn answered(due: u64, answered: u64, ns: u64) -> Repetition {
        let mut latency = Latency::new();
        (0..answered).for_each(|_| latency.record(ns));
        let mut figures = Measurement {
            latency_ns: latency.summary(due - answered),
            window_ns: Some(1_000_000_000),
            ..Measurement::default()
        };
        figures.set_due(due, answered);
        Repetition { step: 0, figures }
    }

    #[test]
    fn nineteen_twenty_and_thirteen_samples_have_no_percentile_for_all_their_sum() {
        let few = row([19, 20, 13].map(|count| answered(count, count, 5_000)).to_vec());
        let latency = few.figures.latency_ns.unwrap();
        assert_eq!((latency.at, latency.count), (Percentiles::default(), 52));
        let one_short = row([999, 5_000, 5_000].map(|n| answered(n, n, 5_000)).to_vec());
        let latency = one_short.figures.latency_ns.unwrap();
        assert_eq!((latency.at.p95.is_some(), latency.at.p99, latency.above), (true, None, None));
    }

    #[test]
    fn a_row_that_leaves_requests_out_has_bounds_and_says_so() {
        let row = row([3_000, 9_000, 5_000].map(|ns| answered(400_000, 22_300, ns)).to_vec());
        let latency = row.figures.latency_ns.unwrap();
        assert!(row.figures.grows && row.figures.unanswered == Some(377_700));
        assert_eq!((latency.at.p99, latency.above.unwrap().p99), (None, Some(5_000)));
        assert!(row.notes[0].starts_with("377700 of 400000 requests"), "{:?}", row.notes);
        assert!(!row.spread.contains_key("latency_p99_ns"), "bounds have no spread");
    }

    #[test]
    fn one_repetition_of_three_with_a_bound_is_the_longest() {
        let all = [(2_000, 5_000), (2_000, 7_000), (1_700, 1_000)];
        let row = row(all.map(|(some, ns)| answered(2_000, some, ns)).to_vec());
        let latency = row.figures.latency_ns.unwrap();
        assert_eq!((latency.at.p99, latency.above), (Some(7_000), None));
        assert!(!row.figures.grows && row.notes.is_empty());
        // The longest repetition is unknown, so there is no range, except that of the mean.
        let ranges = ["latency_p99_ns", "latency_mean_ns"].map(|it| row.spread.contains_key(it));
        assert_eq!(ranges, [false, true]);
    }

    #[test]
    fn a_repetition_without_answers_leaves_the_row_without_percentiles() {
        let all = [(2_000, 5_000), (0, 0), (2_000, 7_000)];
        let row = row(all.map(|(some, ns)| answered(2_000, some, ns)).to_vec());
        let latency = row.figures.latency_ns.unwrap();
        assert_eq!((latency.at, latency.above), (Percentiles::default(), None));
        assert_eq!((latency.mean, latency.max, latency.count), (None, 7_000, 4_000));
        assert!(!row.spread.keys().any(|it| it.starts_with("latency_")), "{:?}", row.spread);
        // No requests fell due in the second repetition.
        let row = super::tests::row(vec![answered(2_000, 2_000, 5_000), Repetition::default()]);
        let latency = row.figures.latency_ns.unwrap();
        assert_eq!((latency.mean, latency.at.p50), (Some(5_000.0), Some(5_000)));
    }

    #[test]
    fn of_two_the_mean_is_shown_and_cpu_still_adds_up() {
        let row = row(vec![repetition(1, 1000, 0.1), repetition(2, 2000, 0.6)]);
        assert_eq!(row.figures.achieved_per_s, Some(1500.0));
        let cpu = row.figures.cpu.unwrap();
        assert!((cpu.sum() - 1.0).abs() < 1e-9 && (cpu.work - 0.35).abs() < 1e-9, "{cpu:?}");
    }

    #[test]
    fn a_drop_counter_that_is_not_named_counted_nothing() {
        let dropped = |name: &str, count| {
            let drops = BTreeMap::from([(name.to_owned(), count)]);
            Repetition { step: 0, figures: Measurement { drops, ..Measurement::default() } }
        };
        let row = row(vec![
            dropped("tx_dropped", 9),
            dropped("socket_full", 4),
            dropped("socket_full", 6),
        ]);
        let want = BTreeMap::from([("socket_full".to_owned(), 4), ("tx_dropped".to_owned(), 0)]);
        assert_eq!(row.figures.drops, want);
    }

    #[test]
    fn the_spread_is_the_range_of_the_repetitions() {
        let row = row(vec![repetition(1, 1000, 0.1), repetition(2, 2000, 0.6)]);
        let achieved = row.spread["achieved_per_s"];
        assert_eq!((achieved.min, achieved.median, achieved.max), (1000.0, 1500.0, 2000.0));
        assert!(row.spread.contains_key("cpu_busy"));
    }

    #[test]
    fn further_figures_keep_their_kind() {
        let row = row(vec![repetition(1, 1, 0.1), repetition(2, 1, 0.1), repetition(4, 1, 0.1)]);
        let extra = &row.figures.extra;
        assert_eq!((&extra["sets"], &extra["ratio"]), (&2.into(), &2.5.into()));
        assert_eq!(extra["keys"], "gev");
        assert!(!extra.contains_key("order"), "they disagree");
    }

    #[test]
    fn what_no_repetition_measured_the_row_has_not() {
        let row = row(vec![Repetition::default(), Repetition::default()]);
        assert_eq!(row.figures, Measurement::default());
        assert!(row.spread.is_empty());
        assert_eq!(super::combine(&[]), Measurement::default());
    }

    #[test]
    fn one_repetition_is_its_own_median() {
        let only = repetition(1, 1000, 0.1);
        let row = row(vec![only.clone()]);
        assert_eq!(row.figures.latency_ns, row.repetitions[0].figures.latency_ns);
        assert_eq!(row.figures.cpu, only.figures.cpu);
    }
}
