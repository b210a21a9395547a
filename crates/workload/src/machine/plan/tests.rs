//! Tables of the stand-in workload.

use super::*;
use crate::machine::stand_in::{self, StandIn};

pub(super) fn plan() -> Plan<'static> {
    Plan {
        scenario: &StandIn,
        profile: stand_in::profile(),
        source: "built-in".to_owned(),
        policies: NamedPolicy::all([Policy::BASE, Policy::THREADED]),
        loads: StandIn.loads(),
        repetitions: 2,
        drawn: false,
        seed: 1,
        warm_up: 5_000_000,
        window: 50_000_000,
        jobs: None,
    }
}

fn json(plan: &Plan<'_>) -> Value {
    serde_json::to_value(plan.run(Progress::hidden).unwrap()).unwrap()
}

#[test]
fn the_table_has_the_other_worlds_json() {
    let report = json(&plan());
    assert_eq!((&report["world"], &report["workload"]), (&"machine".into(), &"stand-in".into()));
    assert_eq!(report["host"]["profile"]["name"], "emulator-7.2");
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["policy"].clone(), row["load"]["frames_per_s"].clone()))
        .collect();
    let want = [("base", 5e3), ("threaded", 5e3), ("base", 2e4), ("threaded", 2e4)];
    assert_eq!(names, want.map(|(policy, load)| (policy.into(), load.into())));
    for row in rows {
        assert_eq!(row["repetitions"].as_array().unwrap().len(), 2);
        assert!(row["latency_ns"]["p50"].as_u64().unwrap() > 0);
        assert!(row["cpu"]["work"].as_f64().unwrap() > 0.0);
        assert!(row["repetitions"][0]["per_queue"][0]["polls_per_s"].is_f64());
    }
}

/// The notes of a short table of a workload.
fn notes(workload: &str, load: &str, policies: &str) -> Vec<String> {
    let scenario = crate::find(workload).and_then(|it| it.machine()).expect("it has one");
    let profile = Profile::named(crate::schema(), scenario.profile()).unwrap();
    let (loads, policies) = (vec![load.to_owned()], NamedPolicy::read(policies).unwrap());
    let short = Plan { scenario, profile, loads, policies, repetitions: 1, ..plan() };
    short.run(Progress::hidden).unwrap().notes
}

#[test]
fn what_of_a_policy_takes_no_part_is_told_of_those_that_ran() {
    // The last policy is refused, so the note leaves it out; its row says why.
    let sink = notes("udp-sink", "5000", "base,busypoll,suspend20,busypoll-separate");
    let [note] = &sink[..] else { panic!("{sink:?}") };
    assert!(note.starts_with("the application waits in receive calls"), "{note}");
    assert!(note.ends_with("only the rest of them is measured: suspend20"), "{note}");
    let ping = notes("flood-ping", "flood", "base,busypoll-separate");
    assert!(ping[0].ends_with("measured: busypoll-separate"), "{ping:?}");
    let ssd = notes("ssd", "4K:5000", "suspend20,busypoll");
    assert!(ssd[0].starts_with("the application waits in an epoll"), "{ssd:?}");
    assert!(ssd[0].ends_with("measured: busypoll"), "{ssd:?}");
    let both = notes("xsk-rr", "12000", "busypoll,suspend20");
    assert_eq!(both, [""; 0], "it does as it is asked to");
}

#[test]
fn interrupts_of_both_kinds_are_told_where_the_card_raises_both() {
    let noted = |notes: Vec<String>| notes.iter().any(|note| note.contains("nic.tx-interrupts"));
    assert!(noted(notes("flood-ping", "flood", "base")));
    assert!(!noted(notes("udp-sink", "5000", "base")));
}

#[test]
fn the_same_seeds_give_the_same_bytes_on_any_number_of_threads() {
    let one = json(&Plan { jobs: NonZeroUsize::new(1), ..plan() }).to_string();
    assert_eq!(json(&Plan { jobs: NonZeroUsize::new(4), ..plan() }).to_string(), one);
    assert_ne!(json(&Plan { seed: 7, ..plan() }).to_string(), one);
}

#[test]
fn a_run_that_was_interrupted_goes_on_to_the_same_bytes() {
    let folder = std::env::temp_dir().join(format!("napkin-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let plan = Plan { jobs: NonZeroUsize::new(1), ..plan() };
    let begin = || Partial::begin(&folder, "napkin 1.0", "bench", plan.identity());
    let whole = json(&plan).to_string();
    // Keep a whole run, then cut its file to what an interrupted run would have left.
    let mut partial = begin();
    plan.resumable(Progress::hidden, &Interrupt::default(), &mut partial).unwrap();
    let path = partial.kept().unwrap().unwrap().to_owned();
    drop(partial);
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = lines.split_inclusive('\n').collect();
    assert_eq!(lines.len() as u64, 1 + plan.size());
    for kept in [1, 3, 8] {
        std::fs::write(&path, lines[..=kept].concat()).unwrap();
        let mut partial = begin().resume(&path).unwrap();
        let asked = Interrupt::default();
        asked.note(2);
        let error = plan.resumable(Progress::hidden, &asked, &mut partial);
        if kept < 8 {
            let Err(PlanError::Interrupted { report: Some(report), .. }) = error else {
                panic!("{error:?}")
            };
            let repetitions: usize = report.rows.iter().map(|it| it.repetitions.len()).sum();
            assert_eq!(repetitions, kept, "nothing has begun");
        }
        drop(partial);
        let mut partial = begin().resume(&path).unwrap();
        let report = plan.resumable(Progress::hidden, &Interrupt::default(), &mut partial).unwrap();
        assert_eq!(serde_json::to_value(report).unwrap().to_string(), whole, "{kept}");
        assert_eq!(partial.done(), plan.size());
    }
    let other = Plan { window: plan.window + 1, ..plan.clone() };
    let other = Partial::begin(&folder, "napkin 1.0", "bench", other.identity());
    let error = other.resume(&path).unwrap_err().to_string();
    assert!(error.contains("window_ns is 50000000 there and 50000001 now"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let refused = |plan: Plan<'_>| {
        let error = plan.run(Progress::hidden).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    assert!(refused(Plan { policies: Vec::new(), ..plan() }).ends_with("one policy"));
    assert!(refused(Plan { loads: Vec::new(), ..plan() }).ends_with("one load"));
    assert!(refused(Plan { repetitions: 0, ..plan() }).ends_with("one repetition"));
    assert!(refused(Plan { window: 0, ..plan() }).contains("above 0"));
    assert!(refused(Plan { warm_up: MAX_VIRTUAL_TIME, ..plan() }).contains("at most an hour"));
    let zero = refused(Plan { loads: vec!["0".into()], ..plan() });
    assert!(zero.contains("a load of 0"), "{zero}");
    let twice = refused(Plan { loads: vec!["5000".into(), "5k".into()], ..plan() });
    assert_eq!(twice, "--load: '5k' stands twice");
    let beyond = refused(Plan { loads: vec!["4000000000000".into()], ..plan() });
    assert!(beyond.contains("link.rate"), "{beyond}");
}

#[test]
fn a_timeline_that_would_be_too_large_is_refused_with_the_window_that_fits() {
    let error = Timeline::new("base at 5000", 0, 1_000, 0).check();
    assert!(error.is_ok(), "nothing was recorded");
    let plan = Plan { loads: vec!["20000".into()], ..plan() };
    assert_eq!(plan.timelines(20_000_000, &Interrupt::default()).unwrap().len(), 2);
    assert!(matches!(plan.timelines(0, &Interrupt::default()), Err(PlanError::Window(0))));
    // 400 frames under each of two policies.
    let error = plan.recorded(20_000_000, 100, &Interrupt::default()).unwrap_err();
    assert!(error.is_usage(), "{error}");
    assert!(error.to_string().contains("would fit: give --trace-window"), "{error}");
}

#[test]
fn a_p99_that_a_draw_does_not_tell_is_the_larger_and_two_of_them_keep_no_order() {
    let plan = Plan { drawn: true, repetitions: 6, loads: vec!["5000".into()], ..plan() };
    // A run of 1000 requests with this latency, or in which 2 % were not answered.
    let run = |step: u64, us: Option<u64>| {
        let mut latency = napkin_measure::Latency::new();
        (0..1_000).for_each(|_| latency.record(1_000 * us.unwrap_or(10)));
        let mut figures = Measurement { latency_ns: latency.summary(0), ..Measurement::default() };
        figures.set_due(1_000, if us.is_some() { 1_000 } else { 980 });
        Repetition { step, figures }
    };
    let row = |place: u64, draws: &[Option<u64>]| {
        let runs = (0..).zip(draws).map(|(draw, us)| run(2 * draw + place, *us));
        Row::of(&plan.policies[place as usize], Map::new(), runs.collect(), Vec::new())
    };
    let base = row(0, &[Some(10), Some(10), Some(10), None, None, Some(10)]);
    // The last draw failed.
    let threaded = row(1, &[Some(20), Some(20), None, Some(20), None]);
    let uncertainty = plan.uncertainty(&[base, threaded]);
    let [orders] = &uncertainty.orders[..] else { panic!("{uncertainty:?}") };
    assert_eq!((uncertainty.draws, orders.pairs, orders.kept), (6, 1, 3.0 / 5.0));
    // The clearest case: in most draws, the p99 of one policy is unknown.
    let base = row(0, &[Some(10), Some(10), Some(10), Some(10), Some(10), Some(10)]);
    let lost = row(1, &[None, None, None, Some(20), None, None]);
    let uncertainty = plan.uncertainty(&[base, lost.clone()]);
    let [orders] = &uncertainty.orders[..] else { panic!("{uncertainty:?}") };
    assert_eq!((orders.pairs, orders.kept, orders.untold.len()), (1, 1.0, 0));
    let same = row(0, &[None; 6]);
    assert!(plan.uncertainty(&[same, lost]).orders.is_empty(), "which of two is longer");
}

#[test]
fn a_draw_is_the_same_for_all_policies_and_says_which_orders_are_left() {
    let drawn = Plan { drawn: true, repetitions: 4, ..plan() };
    let report = drawn.run(Progress::hidden).unwrap();
    let uncertainty: Uncertainty =
        serde_json::from_value(report.extra["uncertainty"].clone()).unwrap();
    assert_eq!(uncertainty.draws, 4);
    assert!(report.notes.iter().any(|note| note.starts_with("4 draws of all fitted")));
    let second = Plan { jobs: NonZeroUsize::new(1), ..drawn }.run(Progress::hidden).unwrap();
    assert_eq!(serde_json::to_value(&second).unwrap(), serde_json::to_value(&report).unwrap());
}
