//! Runs an invented experiment.

use std::num::NonZeroUsize;

use serde_json::Value;

use super::*;
use crate::fake::Fake;

fn run(fake: &Fake, jobs: usize) -> Reproduction {
    let options = Options { jobs: NonZeroUsize::new(jobs), ..Options::default() };
    fake.reproduce(&options, Progress::hidden).unwrap()
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let one = serde_json::to_string(&run(&Fake::default(), 1)).unwrap();
    for jobs in [2, 7] {
        assert_eq!(serde_json::to_string(&run(&Fake::default(), jobs)).unwrap(), one);
    }
}

#[test]
fn runs_stand_in_the_order_of_the_plan_with_their_seeds() {
    let reproduction = run(&Fake::default(), 3);
    let runs: Vec<_> = reproduction.runs.iter().map(|r| (r.label.as_str(), r.seed)).collect();
    assert_eq!(runs[..4], [("a at 1", 1), ("a at 1", 2), ("a at 1", 3), ("a at 2", 1)]);
}

#[test]
fn a_task_that_fails_or_panics_costs_its_own_cells_only() {
    let fake = Fake { fails: Some("a at 2"), panics: Some("b at 1") };
    let reproduction = run(&fake, 2);
    let absent: Vec<_> = reproduction
        .cells
        .iter()
        .filter(|cell| cell.model().is_none())
        .map(Cell::to_string)
        .collect();
    assert_eq!(absent.len(), 2, "{absent:?}");
    assert!(absent[0].contains("not modelled (no such load)"), "{absent:?}");
    assert!(absent[1].contains("not modelled (the run panicked: two owners)"), "{absent:?}");
    let failed = reproduction.runs.iter().filter(|run| run.failed.is_some()).count();
    assert_eq!(failed, 6, "three seeds each");
}

#[test]
fn quick_runs_each_cell_once_and_no_repetition_is_one() {
    let quick = Options { quick: true, ..Options::default() };
    assert_eq!(quick.seeds().collect::<Vec<_>>(), [1]);
    let none = Options { repetitions: 0, seed: u64::MAX, ..Options::default() };
    assert_eq!(none.seeds().collect::<Vec<_>>(), [u64::MAX]);
    let two = Options { repetitions: 2, seed: 40, ..Options::default() };
    assert_eq!(two.seeds().collect::<Vec<_>>(), [40, 41]);
}

#[test]
fn a_profile_s_ranges_are_a_part_of_what_draws_depend_on_and_of_nothing_else() {
    let file = std::env::temp_dir().join(format!("napkin-ranges-{}.toml", std::process::id()));
    let identity = |draws: [u64; 2], most: &str| {
        let head = "name = \"mine\"\nabout = \"a test\"\nbased-on = \"epyc-7662\"\n[memcached]\n";
        let range = format!("fitted = true, range = [\"500 ns\", \"{most}\"]");
        let work = format!("work = {{ value = \"1400 ns\", {range} }}\n");
        std::fs::write(&file, format!("{head}{work}")).unwrap();
        let ([uncertainty, causes], profile) = (draws, Some(file.clone()));
        let options = Options { uncertainty, causes, profile, ..Options::default() };
        options.identity(&["2024"]).unwrap()
    };
    for draws in [[20, 0], [0, 20]] {
        assert_ne!(identity(draws, "4 us"), identity(draws, "5 us"));
        assert_eq!(identity(draws, "5 us")["ranges"]["memcached.work"][1], 5_000.0);
    }
    assert_eq!(identity([0, 0], "4 us"), identity([0, 0], "5 us"));
    assert!(identity([0, 0], "4 us").get("ranges").is_none());
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn another_profile_is_named_and_what_is_fitted_is_the_own_one_s() {
    let own = run(&Fake::default(), 1);
    assert_eq!((&own.profiles[..], own.notes.len()), (&["nowhere".to_owned()][..], 1));
    let options = Options { profile: Some("xsk-2025".into()), ..Options::default() };
    let other = Fake::default().reproduce(&options, Progress::hidden).unwrap();
    assert_eq!(other.profiles, ["xsk-2025"]);
    assert!(other.notes[0].ends_with("was fitted in nowhere"), "{:?}", other.notes);
    assert!(crate::text::render(&other).contains("on the host profile xsk-2025\n"));
}

#[test]
fn draws_give_intervals_and_orders_and_take_their_runs() {
    let options = Options { uncertainty: 3, ..Options::default() };
    assert_eq!(Fake::default().size(&options).unwrap(), 12 + 3 * 4);
    let reproduction = Fake::default().reproduce(&options, Progress::hidden).unwrap();
    // The fake's figures rise with the seed; those of the draws are 4, 5 and 6.
    let interval = reproduction.cells[0].interval.unwrap();
    assert_eq!((interval.low, interval.high, interval.draws), (116.5, 118.5, 3));
    let uncertainty = reproduction.uncertainty.unwrap();
    assert_eq!((uncertainty.draws, uncertainty.orders.len()), (3, 2));
    assert!(uncertainty.orders.iter().all(|orders| orders.kept == 1.0));
    let without = run(&Fake::default(), 1);
    assert!(without.uncertainty.is_none() && without.cells[0].interval.is_none());
    assert_eq!(without.cells[0].modelled, reproduction.cells[0].modelled);
}

#[test]
fn a_reproduction_that_was_interrupted_goes_on_to_the_same_bytes() {
    let folder = std::env::temp_dir().join(format!("napkin-fake-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let begin = || Partial::begin(&folder, "napkin 1.0", "reproduce", Value::Null);
    let on = |partial: &mut Partial, interrupt: &Interrupt| {
        let options = Options { jobs: NonZeroUsize::new(1), ..Options::default() };
        // A failed task is not stored: it runs again, and fails again.
        let fake = Fake { fails: Some("a at 2"), ..Fake::default() };
        fake.resumable(&options, Progress::hidden, interrupt, partial).unwrap()
    };
    let never = Interrupt::default();
    let mut partial = begin();
    let whole = serde_json::to_string(&on(&mut partial, &never)).unwrap();
    assert_eq!(partial.done(), 12);
    let path = partial.kept().unwrap().unwrap().to_owned();
    drop(partial);
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = lines.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 1 + 12 - 3);
    std::fs::write(&path, lines[..5].concat()).unwrap();

    let asked = Interrupt::default();
    asked.note(2);
    let part = on(&mut begin().resume(&path).unwrap(), &asked);
    assert!(part.verdicts.is_empty());
    let note = part.notes.last().unwrap();
    assert!(note.starts_with("interrupted, with 4 of 12 runs"), "{note}");
    assert!(part.cells.iter().any(|cell| cell.to_string().contains(NOT_RUN)), "{part:?}");

    let mut partial = begin().resume(&path).unwrap();
    assert_eq!(serde_json::to_string(&on(&mut partial, &never)).unwrap(), whole);
    assert_eq!(partial.done(), 12);
    partial.end();
    std::fs::remove_dir(&folder).expect("nothing is left in it");
}
