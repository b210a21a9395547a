//! The conclusion for request-response workloads: the policy that answers as fast as the fastest for less CPU, or
//! that answers faster than Linux's default, with its CPU cost.

use super::evidence::{CPU, Evidence, Figure, Group, Inconclusive, Order, P50, P99, RATE};
use super::evidence::{cannot_tell, least, most, worse};
use super::{of_its_cpu, times};

/// A policy that serves less than this share of the offered load does not carry it.
const CARRIED: f64 = 0.98;

pub(super) fn conclude(groups: &[Group<'_>]) -> Option<String> {
    let group = highest(groups)?;
    let rows = Group { load: group.load.clone(), rows: carrying(group) };
    // The tail first. The median tolerates more interruption.
    let mut doubt: Option<Inconclusive> = None;
    let mut fastest = None;
    for figure in [P99, P50] {
        match soonest(&rows, figure) {
            None => {}
            Some(Ok(text)) => {
                fastest = Some(text);
                break;
            }
            Some(Err(new)) => doubt = doubt.into_iter().chain([new]).reduce(worse),
        }
    }
    let more = groups.iter().find(|group| group.offered().is_none()).and_then(serves_most);
    let sentence = match (fastest, doubt) {
        (Some(fastest), _) => format!("{fastest}{}", rows.at()),
        (None, Some(doubt)) => cannot_tell(&doubt),
        (None, None) => return more,
    };
    Some([Some(sentence), more].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// The group to compare: that of the highest load that all policies carry and have a p99 for; else that two
/// policies do; else the same for the median; else the first group with two rows.
fn highest<'a, 'b>(groups: &'b [Group<'a>]) -> Option<&'b Group<'a>> {
    let rate = |group: &&Group<'_>| group.offered().unwrap_or(0.0);
    let highest = |figure: Figure, least: &dyn Fn(&Group<'_>) -> usize| {
        let open = groups.iter().filter(|group| group.offered().is_some());
        let known = |group: &Group<'_>| {
            carrying(group).iter().filter(|row| row.median(figure).is_some()).count()
        };
        let carried = open.filter(|group| known(group) >= least(group).max(2));
        carried.max_by(|a, b| rate(a).total_cmp(&rate(b)))
    };
    let of = |figure: Figure| {
        highest(figure, &|group| group.rows.len()).or_else(|| highest(figure, &|_| 2))
    };
    let closed = || groups.iter().find(|group| group.rows.len() > 1);
    of(P99).or_else(|| of(P50)).or_else(closed)
}

/// The rows that carry their load; all rows of a closed loop.
fn carrying<'a>(group: &Group<'a>) -> Vec<Evidence<'a>> {
    let carries = |row: &Evidence<'_>| match (row.median(RATE), row.offered()) {
        (Some(served), Some(asked)) => served >= CARRIED * asked,
        _ => true,
    };
    group.rows.iter().copied().filter(carries).collect()
}

/// The policy that answers as fast as the fastest for less CPU, or else faster than the reference.
fn soonest(group: &Group<'_>, figure: Figure) -> Option<Result<String, Inconclusive>> {
    let (rows, doubt, left_out) = group.usable(figure);
    let unsure = |doubt: Option<Inconclusive>| doubt.map(Err);
    if rows.len() < 2 {
        return unsure(doubt);
    }
    let first = least(&rows, figure)?;
    let mut remark = match &doubt {
        Some(doubt) => format!(" (of {} nothing can be told: {doubt})", left_out.join(", ")),
        None => String::new(),
    };
    let without = group.rows.iter().filter(|row| row.median(figure).is_none());
    let without: Vec<&str> = without.map(Evidence::name).collect();
    if !without.is_empty() {
        remark.push_str(&format!(" (of {} no {} is known)", without.join(", "), figure.name));
    }
    if let Some(sentence) = cheaper(&rows, &first, figure) {
        return Some(Ok(sentence + &remark));
    }
    let sound = Group { load: None, rows: rows.clone() };
    let reference = sound.reference()?;
    let against = if reference.name() == first.name() {
        // The reference itself is the fastest: compare it with the second.
        let others: Vec<_> = rows.iter().filter(|it| it.name() != first.name()).copied().collect();
        least(&others, figure)?
    } else {
        reference
    };
    match first.compare(figure, &against)? {
        Err(doubt) => Some(Err(doubt)),
        Ok((Order::Less, _)) => {
            let cpu = match first.compare(CPU, &against) {
                Some(Ok((Order::Alike, _))) => " for as much CPU".to_owned(),
                Some(Ok((_, ratio))) => format!(" for {}", of_its_cpu(ratio)),
                Some(Err(_)) | None => String::new(),
            };
            Some(Ok(format!(
                "{} answers faster than {} ({} {} against {}){cpu}{remark}",
                first.name(),
                against.name(),
                figure.name,
                first.shown(figure),
                against.shown(figure)
            )))
        }
        // The minimum cannot be larger.
        Ok(_) => Some(Ok(none_faster(&rows, &reference, figure) + &remark)),
    }
}

/// The rows whose figure is alike to that of `other`.
fn as_fast<'a>(
    rows: &[Evidence<'a>],
    other: &Evidence<'_>,
    figure: Figure,
) -> impl Iterator<Item = Evidence<'a>> {
    rows.iter().copied().filter(move |row| {
        row.name() != other.name()
            && matches!(row.compare(figure, other), Some(Ok((Order::Alike, _))))
    })
}

/// The row that answers as fast as `other` for the least CPU, if that is clearly less.
fn cheaper(rows: &[Evidence<'_>], other: &Evidence<'_>, figure: Figure) -> Option<String> {
    let less = |row: &Evidence<'_>| matches!(row.compare(CPU, other), Some(Ok((Order::Less, _))));
    let all: Vec<_> = as_fast(rows, other, figure).filter(less).collect();
    let cheapest = least(&all, CPU)?;
    let (_, latency) = cheapest.compare(figure, other)?.ok()?;
    let (_, cpu) = cheapest.compare(CPU, other)?.ok()?;
    Some(format!(
        "{} answers as fast as {} ({} {}) for {}",
        cheapest.name(),
        other.name(),
        figure.name,
        factor(latency),
        of_its_cpu(cpu)
    ))
}

/// The sentence if no row answers faster than the reference: names a row that is as fast for less CPU, or says that
/// there is none, as far as the CPU of all such rows can be compared.
fn none_faster(rows: &[Evidence<'_>], reference: &Evidence<'_>, figure: Figure) -> String {
    if let Some(sentence) = cheaper(rows, reference, figure) {
        return sentence;
    }
    let known = |row: Evidence<'_>| matches!(row.compare(CPU, reference), Some(Ok(_)));
    let (unknown, cpu) = match as_fast(rows, reference, figure).all(known) {
        true => ("", ", or as fast for less CPU"),
        false => ("; which takes less CPU is unknown", ""),
    };
    let (name, shown) = (reference.name(), reference.shown(figure));
    format!("no policy answers faster than {name} ({} {shown}{unknown}){cpu}", figure.name)
}

/// A quotient of like figures, always as a factor and never in per cent.
fn factor(ratio: f64) -> String {
    format!("{ratio:.1}x")
}

/// In a closed loop: the policy that serves more than the reference.
fn serves_most(group: &Group<'_>) -> Option<String> {
    let (rows, _, _) = group.usable(RATE);
    let (best, reference) = (most(&rows, RATE)?, Group { load: None, rows: rows.clone() });
    let reference = reference.reference()?;
    match best.compare(RATE, &reference)? {
        Ok((Order::More, ratio)) => Some(format!(
            "{} serves {} as many as {}{}",
            best.name(),
            times(ratio),
            reference.name(),
            group.at()
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::fixed::{Fixed, report};
    use super::super::{Rule, conclude};
    use crate::report::Row;

    const US: f64 = 1e3;

    fn row(name: &str, p99: [f64; 3], cpu: f64) -> Fixed {
        let p99 = p99.map(|us| us * US);
        let p50 = p99.map(|ns| ns / 4.0);
        Fixed::new(name).offered(1e4).served(&[1e4; 3]).p50(&p50).p99(&p99).cpu(&[cpu; 3])
    }

    fn conclusion(world: &str, rows: impl IntoIterator<Item = Fixed>) -> String {
        let rows: Vec<Row> = rows.into_iter().map(Fixed::row).collect();
        conclude(&report("xsk-rr", world, rows), Rule::Answers).expect("a sentence")
    }

    #[test]
    fn a_policy_that_answers_as_fast_for_less_cpu_is_named() {
        let rows = [
            row("base", [40.0, 44.0, 42.0], 0.3),
            row("fullbusy", [10.0, 10.4, 10.2], 1.0),
            row("suspend20", [11.0, 11.4, 11.2], 0.45),
        ];
        let want = "suspend20 answers as fast as fullbusy (p99 1.1x) for 45 % of its CPU";
        assert_eq!(conclusion("engine", rows), want);
    }

    #[test]
    fn a_policy_faster_than_the_default_is_named_with_its_cost() {
        let rows = [row("base", [40.0, 44.0, 42.0], 0.5), row("fullbusy", [10.0, 10.4, 10.2], 1.0)];
        let want =
            "fullbusy answers faster than base (p99 10.2 us against 42.0 us) for 2.0x its CPU";
        assert_eq!(conclusion("engine", rows), want);
        let rows = [row("base", [10.0; 3], 0.5), row("defer20", [40.0; 3], 0.5)];
        let want = "base answers faster than defer20 (p99 10.0 us against 40.0 us) for as much CPU";
        assert_eq!(conclusion("engine", rows), want);
    }

    #[test]
    fn policies_that_are_alike_are_not_ranked() {
        let rows = [row("base", [40.0, 44.0, 42.0], 0.5), row("hold", [41.0, 43.0, 41.5], 0.5)];
        let want = "no policy answers faster than base (p99 42.0 us), or as fast for less CPU";
        assert_eq!(conclusion("engine", rows), want);
    }

    #[test]
    fn of_equally_fast_policies_the_cheaper_is_named_and_an_unknown_cpu_is_reported() {
        let hold = || row("hold", [41.0, 43.0, 41.5], 0.25);
        let with = |hold: Fixed| [row("base", [40.0, 44.0, 42.0], 0.5), hold];
        let want = "hold answers as fast as base (p99 1.0x) for 50 % of its CPU";
        assert_eq!(conclusion("engine", with(hold())), want, "also where it is the first itself");
        let want =
            "no policy answers faster than base (p99 42.0 us; which takes less CPU is unknown)";
        assert_eq!(conclusion("engine", with(hold().cpu(&[0.1, 0.9, 0.5]))), want);
        assert_eq!(
            conclusion("linux", with(hold())),
            want,
            "a veth has base's work on the sender's CPU"
        );
    }

    #[test]
    fn over_a_veth_the_cpu_of_base_is_not_compared() {
        let fullbusy = || row("fullbusy", [10.0, 10.4, 10.2], 1.0);
        let with_reference = |name: &str| [row(name, [40.0, 44.0, 42.0], 0.5), fullbusy()];
        let want = "fullbusy answers faster than base (p99 10.2 us against 42.0 us)";
        assert_eq!(conclusion("linux", with_reference("base")), want);
        let want =
            "fullbusy answers faster than defer20 (p99 10.2 us against 42.0 us) for 2.0x its CPU";
        assert_eq!(conclusion("linux", with_reference("defer20")), want);
    }

    /// Removes the p99, as if there were too few answers for one.
    fn few(row: Fixed) -> Row {
        let mut row = row.row();
        let all = row.repetitions.iter_mut().map(|it| &mut it.figures).chain([&mut row.figures]);
        all.filter_map(|it| it.latency_ns.as_mut()).for_each(|it| it.at.p99 = None);
        row
    }

    #[test]
    fn without_a_p99_the_median_is_used_and_a_row_without_one_is_named() {
        let conclusion =
            |rows: Vec<Row>| conclude(&report("xsk-rr", "engine", rows), Rule::Answers);
        let base = || row("base", [40.0, 44.0, 42.0], 0.5);
        let fullbusy = || few(row("fullbusy", [10.0, 10.4, 10.2], 1.0));
        let want =
            "fullbusy answers faster than base (p50 2.55 us against 10.5 us) for 2.0x its CPU";
        assert_eq!(conclusion(vec![few(base()), fullbusy()]).as_deref(), Some(want));
        let want = "suspend20 answers faster than base (p99 20.2 us against 42.0 us) for as much CPU (of \
                    fullbusy no p99 is known)";
        let suspend20 = row("suspend20", [20.0, 20.4, 20.2], 0.5).row();
        assert_eq!(conclusion(vec![base().row(), fullbusy(), suspend20]).as_deref(), Some(want));
    }

    #[test]
    fn an_interrupted_run_gives_no_conclusion() {
        // As observed: 1 us in one run and 404 us in the next.
        let rows = [
            row("base", [40.0, 44.0, 42.0], 0.5).interrupted(0.21),
            row("busypoll", [4.0, 404.0, 300.0], 1.0).interrupted(0.34),
        ];
        let want = "cannot tell: this host interrupted it for 34 % of the time";
        assert_eq!(conclusion("engine", rows.clone()), want);
        let sentence = conclusion("machine", rows.map(|row| row.interrupted(0.0)));
        assert!(
            sentence.starts_with("cannot tell: repetitions differ more than policies do"),
            "{sentence}"
        );
    }

    #[test]
    fn the_median_tolerates_a_short_interruption_and_the_tail_does_not() {
        let rows = [
            row("base", [400.0, 408.0, 404.0], 0.5).interrupted(0.05),
            row("fullbusy", [100.0, 104.0, 102.0], 1.0).interrupted(0.05),
        ];
        let want =
            "fullbusy answers faster than base (p50 25.5 us against 101 us) for 2.0x its CPU";
        assert_eq!(conclusion("engine", rows), want);
    }

    #[test]
    fn one_that_was_interrupted_is_left_out_and_named() {
        let rows = [
            row("base", [40.0, 44.0, 42.0], 0.5),
            row("fullbusy", [4000.0; 3], 1.0).interrupted(0.34),
            row("suspend20", [10.0, 10.4, 10.2], 0.5),
        ];
        let want = "suspend20 answers faster than base (p99 10.2 us against 42.0 us) for as much CPU (of \
                    fullbusy nothing can be told: this host interrupted it for 34 % of the time)";
        assert_eq!(conclusion("engine", rows), want);
    }

    #[test]
    fn repetitions_that_differ_too_much_give_no_conclusion() {
        let wide = [10.0, 3000.0, 20.0];
        let rows = [row("base", wide, 0.5), row("fullbusy", [9.0, 900.0, 12.0], 1.0)];
        let want = "cannot tell: repetitions differ more than policies do (p99 of base 10.0 us to 3.00 ms)";
        assert_eq!(conclusion("engine", rows), want);
    }

    #[test]
    fn a_p99_that_is_unknown_in_one_repetition_is_not_compared() {
        // In one of three repetitions up to 2 % may have waited for ever: the 10 us are those of the others.
        let fullbusy = || row("fullbusy", [10.0, 10.4, 10.2], 1.0).unanswered_last(2);
        let base = || row("base", [40.0, 44.0, 42.0], 0.5);
        for world in ["engine", "machine"] {
            let want =
                "fullbusy answers faster than base (p50 2.55 us against 10.5 us) for 2.0x its CPU";
            assert_eq!(conclusion(world, [base(), fullbusy()]), want);
            let want = "suspend20 answers faster than base (p99 20.2 us against 42.0 us) for as much CPU (of \
                        fullbusy nothing can be told: not every repetition tells p99 of fullbusy)";
            let suspend20 = row("suspend20", [20.0, 20.4, 20.2], 0.5);
            assert_eq!(conclusion(world, [base(), fullbusy(), suspend20]), want);
        }
    }

    #[test]
    fn one_repetition_is_enough_only_in_virtual_time() {
        let one = |name: &str, us: f64, cpu: f64| {
            let figures = Fixed::new(name).offered(1e4).served(&[1e4]);
            figures.p50(&[us * US]).p99(&[us * US]).cpu(&[cpu])
        };
        let rows = [one("base", 40.0, 0.5), one("fullbusy", 10.0, 1.0)];
        assert!(conclusion("engine", rows.clone()).starts_with("cannot tell: one repetition"));
        assert!(conclusion("machine", rows).starts_with("fullbusy answers faster than base"));
    }

    #[test]
    fn the_highest_load_that_all_policies_carry_is_compared_and_the_highest_rate_is_named() {
        let at =
            |load: f64, row: Fixed| row.load("requests_per_s", (load as u64).into()).offered(load);
        let most = |name: &str, served: f64| {
            let row = Fixed::new(name).load("requests_per_s", "max".into());
            row.served(&[served; 3]).p50(&[US; 3]).p99(&[2.0 * US; 3]).cpu(&[1.0; 3])
        };
        let rows = [
            at(2e5, row("base", [10.0; 3], 0.2)).served(&[2e5; 3]),
            at(2e5, row("suspend20", [10.0; 3], 0.2)).served(&[2e5; 3]),
            at(6e5, row("base", [40.0; 3], 0.5)).served(&[6e5; 3]),
            at(6e5, row("suspend20", [10.0; 3], 0.25)).served(&[6e5; 3]),
            // Not all policies carry this load.
            at(9e5, row("base", [4e4; 3], 1.0)).served(&[7e5; 3]),
            at(9e5, row("suspend20", [3e4; 3], 1.0)).served(&[9e5; 3]),
            most("base", 7e5),
            most("suspend20", 9.1e5),
        ];
        let rows = rows.map(Fixed::row).to_vec();
        let want = "suspend20 answers faster than base (p99 10.0 us against 40.0 us) for 50 % of its CPU \
                    at requests/s 600000; suspend20 serves 1.3x as many as base at requests/s max";
        assert_eq!(
            conclude(&report("memcached", "machine", rows), Rule::Answers).as_deref(),
            Some(want)
        );
    }

    #[test]
    fn the_highest_rate_is_named_even_if_one_policy_alone_carries_the_load() {
        let at = |row: Fixed| row.load("requests_per_s", 600_000.into()).offered(6e5);
        let most = |name: &str, served: f64| {
            let row = Fixed::new(name).load("requests_per_s", "max".into());
            row.served(&[served; 3]).p50(&[US; 3]).p99(&[2.0 * US; 3]).cpu(&[1.0; 3])
        };
        let rows = [
            at(row("base", [4e4; 3], 1.0)).served(&[3e5; 3]),
            at(row("suspend20", [10.0; 3], 0.5)).served(&[6e5; 3]),
            most("base", 7e5),
            most("suspend20", 9.1e5),
        ];
        let rows = rows.map(Fixed::row).to_vec();
        assert_eq!(
            conclude(&report("memcached", "machine", rows), Rule::Answers).as_deref(),
            Some("suspend20 serves 1.3x as many as base at requests/s max")
        );
    }

    #[test]
    fn beside_another_server_that_is_what_others_are_compared_with() {
        let row = |name: &str, p99: f64, cpu: f64| {
            let mut it = row(name, [p99; 3], cpu).row();
            it.server = name.split('/').next().map(str::to_owned);
            it.policy = "base".to_owned();
            it
        };
        let rows = vec![
            row("napkin/base", 20.0, 0.5),
            row("kernel/base", 30.0, 0.5),
            row("memcached/base", 40.0, 1.0),
        ];
        let want = "napkin/base answers faster than memcached/base (p99 20.0 us against 40.0 us) for 50 % of \
                    its CPU";
        assert_eq!(
            conclude(&report("memcached", "engine", rows), Rule::Answers).as_deref(),
            Some(want)
        );
    }
}
