//! Verdicts on invented figures.

use super::*;

/// A figure of a configuration under a load.
fn cell(config: &str, load: &str, published: f64, modelled: f64) -> Cell {
    Cell {
        published: Some(published),
        modelled: Modelled::of(&[modelled], ""),
        load_value: load.parse().ok(),
        ..Cell::new("x", config, load, "p99", Unit::Us)
    }
}

fn lost(cell: Cell) -> Cell {
    Cell { modelled: Modelled::absent("the run failed"), ..cell }
}

fn refs(cells: &[Cell]) -> Vec<&Cell> {
    cells.iter().collect()
}

#[test]
fn a_share_within_a_tolerance_and_the_misses_worst_first() {
    let cells = [
        cell("a", "1", 100.0, 104.0),
        cell("b", "1", 100.0, 110.0),
        cell("c", "1", 100.0, 60.0),
        cell("d", "1", 100.0, 100.0),
    ];
    let verdict = share_within("p99", &refs(&cells), Tolerance::Relative(0.04), 0.5);
    assert!(verdict.met && verdict.got == "2 of 4 (50 %)", "{verdict:?}");
    assert!(verdict.misses[0].starts_with("c, 1:") && verdict.misses[1].starts_with("b, 1:"));
    assert!(!share_within("p99", &refs(&cells), Tolerance::Relative(0.04), 0.51).met);
    assert_eq!(verdict.asked, "within 4 % in at least 50 % of the figures");
}

#[test]
fn a_figure_that_is_lost_is_a_miss_and_an_exempt_one_is_not_judged() {
    let mut cells = [cell("a", "1", 100.0, 100.0), lost(cell("b", "1", 100.0, 0.0))];
    let judge = |cells: &[Cell]| share_within("x", &refs(cells), Tolerance::Relative(0.1), 1.0);
    let verdict = judge(&cells);
    assert!(!verdict.met && verdict.misses[0].contains("not modelled (the run failed)"));
    cells[1].exempt = true;
    assert!(judge(&cells).met);
    assert!(!judge(&[]).met, "nothing to judge is nothing shown");
}

#[test]
fn points_and_events_are_absolute_tolerances() {
    let point = |modelled| Cell { unit: Unit::Percent, ..cell("a", "1", 28.0, modelled) };
    let judge = |cell| share_within("CPU", &[&cell], Tolerance::Absolute(6.0), 1.0);
    assert!(judge(point(34.0)).met && !judge(point(34.1)).met);
    assert!(judge(point(34.0)).asked.contains("within 6 points"));
    let events = |published, modelled| cell("a", "1", published, modelled);
    let judge = |cell| share_within("irqs", &[&cell], Tolerance::RelativeOr(0.05, 3.0), 1.0).met;
    assert!(judge(events(0.0, 3.0)) && !judge(events(0.0, 4.0)));
    assert!(judge(events(1000.0, 1050.0)) && !judge(events(1000.0, 1051.0)));
    assert!(judge(events(10.0, 13.0)), "three events, though 30 %");
}

#[test]
fn the_median_error_counts_lost_figures_as_wrong_without_limit() {
    let mut cells = vec![
        cell("a", "1", 100.0, 110.0),
        cell("b", "1", 100.0, 120.0),
        lost(cell("c", "1", 100.0, 0.0)),
    ];
    let verdict = median_error("p99", &refs(&cells), 0.2);
    assert!(
        verdict.met && verdict.got == "20 %, with its sign +20 %; 2 of 3 within 20 %",
        "{verdict:?}"
    );
    cells.push(lost(cell("d", "1", 100.0, 0.0)));
    let verdict = median_error("p99", &refs(&cells), 0.2);
    assert!(!verdict.met && verdict.got.contains("too few"), "{verdict:?}");
}

#[test]
fn what_a_median_hides_is_named_the_worst_first() {
    let cells = [
        cell("a", "1", 100.0, 101.0),
        cell("b", "1", 100.0, 100.0),
        cell("napibusy", "1000K", 128.0, 2516.0),
        lost(cell("c", "1", 100.0, 0.0)),
        cell("d", "1", 100.0, 60.0),
        cell("e", "1", 0.0, 3.0),
    ];
    let worst = |cells: &[Cell]| median_error("p99", &refs(cells), 0.15).worst;
    let want = ["c, 1 not modelled", "e, 1 3 where 0 was published", "napibusy, 1000K +1866 %"];
    assert_eq!(worst(&cells), want);
    assert_eq!(worst(&cells[..3]), ["napibusy, 1000K +1866 %", "a, 1 +1.0 %"], "b is right");
    let p95 = Cell { quantity: "p95".into(), ..cell("d", "1", 100.0, 60.0) };
    assert_eq!(worst(&[cells[0].clone(), p95]), ["d, 1, p95 -40 %", "a, 1, p99 +1.0 %"]);
}

#[test]
fn pairs_are_judged_only_within_a_load_and_only_if_far_apart() {
    let cells = [
        cell("a", "1", 100.0, 1.0),
        cell("b", "1", 114.0, 0.0), // too near to a
        cell("c", "1", 200.0, 2.0), // beyond both
        cell("d", "2", 500.0, 0.5), // another load
    ];
    let verdict = pair_order("p99", &refs(&cells), 0.15, 1.0, None);
    assert!(verdict.met && verdict.got == "2 of 2 (100 %)", "{verdict:?}");
}

#[test]
fn what_the_profile_was_fitted_to_is_not_judged() {
    let fitted = |cell: Cell| Cell { fitted: true, ..cell };
    let mut cells = [fitted(cell("a", "1", 100.0, 10.0)), cell("b", "1", 100.0, 101.0)];
    assert!(median_error("p99", &refs(&cells), 0.02).met, "only b counts");
    let share = |cells: &[Cell]| share_within("x", &refs(cells), Tolerance::Relative(0.02), 1.0);
    assert_eq!(share(&cells).got, "1 of 1 (100 %)");
    cells[1].published = Some(200.0);
    let pairs = |cells: &[Cell]| pair_order("x", &refs(cells), 0.15, 1.0, None).got;
    assert_eq!(pairs(&cells), "1 of 1 (100 %)", "one of the two was predicted");
    cells[1].fitted = true;
    assert_eq!(pairs(&cells), "nothing to judge");
}

#[test]
fn an_order_that_a_name_tells_as_well_shows_nothing() {
    let cells = [
        cell("defer10", "1", 100.0, 1.0),
        cell("defer20", "1", 200.0, 2.0),
        cell("defer50", "1", 150.0, 1.5), // the name says otherwise
        cell("base", "1", 400.0, 4.0),    // the name says nothing
    ];
    let number = |cell: &Cell| cell.config.trim_start_matches(char::is_alphabetic).parse();
    let by_name = |cell: &Cell| number(cell).unwrap_or(10.0);
    let judge =
        |cells: &[Cell]| pair_order("p99", &refs(cells), 0.15, 0.5, Some(("the number", &by_name)));
    let verdict = judge(&cells);
    let want = "6 of 6 (100 %); of the 5 that the number orders as well, 5, and it 2";
    assert!(verdict.met && verdict.got == want, "{verdict:?}");
    let mut wrong = cells;
    wrong[2].modelled = Modelled::of(&[9.0], "");
    wrong[3].modelled = Modelled::of(&[0.5], "");
    let verdict = judge(&wrong);
    assert!(!verdict.met, "no better than the number: {verdict:?}");
}

#[test]
fn a_pair_modelled_equal_or_not_at_all_is_in_no_order() {
    let cells = [cell("a", "1", 100.0, 7.0), cell("b", "1", 200.0, 7.0)];
    let verdict = winner("p99.9", &refs(&cells), 0.1);
    assert!(!verdict.met);
    let want = "p99, 1: a is published below b (100 us and 200 us), modelled 7 us and 7 us";
    assert_eq!(verdict.misses, [want]);
    let cells = [cell("a", "1", 100.0, 7.0), lost(cell("b", "1", 200.0, 8.0))];
    assert!(!winner("p99.9", &refs(&cells), 0.1).met);
}

#[test]
fn ratios_are_taken_within_a_load() {
    let mut cells = vec![
        cell("softirq", "1", 100.0, 50.0),
        cell("kthread", "1", 110.0, 60.0),
        cell("kthread", "2", 1.0, 1.0), // no softirq at this load
    ];
    let ratios = ratios_to(&refs(&cells), "softirq");
    assert_eq!(ratios.len(), 1);
    assert_eq!((ratios[0].config.as_str(), ratios[0].published), ("kthread/softirq", Some(1.1)));
    assert_eq!((ratios[0].model(), ratios[0].unit), (Some(1.2), Unit::Ratio));
    cells[0] = lost(cells[0].clone());
    let ratios = ratios_to(&refs(&cells), "softirq");
    assert_eq!(ratios[0].modelled, Modelled::absent("the run failed"), "the divisor's reason");
}

#[test]
fn the_published_livelock_collapses_at_15k_and_recovers_at_25k() {
    let rows = crate::published::ksoftirqd().unwrap();
    let master: Vec<_> = rows.iter().map(|r| (r.source_pps, r.dest_pps_master_4_15_rc4)).collect();
    let want = Collapse { at: 15_000.0, recovered: Some(25_000.0) };
    assert_eq!(collapse(&master), Some(want));
    let rfc: Vec<_> = rows.iter().map(|r| (r.source_pps, r.dest_pps_rfc)).collect();
    assert_eq!(collapse(&rfc), None);
}

#[test]
fn a_collapse_needs_a_fall_of_a_tenth_and_may_have_no_end() {
    assert_eq!(collapse(&[(1.0, 10.0), (2.0, 9.0)]), None, "exactly 90 % is not below it");
    let fallen = collapse(&[(3.0, 5.0), (1.0, 10.0), (2.0, 8.9)]);
    assert_eq!(fallen, Some(Collapse { at: 2.0, recovered: None }), "in the order of the loads");
    assert_eq!(collapse(&[]), None);
}

#[test]
fn collapse_points_must_agree_within_two_thousand() {
    let curve = |at: f64, back: f64| -> Vec<Cell> {
        (1..=30)
            .map(|k| {
                let load = f64::from(k) * 1000.0;
                let published = if (15e3..25e3).contains(&load) { 1.0 } else { load };
                let modelled = if (at..back).contains(&load) { 1.0 } else { load };
                cell("master", &load.to_string(), published, modelled)
            })
            .collect()
    };
    let judge = |cells: &[Cell]| collapse_points("master", &refs(cells), 2000.0);
    assert!(judge(&curve(13e3, 27e3)).met);
    assert!(!judge(&curve(12e3, 25e3)).met, "3000 too early");
    assert!(!judge(&curve(15e3, 28e3)).met, "3000 too late");
    let never = judge(&curve(99e3, 99e3));
    assert!(!never.met && never.got == "no collapse", "{never:?}");
    let mut cells = curve(15e3, 25e3);
    cells[20] = lost(cells[20].clone());
    let verdict = judge(&cells);
    assert!(!verdict.met && verdict.got.ends_with("1 of 30 loads were not modelled"));
}

#[test]
fn the_excess_is_over_the_same_configuration_s_idle_row() {
    let cells = [
        cell("irq", "idle", 13.0, 20.0),
        cell("irq", "busy", 21.0, 28.5),
        cell("poll", "idle", 13.0, 13.0),
        cell("poll", "busy", 13.0, 15.0),
    ];
    let verdict = excess_over_idle("p99", &refs(&cells), "idle", 1.0, 0.5);
    assert!(verdict.met && verdict.got == "1 of 2 (50 %)", "the idle rows are right by definition");
    assert!(verdict.misses[0].starts_with("poll, busy: excess of p99 over the idle row"));
    assert!(!excess_over_idle("p99", &refs(&cells), "idle", 1.0, 0.6).met);
    let none = excess_over_idle("p99", &refs(&cells), "no such load", 1.0, 0.1);
    assert!(!none.met && none.got == "0 of 4 (0 %)", "without an idle row there is no excess");
}

#[test]
fn a_row_is_right_if_all_of_its_counts_are() {
    let count = |config: &str, quantity: &str, published, modelled| Cell {
        quantity: quantity.into(),
        unit: Unit::Count,
        ..cell(config, "", published, modelled)
    };
    let mut cells = vec![
        count("A001", "irqs", 600.0, 610.0),
        count("A001", "polls", 600.0, 601.0),
        count("A003", "irqs", 100.0, 150.0),
        count("A003", "polls", 100.0, 200.0),
        count("A003", "softirqs", 100.0, 100.0),
    ];
    let judge =
        |cells: &[Cell]| rows_within("counts", &refs(cells), Tolerance::RelativeOr(0.05, 3.0), 0.5);
    let verdict = judge(&cells);
    assert!(verdict.met && verdict.got == "1 of 2 (50 %)", "{verdict:?}");
    let want = "A003: polls published 100, modelled 200 (+100.0 %), and 1 more of its 3 counts";
    assert_eq!(verdict.misses, [want]);
    cells[2].note = Some("departs for invariant 3".into());
    assert!(judge(&cells).misses[0].ends_with("; departs for invariant 3"));
}
