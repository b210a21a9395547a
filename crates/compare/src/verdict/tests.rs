//! Verdicts on synthetic rounds.

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
    let judged = verdict(&report(vec![
        row("base", &rounds([100.0, 110.0, 90.0, 100.0, 105.0, 95.0], 1.0)),
        row("suspend20", &rounds([40.0, 44.0, 39.0, 41.0, 43.0, 37.0], 1.1)),
        row("defer200", &rounds([300.0, 310.0, 290.0, 300.0, 305.0, 295.0], 0.5)),
    ]));
    assert_eq!(
        judged.sentence,
        "suspend20: p99 of the server's part 0.40 of base (97 %: 0.39 to 0.43) at 1.10 of its CPU (97 %: \
         1.10 to 1.10); defer200 costs less CPU, 0.50 of base (97 %: 0.50 to 0.50), at 3.00 of its p99"
    );
    assert_eq!(
        judged.notes,
        [
            "of 4 intervals that were searched for a difference each holds its middle with 97 %: that at least \
             one does not has a chance of up to 12 %"
        ]
    );
    assert_eq!((judged.searched, judged.best.as_deref()), (4, Some("suspend20")));
}

#[test]
fn where_a_policy_answers_more_answers_decide_and_who_answers_less_is_never_the_best() {
    let mut rows = vec![
        row("base", &[(100.0, 1.0); 6]),
        row("defer200", &[(40.0, 0.5); 6]),
        row("suspend20", &[(300.0, 0.9); 6]),
    ];
    let answers = |row: &mut Row, rate: f64| {
        row.slices.iter_mut().for_each(|slice| slice.answers_per_s = Some(rate));
    };
    answers(&mut rows[1], 4_000.0);
    answers(&mut rows[2], 12_000.0);
    let judged = verdict(&report(rows.clone()));
    assert_eq!(
        judged.sentence,
        "suspend20: answers a second 1.20 of base (97 %: 1.20 to 1.20) at 0.90 of its CPU (97 %: 0.90 to 0.90), \
         at 0.75 of its CPU per answer (97 %: 0.75 to 0.75); defer200 answers less, 0.40 of base (97 %: 0.40 to \
         0.40), at 1.25 of its CPU per answer (97 %: 1.25 to 1.25)"
    );
    assert_eq!((judged.quantity, judged.searched), (Some(Quantity::Answers), 2));
    assert!(
        judged.notes[0].starts_with("not every policy takes all requests"),
        "{:?}",
        judged.notes
    );

    // As many as the reference, within the variation between any two slices.
    answers(&mut rows[2], 10_300.0);
    let judged = verdict(&report(rows.clone()));
    assert_eq!(
        judged.sentence,
        "base: nothing is better in p99 of the server's part, and worse are suspend20 3.00 (97 %: 3.00 to \
         3.00), with 1.03 of its answers (97 %: 1.03 to 1.03), at 0.87 of its CPU per answer (97 %: 0.87 to \
         0.87); defer200 answers less, 0.40 of base (97 %: 0.40 to 0.40), at 1.25 of its CPU per answer (97 %: \
         1.25 to 1.25); suspend20 costs less CPU, 0.90 of base (97 %: 0.90 to 0.90), at 3.00 of its p99, with \
         1.03 of its answers (97 %: 1.03 to 1.03), at 0.87 of its CPU per answer (97 %: 0.87 to 0.87)"
    );
    assert_eq!((judged.best.as_deref(), judged.quantity), (Some("base"), Some(Quantity::P99)));

    rows.remove(2);
    let judged = verdict(&report(rows));
    assert_eq!(
        judged.sentence,
        "base: nothing is better in answers a second, and worse are defer200 0.40 (97 %: 0.40 to 0.40), at 1.25 \
         of its CPU per answer (97 %: 1.25 to 1.25)"
    );
    assert_eq!(judged.best.as_deref(), Some("base"));
}

#[test]
fn what_differs_in_both_directions_is_no_difference() {
    let judged = verdict(&report(vec![
        row("base", &rounds([100.0; 6], 1.0)),
        row("defer20", &rounds([90.0, 110.0, 99.0, 101.0, 95.0, 105.0], 1.0)),
    ]));
    assert_eq!(
        judged.sentence,
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
    let judged = verdict(&report(rows));
    assert_eq!(
        judged.sentence,
        "no difference in p99 and p90 was shown; threaded: p50 of the server's part 0.50 of base (97 %: \
         0.50 to 0.50) at 1.00 of its CPU, which may be the same"
    );
    assert_eq!((judged.quantity, judged.searched), (Some(Quantity::P50), 4));
    let notes = &judged.notes;
    assert!(notes[0].contains("of 4 intervals") && notes[0].ends_with("up to 12 %"), "{notes:?}");
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
    let notes = parts(11.9e6, 78e3);
    assert!(
        notes[0].starts_with("under base half of the requests wait 11.9 ms or longer in their sockets for the program, which works on one for 78.0 us"),
        "{notes:?}"
    );
    // The program itself waits for something, or the wait is elsewhere.
    assert_eq!([parts(11.9e6, 10e6), parts(40e3, 78e3)].concat(), [""; 0]);
}

#[test]
fn few_rounds_and_short_slices_are_said_to_be() {
    let mut few = report(vec![row("base", &[(100.0, 1.0); 4]), row("defer20", &[(50.0, 1.0); 4])]);
    let sentence = verdict(&few).sentence;
    assert!(
        sentence.starts_with("cannot tell: 4 whole rounds have no interval of 95 %, 6 have"),
        "{sentence}"
    );
    for row in &mut few.rows {
        row.slices
            .extend(row.slices.clone().into_iter().map(|it| Slice { round: it.round + 4, ..it }));
        for slice in &mut row.slices {
            let whole = slice.latency_ns.get_mut("whole").expect("there");
            (whole.p99, whole.count) = (None, 300);
        }
    }
    let judged = verdict(&few);
    assert_eq!(judged.quantity, Some(Quantity::P90));
    assert!(judged.notes[0].contains("--slice 4 times as long"), "{:?}", judged.notes);
}

#[test]
fn who_broke_the_guard_is_out_and_no_round_of_it_counts() {
    let mut bad = row("defer5000", &[(5_000.0, 0.2)]);
    bad.out = Some("p99<2x: 50 of 60 requests took more than 200 us".into());
    bad.slices[0].broken = bad.out.clone();
    let judged = verdict(&report(vec![row("base", &[(1.0, 1.0); 6]), bad.clone()]));
    assert_eq!(
        judged.sentence,
        format!("cannot tell: defer5000: {}", bad.out.as_ref().expect("set"))
    );
    let good = row("defer20", &rounds([0.5; 6], 1.0));
    let sentence = verdict(&report(vec![row("base", &rounds([1.0; 6], 1.0)), bad, good])).sentence;
    assert!(
        sentence.starts_with("defer20: p99") && sentence.contains("; defer5000 is out: p99<2x"),
        "{sentence}"
    );
    // Nor if it was the best for as many rounds as a verdict takes.
    let mut late = row("suspend20", &rounds([0.2; 6], 0.5));
    late.out = Some("p99<2x: in its seventh round".into());
    let good = row("defer20", &rounds([0.5; 6], 1.0));
    let judged = verdict(&report(vec![row("base", &rounds([1.0; 6], 1.0)), late, good]));
    assert!(judged.sentence.starts_with("defer20: p99"), "{}", judged.sentence);
    assert!(!judged.sentence.contains("suspend20 costs"), "{}", judged.sentence);
    assert!(judged.sentence.ends_with("suspend20 is out: p99<2x: in its seventh round"));
}
