//! The modelled world from the command line, alone and beside the engine.

#[path = "../common/mod.rs"]
mod common;
mod modelled;

use common::{TempDir, napkin, text};

#[test]
fn one_command_sets_the_same_experiment_in_two_worlds_side_by_side() {
    let place = TempDir::new("side-by-side");
    let file = place.0.join("rr.json");
    let ran = napkin([
        "bench",
        "tcp-rr",
        "--world",
        "engine,machine",
        "--policy",
        "base,threaded",
        "--repetitions",
        "1",
        "--window",
        "50ms",
        "--flows",
        "50",
        "--warm-up",
        "10ms",
        "--quiet",
        "--json",
        file.to_str().expect("a plain path"),
    ]);
    let printed = text(&ran.stdout);
    assert!(ran.status.success(), "{printed}{}", text(&ran.stderr));
    let (_, both) = printed.split_once("engine, machine, side by side\n").expect("a third table");
    let rows: Vec<_> = both.lines().skip(2).take(4).collect();
    let names = rows.iter().map(|row| row.split_whitespace().take(2).collect::<Vec<_>>());
    let wanted =
        [["engine", "base"], ["machine", "base"], ["engine", "threaded"], ["machine", "threaded"]];
    assert_eq!(names.collect::<Vec<_>>(), wanted, "{printed}");
    assert!(both.contains("conclusion: "), "{printed}");
    let read = |world: &str| {
        let path = format!("{}.{world}.json", file.display());
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON");
        let loads = json["rows"].as_array().expect("rows").iter().map(|row| row["load"].clone());
        (json["workload"].clone(), json["world"].clone(), loads.collect::<Vec<_>>())
    };
    let (engine, machine) = (read("engine"), read("machine"));
    assert_eq!((engine.1, machine.1), ("engine".into(), "machine".into()));
    assert_eq!((engine.0, engine.2), (machine.0, machine.2), "the same experiment");
}

#[test]
fn worlds_whose_loads_have_nothing_in_common_do_not_stand_side_by_side() {
    let args = "bench flood-ping --world engine,machine --repetitions 1 --window 50ms \
                --warm-up 10ms --quiet";
    let ran = napkin(args.split_whitespace());
    let printed = text(&ran.stdout).replace("\n  ", " ");
    assert!(ran.status.success(), "{printed}{}", text(&ran.stderr));
    let why = "engine and machine do not stand side by side: their loads have nothing in common (";
    assert!(printed.contains(why) && !printed.contains("in the same order"), "{printed}");
}
