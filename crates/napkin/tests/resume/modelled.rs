//! Interrupted runs in the modelled world, which give the same bytes after any number of interruptions.

use napkin_testing::test;

use super::*;

#[test]
fn a_modelled_bench_ends_with_the_bytes_of_one_that_was_not_interrupted() {
    let place = TempDir::new("resume-machine");
    let args = ["bench", "udp-sink", "--world", "machine", "--policy", "base-6.4,ksoftirqd"];
    let load = ["--load", "5000,13000", "--seeds", "10", "--warm-up", "5ms", "--window", "300ms"];
    let args = [&args[..], &load, &["--json", "a.json", "--jobs", "1"]].concat();
    let output = interrupted(&place, &args, Signal::TERM, 3);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{stderr}");
    assert!(stderr.contains(" of 40 measurements done; go on with: "), "{stderr}");
    assert!(
        stderr.contains("40 runs, the first in ") && stderr.contains(" on 1 CPU if all"),
        "{stderr}"
    );
    assert!(text(&output.stdout).contains("the run ended early, with "));
    let done: usize = repetitions(&place).iter().sum();
    assert!((3..40).contains(&done), "{done}");
    let resume = resume_args(&output);
    let resumed = run(&place, &resume.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let bytes = fs::read(place.0.join("a.json")).expect("a report");
    let whole = run(&place, &args);
    assert!(whole.status.success());
    assert_eq!(resumed.stdout, whole.stdout);
    assert!(bytes == fs::read(place.0.join("a.json")).expect("a report"));
    assert_eq!(left(&place), [] as [PathBuf; 0]);
}

#[test]
fn a_reproduction_ends_with_the_bytes_of_one_that_was_not_interrupted() {
    let place = TempDir::new("resume-reproduce");
    let args = ["reproduce", "2007", "2018", "--quick", "--jobs", "1", "--json", "a.json"];
    let output = interrupted(&place, &args, Signal::INT, 2);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    let (_, far) = stderr.split_once("\ninterrupted: ").expect("it says so");
    assert!(
        far.contains(" measurements done; go on with: napkin reproduce 2007 2018 "),
        "{stderr}"
    );
    let table = text(&output.stdout);
    assert!(table.contains("no verdict is given on a part of them"), "{table}");
    let resume = resume_args(&output);
    let resumed = run(&place, &resume.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let bytes = fs::read(place.0.join("a.json")).expect("a document");
    let whole = run(&place, &args);
    assert!(whole.status.success());
    assert_eq!(resumed.stdout, whole.stdout);
    assert!(bytes == fs::read(place.0.join("a.json")).expect("a document"));
    assert_eq!(left(&place), [] as [PathBuf; 0]);
}

#[test]
fn a_sweep_says_how_far_it_came_and_goes_on() {
    let place = TempDir::new("resume-sweep");
    let args = ["sweep", "udp-sink", "--vary", "load=5000,13000", "--vary", "seed=1..20"];
    let args = [&args[..], &["--window", "300ms", "--jobs", "1", "--out", "a.csv"]].concat();
    let output = interrupted(&place, &args, Signal::INT, 2);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    let (_, far) = stderr.split_once("\ninterrupted: ").expect("it says so");
    let done: usize = far.split(' ').next().unwrap().parse().expect("a number");
    let csv = || fs::read_to_string(place.0.join("a.csv")).expect("a sheet");
    assert_eq!(csv().lines().count(), 1 + done);
    let resume = resume_args(&output);
    assert_eq!(resume[..], [&args[..], &["--resume"]].concat());
    // Resume, interrupt soon, and resume again.
    let resume: Vec<&str> = resume.iter().map(String::as_str).collect();
    let output = interrupted(&place, &resume, Signal::TERM, done + 1);
    assert_eq!(output.status.code(), Some(143));
    let stderr = text(&output.stderr);
    assert!(stderr.ends_with("--out a.csv --resume\n"), "{stderr}");
    let resumed = run(&place, &resume);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let resumed = csv();
    fs::remove_file(place.0.join("a.csv")).expect("a sheet");
    assert!(run(&place, &args).status.success());
    assert_eq!(resumed, csv());
}

#[test]
fn a_swarm_goes_on_with_its_totals() {
    let place = TempDir::new("resume-swarm");
    let args = ["swarm", "--seeds", "5..104", "--jobs", "1"];
    let output = interrupted(&place, &args, Signal::INT, 1);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(text(&output.stdout).contains("every invariant held so far"), "{output:?}");
    assert!(stderr.contains("100 seeds; every 10 s") && stderr.contains(" left\n"), "{stderr}");
    assert!(stderr.contains("interrupted: the next seed is "), "{stderr}");
    let resume = resume_args(&output);
    let resumed = run(&place, &resume.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    // Seeds, virtual time, events, frames and faults, without the real time.
    let totals = |output: &Output| text(&output.stdout).split(" in ").next().map(str::to_owned);
    let whole = run(&place, &args);
    assert!(totals(&whole).is_some_and(|it| it.starts_with("100 seeds, ")), "{whole:?}");
    assert_eq!(totals(&resumed), totals(&whole));
    assert_eq!(left(&place), [] as [PathBuf; 0]);
    let other = run(&place, &["swarm", "--seeds", "6..104", "--resume", "none.partial"]);
    assert_eq!(other.status.code(), Some(1), "{}", text(&other.stderr));
}
