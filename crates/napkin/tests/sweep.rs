//! `napkin sweep`: the real binary, killed and resumed.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{TempDir, napkin, text, within};

const SWEEP: [&str; 13] = [
    "sweep",
    "udp-sink",
    "--vary",
    "policy=base-6.4,ksoftirqd",
    "--vary",
    "load=5000,13000",
    "--vary",
    "seed=1..10",
    "--warm-up",
    "5ms",
    "--window",
    "300ms",
    "--quiet",
];

fn to(path: &Path) -> Vec<&str> {
    let path = path.to_str().expect("a plain path");
    SWEEP.into_iter().chain(["--out", path]).collect()
}

#[test]
fn on_standard_output_the_points_come_in_their_order() {
    let place = TempDir::new("sweep-dash");
    let file = place.0.join("a.csv");
    let path = file.to_str().expect("a plain path");
    let run = |out: &str, jobs: &str| {
        let vary = ["sweep", "udp-sink", "--vary", "load=5000,13000,21000", "--vary", "seed=1..3"];
        let short = ["--virtual", "20ms", "--warm-up", "5ms", "--quiet", "--jobs", jobs];
        napkin([&vary[..], &short, &["--out", out]].concat())
    };
    let streamed = run("-", "3");
    assert!(streamed.status.success(), "{}", text(&streamed.stderr));
    assert!(run(path, "1").status.success());
    assert_eq!(text(&streamed.stdout), std::fs::read_to_string(&file).expect("a sheet"));
    let resumed = napkin(["sweep", "udp-sink", "--vary", "seed=1..3", "--out", "-", "--resume"]);
    assert_eq!(resumed.status.code(), Some(2));
    assert!(text(&resumed.stderr).contains("--resume continues a file"));
}

#[test]
fn a_plot_is_never_written_over_the_figures_that_it_is_of() {
    let place = TempDir::new("sweep-plot-over");
    let (file, link) = (place.0.join("all.csv"), place.0.join("all.html"));
    fs::write(&file, "figures").expect("a file");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let path = file.to_str().expect("a plain path");
    for out in [path, link.to_str().expect("a plain path")] {
        let output = napkin(["sweep", "plot", path, "--x", "load", "--y", "p99", "--out", out]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("would be written over: name another file"), "{stderr}");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "figures");
    }
}

#[test]
fn a_sweep_killed_in_the_middle_goes_on_and_ends_with_the_same_bytes() {
    let place = TempDir::new("sweep-kill");
    let (whole, killed) = (place.0.join("whole.csv"), place.0.join("killed.csv"));
    let output = napkin(to(&whole));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("40 points (2 policy x 2 load x 10 seed); one takes "), "{stderr}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .args(to(&killed))
        .args(["--jobs", "1"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    within("some points are there", || {
        let lines = fs::read_to_string(&killed).unwrap_or_default().lines().count();
        (lines > 3).then_some(())
    });
    child.kill().expect("kill -9");
    child.wait().expect("our child");
    // As if killed in the middle of a line.
    let half = fs::read(&killed).expect("a file");
    fs::write(&killed, &half[..half.len() - 7]).expect("a file");
    let second = napkin(to(&killed));
    assert_eq!(second.status.code(), Some(2), "not without being asked");
    assert!(
        text(&second.stderr).contains("go on with it with --resume"),
        "{}",
        text(&second.stderr)
    );
    let resumed = napkin(to(&killed).into_iter().chain(["--resume"]));
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert_eq!(fs::read(&killed).expect("a file"), fs::read(&whole).expect("a file"));
}

#[test]
fn shards_one_of_them_killed_and_gone_on_with_merge_into_the_bytes_of_one_run() {
    let place = TempDir::new("sweep-shards");
    let whole = place.0.join("whole.csv");
    assert!(napkin(to(&whole)).status.success());
    let shards = ["1/4", "2/4", "3/4", "4/4"];
    let path = |shard: &str| place.0.join(format!("{}.csv", &shard[..1]));
    let start = |shard: &&str| {
        Command::new(env!("CARGO_BIN_EXE_napkin"))
            .args(to(&path(shard)))
            .args(["--shard", shard, "--jobs", "1"])
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs")
    };
    let mut children: Vec<_> = shards.iter().map(start).collect();
    // The second shard is killed with some points done, as by the loss of a cluster node.
    let killed = path(shards[1]);
    within("a point is there", || {
        let lines = fs::read_to_string(&killed).unwrap_or_default().lines().count();
        (lines > 1).then_some(())
    });
    children[1].kill().expect("kill -9");
    for child in &mut children {
        child.wait().expect("our child");
    }
    // As if killed in the middle of a line.
    let half = fs::read(&killed).expect("a file");
    fs::write(&killed, &half[..half.len() - 7]).expect("a file");
    let all = place.0.join("all.csv");
    let files = shards.map(path);
    let merge = || {
        let paths = files.iter().map(|it| it.to_str().expect("a plain path"));
        let out = ["--out", all.to_str().expect("a plain path")];
        napkin(["sweep", "merge"].into_iter().chain(paths).chain(out))
    };
    let early = merge();
    assert_eq!(early.status.code(), Some(2), "{}", text(&early.stderr));
    assert!(text(&early.stderr).contains("2.csv was not finished"), "{}", text(&early.stderr));
    assert!(!all.exists());
    let resumed = napkin(to(&killed).into_iter().chain(["--shard", "2/4", "--resume"]));
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let merged = merge();
    assert!(merged.status.success(), "{}", text(&merged.stderr));
    assert!(text(&merged.stderr).starts_with("40 points in "), "{}", text(&merged.stderr));
    assert_eq!(fs::read(&all).expect("a file"), fs::read(&whole).expect("a file"));
    let second = napkin(to(&killed).into_iter().chain(["--shard", "3/4", "--resume"]));
    assert!(text(&second.stderr).contains("holds another sweep"), "{}", text(&second.stderr));

    let page = place.0.join("all.html");
    let plot = |x: &str| {
        let all = all.to_str().expect("a plain path");
        let page = page.to_str().expect("a plain path");
        napkin(["sweep", "plot", all, "--x", x, "--y", "p99", "--out", page])
    };
    let wrong = plot("lod");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("it is one of: workload, profile, policy, load, seed"));
    assert!(!page.exists());
    let drawn = plot("load");
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    assert!(fs::read_to_string(&page).expect("a page").contains("latency_p99, us, over load"));
}

#[test]
fn a_shard_that_is_none_and_a_merge_of_nothing_are_refused() {
    let refused = |args: &[&str], expected: &str| {
        let output = napkin(args.iter().copied());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    };
    let vary = ["sweep", "udp-sink", "--vary", "seed=1..2", "--out", "-", "--shard"];
    refused(&[&vary[..], &["5/4"]].concat(), "K from 1 to N");
    refused(&["sweep", "merge", "--out", "-"], "required");
    refused(&["sweep"], "required");
}

#[test]
fn a_file_of_another_sweep_is_refused_and_left_as_it_is() {
    let place = TempDir::new("sweep-other");
    let file = place.0.join("a.csv");
    let path = file.to_str().expect("a plain path");
    let short = ["sweep", "udp-sink", "--window", "20ms", "--warm-up", "1ms", "--resume"];
    let run =
        |vary: &str| napkin(short.into_iter().chain(["--vary", vary, "--out", path, "--quiet"]));
    assert!(run("load=5000,6000").status.success());
    let before = fs::read(&file).expect("a file");
    let other = run("load=5000,7000");
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("holds another sweep"), "{}", text(&other.stderr));
    assert_eq!(fs::read(&file).expect("a file"), before);
}

#[test]
fn a_sweep_of_nothing_or_of_billions_is_refused_with_its_size() {
    let place = TempDir::new("sweep-size");
    let file = place.0.join("a.csv");
    let path = file.to_str().expect("a plain path");
    let refused = |vary: &[&str]| {
        let args = ["sweep", "udp-sink", "--out", path, "--window", "10ms", "--warm-up", "1ms"];
        let output = napkin(args.into_iter().chain(vary.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{vary:?}");
        assert!(!file.exists());
        text(&output.stderr)
    };
    assert!(refused(&[]).contains("a sweep of nothing"));
    assert!(refused(&["--vary", "load="]).contains("empty value"));
    let billions = refused(&["--vary", "seed=1..5000000000"]);
    assert!(billions.contains("5000000000 points (5000000000 seed); one takes"), "{billions}");
    assert!(billions.contains("more than --limit 100000"), "{billions}");
    let unknown = refused(&["--vary", "cost.pol=1us"]);
    assert!(unknown.contains("did you mean 'cost.poll'?"), "{unknown}");
    let zero = refused(&["--vary", "load=0,5000"]);
    assert!(zero.contains("a load of 0"), "{zero}");
}
