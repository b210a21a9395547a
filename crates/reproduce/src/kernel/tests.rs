use super::*;
use crate::experiment::Reproduce;
use napkin_measure::report::Progress;

fn row(id: &str) -> OracleRow {
    scenarios().unwrap().into_iter().find(|row| row.id == id).unwrap()
}

fn run(id: &str) -> Counted {
    let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
    outcome(&Point { row: row(id), profile, change: None }, 1).unwrap()
}

#[test]
fn every_scenario_of_the_table_is_one_that_the_machine_has() {
    for row in scenarios().unwrap() {
        let scenario = scenario(&row).unwrap_or_else(|why| panic!("{}: {why}", row.id));
        assert_eq!(scenario.frames, row.sent);
    }
}

#[test]
fn a_row_that_is_not_modelled_says_which_column_it_is() {
    let rows = [
        OracleRow { nsock: 2, ..row("A001") },
        OracleRow { wait: "poll".into(), ..row("A001") },
        OracleRow { phases: "two".into(), ..row("A001") },
    ];
    let whys = rows.map(|row| scenario(&row).unwrap_err());
    assert!(whys[0].contains("nsock 2"), "{whys:?}");
    assert!(whys[1].contains("wait \"poll\""), "{whys:?}");
    assert!(whys[2].contains("phases \"two\""), "{whys:?}");
}

#[test]
fn second_processes_cycles_of_modes_and_blocking_receivers_are_rows_as_well() {
    let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
    for (event, wait) in [
        (Event::TwoIdle, "epoll"),
        (Event::Second, "epoll"),
        (Event::ThreadedCycle, "epoll"),
        (Event::None, "recv"),
    ] {
        let row = OracleRow { event, wait: wait.into(), ..row("A003") };
        let point = Point { row, profile: profile.clone(), change: None };
        let counted = outcome(&point, 1).unwrap_or_else(|why| panic!("{event:?}: {why}"));
        assert_eq!(counted.counts["NIC received"], 100, "{event:?}");
    }
}

#[test]
fn with_interrupts_a_packet_a_millisecond_is_an_interrupt_and_a_poll_each() {
    let counts = run("A003").counts;
    for quantity in ["interrupts", "non-empty polls", "network softirqs", "epoll returns"] {
        assert_eq!(counts[quantity], 100, "{quantity}");
    }
    assert_eq!((counts["empty polls"], counts["timer starts"]), (0, 0));
}

#[test]
fn deferral_returns_to_interrupts_at_the_hundredth_empty_poll() {
    let counts = run("A022").counts;
    assert_eq!(counts["empty polls"], 100);
    assert!(counts["timer starts"] >= counts["timer expiries"], "{counts:?}");
}

#[test]
fn a_wait_that_suspends_polls_once_itself_and_once_in_the_softirq_that_resumes() {
    let counts = run("A053").counts;
    assert_eq!(counts["app, empty polls"], 80);
}

#[test]
fn all_rows_stand_side_by_side_and_a_second_run_is_the_same() {
    let once = || Kernel.reproduce(&Options::default(), Progress::hidden).unwrap();
    let (one, two) = (once(), once());
    assert_eq!(one.runs.len(), 50);
    assert!(one.runs.iter().all(|run| run.failed.is_none()));
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
}

#[test]
fn a_change_without_width_is_no_change() {
    let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
    let none =
        Change { name: "none", what: "nothing", disturbance: Default::default(), costs: false };
    for id in ["A015", "A026", "C098"] {
        let point = |change| Point { row: row(id), profile: profile.clone(), change };
        assert_eq!(outcome(&point(Some(none)), 9).unwrap(), outcome(&point(None), 1).unwrap());
    }
}

#[test]
fn a_draw_of_a_change_is_its_seed_s() {
    let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
    for change in CHANGES {
        let run = |id, seed| {
            let point = Point { row: row(id), profile: profile.clone(), change: Some(change) };
            outcome(&point, seed).unwrap_or_else(|why| panic!("{}: {why}", change.name))
        };
        // A microsecond has no effect on a row that only timers poll (A026); it has if an application polls (C098).
        for id in ["A026", "C098"] {
            assert_eq!(run(id, 1), run(id, 1), "{}", change.name);
        }
        let differs = |id| (2..6).any(|seed| run(id, seed) != run(id, 1));
        assert!(differs("A026") || differs("C098"), "{}", change.name);
    }
}

#[test]
fn causes_are_told_with_their_controls_and_no_verdict_changes() {
    let of = |causes| {
        let options = Options { causes, ..Options::default() };
        let size = Kernel.size(&options).unwrap();
        (size, Kernel.reproduce(&options, Progress::hidden).unwrap())
    };
    let ((few, without), (many, with)) = (of(0), of(1));
    assert_eq!((few, many), (50, 50 + 50 * CHANGES.len() as u64));
    assert!(without.causes.is_none());
    let got = |it: &crate::Reproduction| -> Vec<_> {
        it.verdicts.iter().map(|it| (it.met, it.got.clone(), it.misses.len())).collect()
    };
    assert_eq!(got(&with), got(&without));
    let causes = with.causes.as_ref().expect("they were asked for");
    let names: Vec<_> = causes.changes.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, CHANGES.map(|it| it.name));
    for tried in &causes.changes {
        assert_eq!(tried.failed, 0, "{tried:?}");
        assert_eq!((tried.met + causes.rows.len(), tried.others), (50, 50), "{tried:?}");
    }
    // Each arrival is late by less than a microsecond, to which almost no count is sensitive.
    let jitter = causes.changes.iter().find(|it| it.name == "jitter").expect("a change");
    assert!(jitter.stay * 10 >= jitter.met * 9, "{jitter:?}");
    let misses = &with.verdicts[0].misses;
    assert!(
        misses.iter().all(|it| it.contains("cured by") || it.contains("spanned")),
        "{misses:?}"
    );
    assert_eq!(with, of(1).1);
}
