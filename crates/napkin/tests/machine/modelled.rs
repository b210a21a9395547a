//! Bench, profiles, reproductions and the swarm in the modelled world alone, which do not depend on the host.

use serde_json::Value;

use super::common::{TempDir, napkin, text};

/// Options of a run that is short on any machine.
const SHORT: [&str; 6] = ["--virtual", "50ms", "--warm-up", "10ms", "--seeds", "2"];

fn bench(args: &[&str]) -> std::process::Output {
    napkin(["bench"].into_iter().chain(args.iter().copied()).chain(SHORT).chain(["--quiet"]))
}

/// The error of a command that is refused with exit code 2.
fn refused(args: &[&str]) -> String {
    let output = napkin(args.iter().copied());
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    stderr
}

fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn a_timeline_that_cannot_be_written_costs_no_table() {
    let args = ["bench", "udp-sink", "--world", "machine", "--policy", "base", "--load", "1000"];
    let output = napkin(args.into_iter().chain(SHORT).chain(["--quiet", "--trace", "/dev/full"]));
    // If the timeline goes to a device, text goes to standard error.
    let error = text(&output.stderr);
    assert!(error.lines().any(|line| line.starts_with("base")), "{error}");
    assert!(error.contains("/dev/full: No space"), "{error}");
    assert_eq!(output.status.code(), Some(1), "{error}");
}

#[test]
fn every_workload_runs_in_the_machine_and_leaves_the_other_worlds_json() {
    let place = TempDir::new("machine-all");
    let loads = [
        ("flood-ping", "flood"),
        ("udp-sink", "13000"),
        ("memcached", "100k"),
        ("xsk-rr", "12000"),
        ("tcp-rr", "1"),
        ("ssd", "4K:10000"),
    ];
    for (workload, load) in loads {
        let file = place.0.join(format!("{workload}.json"));
        let path = file.to_str().expect("a plain path");
        let args = [workload, "--world", "machine", "--load", load, "--json", path];
        let output = bench(&args);
        assert!(output.status.success(), "{workload}: {}", text(&output.stderr));
        let report = json(&file);
        assert_eq!((&report["world"], &report["workload"]), (&"machine".into(), &workload.into()));
        assert!(report["host"]["profile"]["name"].is_string(), "{workload}");
        for row in report["rows"].as_array().expect("rows") {
            let policy = &row["policy"];
            assert!(row["achieved_per_s"].as_f64() > Some(0.0), "{workload} {policy}");
            // A window this short has no p99 if it has fewer than 1000 answers.
            assert!(row["latency_ns"]["mean"].as_f64() > Some(0.0), "{workload} {policy}");
            let parts = ["work", "poll", "waiting", "asleep"];
            let sum: f64 = parts.iter().filter_map(|part| row["cpu"][part].as_f64()).sum();
            // Each of the four is written with nine digits.
            assert!((sum - 1.0).abs() <= 2.0001e-9, "{workload} {policy}: {sum}");
            let runs = row["repetitions"].as_array().expect("runs");
            assert_eq!(runs.len(), 2, "a run for each seed");
            assert!(runs[0]["per_queue"][0]["polls_per_s"].is_f64(), "{workload} {policy}");
            assert!(runs[0]["softirq_us_per_request"].is_f64(), "{workload} {policy}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let run = |more: &[&str]| {
        let args = [&["udp-sink", "--world", "machine", "--load", "13000"], more].concat();
        text(&bench(&args).stdout)
    };
    let once = run(&["--jobs", "1"]);
    assert!(once.contains("base-6.4") && once.contains("qemu-2018"), "{once}");
    assert_eq!(run(&["--jobs", "3"]), once);
    assert_ne!(run(&["--seed", "9"]), once);
}

#[test]
fn with_a_dash_the_figures_are_alone_on_standard_output() {
    let args = ["udp-sink", "--world", "machine", "--load", "13000", "--json", "-"];
    let output = bench(&[&args[..], &["--policy", "mine=feedback,hold=20us"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    let row = &report["rows"][0];
    assert_eq!(row["name"], "mine");
    assert_eq!(row["policy"], "hold=20us,feedback=on");
    let table = text(&output.stderr);
    assert!(
        table.contains("\nmine ") && table.contains("mine: hold=20us,feedback=on\n"),
        "{table}"
    );
    let twice = bench(&[&args[..], &["--trace", "-"]].concat());
    assert!(text(&twice.stderr).contains("standard output: another one goes there"));
    assert!(twice.stdout.is_empty());
    let timeline = bench(&[&args[..5], &["--trace", "-"]].concat());
    let timeline: Value = serde_json::from_slice(&timeline.stdout).expect("nothing but JSON");
    assert!(timeline["traceEvents"].is_array());
}

#[test]
fn worlds_that_would_write_over_each_other_s_file_are_refused_before_any_runs() {
    let place = TempDir::new("machine-one-file");
    let [json, trace] = ["a", "a.engine.json"].map(|name| place.0.join(name).display().to_string());
    let args = ["flood-ping", "--world", "engine,machine", "--json", &json, "--trace", &trace];
    let output = bench(&args);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("a.engine.json: another one goes there"), "{stderr}");
    assert!(output.stdout.is_empty(), "before anything runs");
}

#[test]
fn a_run_says_what_it_shows_and_what_to_learn_from_it() {
    let output = bench(&["udp-sink", "--world", "machine", "--load", "13000,21000", "--json", "-"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let conclusion = report["conclusion"].as_str().expect("a sentence");
    let stderr = text(&output.stderr).replace("\n  ", " ");
    let (before, after) = stderr.split_once("\npolicy ").expect("a table");
    assert!(before.contains("Shows under which policies it keeps"), "{stderr}");
    assert!(after.trim_end().ends_with(&format!("\nconclusion: {conclusion}")), "{stderr}");
    for row in report["rows"].as_array().expect("rows") {
        assert!(row.get("interrupted").is_none(), "in virtual time nobody interrupts: {row}");
    }
}

#[test]
fn a_page_has_plots_and_tables_and_where_they_come_from() {
    let place = TempDir::new("machine-page");
    let file = place.0.join("page.html");
    let path = file.to_str().expect("a plain path");
    let args = ["memcached", "--load", "200k,400k", "--policy", "base,suspend20"];
    let args = [&args[..], &["--policy", "mine=hold=50us,feedback=on"]].concat();
    let output = bench(&[&args[..], &["--report", path]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&file).expect("a page");
    for words in [
        "<h2>memcached, modelled on epyc-7662",
        "<b>Conclusion:</b>",
        "--report",
        ">requests/s<",
        "<li>mine: hold=50us,feedback=on</li>",
        "20240823173103.94978-1-jdamato@fastly.com",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(page.matches("<svg").count(), 3, "p99, p50 and CPU");
    let piped = bench(&[&args[..], &["--report", "-"]].concat());
    assert!(text(&piped.stdout).starts_with("<!DOCTYPE html>"));
    assert!(text(&piped.stdout).ends_with("</html>\n"));
    assert!(text(&piped.stderr).contains("conclusion: "), "tables go to standard error");
    let twice = bench(&[&args[..], &["--report", "-", "--json", "-"]].concat());
    assert!(text(&twice.stderr).contains("standard output: another one goes there"));
    let nowhere = bench(&[&args[..], &["--report", "/proc/no/such/page.html"]].concat());
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("cannot write the report to /proc/no/such/page.html"));
    assert!(nowhere.stdout.is_empty(), "before anything runs");
}

#[test]
fn tables_fit_the_line_and_notes_do_too() {
    for columns in [40, 80, 120] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_napkin"))
            .args([
                "bench",
                "memcached",
                "--load",
                "100k",
                "--policy",
                "base,suspend20",
                "--policy",
                "long=defer37",
            ])
            .args(SHORT)
            .env("COLUMNS", columns.to_string())
            .output()
            .expect("the binary runs");
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let longest = shown.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(columns), "{columns}:\n{shown}");
        assert!(shown.contains("not on this line: "), "{shown}");
    }
}

#[test]
fn a_host_can_be_changed_and_the_report_says_so() {
    let place = TempDir::new("machine-set");
    let file = place.0.join("a.json");
    let path = file.to_str().expect("a plain path");
    let output = bench(&[
        "memcached",
        "--cpus",
        "4",
        "--queues",
        "2",
        "--set",
        "link.latency=2us",
        "--policy",
        "base",
        "--load",
        "50k",
        "--json",
        path,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = json(&file);
    let testbed = &report["host"]["profile"];
    assert_eq!((&testbed["cpus"], &testbed["queues"]), (&4.into(), &2.into()));
    assert_eq!(testbed["set"]["link.latency"], 2_000.0);
    assert_eq!(report["rows"][0]["repetitions"][0]["per_queue"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_timeline_is_written() {
    let place = TempDir::new("machine-trace");
    let file = place.0.join("t.json");
    let path = file.to_str().expect("a plain path");
    let common = ["udp-sink", "--world", "machine", "--load", "13000", "--trace", path];
    let output = bench(&common);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = json(&file)["traceEvents"].as_array().expect("events").len();
    assert!(events > 100, "{events}");
}

#[test]
fn what_is_wrong_with_a_profile_is_said_with_the_key() {
    let unknown = refused(&["bench", "memcached", "--profile", "epyc-7663"]);
    assert!(unknown.contains("did you mean 'epyc-7662'?"), "{unknown}");
    for (set, expected) in [
        ("cost.pol=1us", "did you mean 'cost.poll'"),
        ("cost.poll=-1ns", "cost.poll: -1 ns is negative"),
        ("cost.poll=1 GHz", "cost.poll: "),
        ("cost.poll=3", "cost.poll: "),
        ("nic.queues=65", "65 queues are more than the 64 CPUs"),
        ("cost.poll", "cost.poll: "),
    ] {
        let message = refused(&["bench", "memcached", "--set", set]);
        assert!(message.contains(expected), "{set}: {message}");
    }
    let queues = refused(&["bench", "memcached", "--cpus", "4", "--queues", "8"]);
    assert!(queues.contains("nic.queues: 8 queues are more than the 4 CPUs"), "{queues}");
    let other = refused(&["bench", "memcached", "--profile", "qemu-2018"]);
    assert!(other.contains("memcached"), "the section that it lacks: {other}");
}

#[test]
fn a_profile_file_is_checked_by_line() {
    let place = TempDir::new("machine-profile");
    let file = place.0.join("mine.toml");
    let path = file.to_str().expect("a plain path");
    let good =
        napkin_machine::profile::Profile::built_in_text("qemu-2018").expect("it is built in");
    std::fs::write(&file, good).expect("a file");
    let output = napkin(["profile", "check", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = 1 + good.lines().position(|line| line.starts_with("poll ")).expect("cost.poll");
    let with = |changed: &str| {
        let mut lines: Vec<&str> = good.lines().collect();
        lines[line - 1] = changed;
        std::fs::write(&file, lines.join("\n")).expect("a file");
        let output = napkin(["profile", "check", path]);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let unknown = with(r#"pol = { value = "1 us", source = "mine" }"#);
    assert!(unknown.contains(&format!("mine.toml:{line}: cost.pol: ")), "{unknown}");
    assert!(unknown.contains("cost.poll: "), "and the missing key: {unknown}");
    let unit = with(r#"poll = { value = "1 GHz", source = "mine" }"#);
    assert!(unit.contains(&format!("mine.toml:{line}: cost.poll: ")), "{unit}");
    let negative = with(r#"poll = { value = "-1 us", source = "mine" }"#);
    assert!(negative.contains("is negative"), "{negative}");
    let missing = with("");
    assert!(missing.contains("cost.poll: "), "{missing}");
}

#[test]
fn loads_of_zero_and_beyond_the_wire_are_refused() {
    let zero = refused(&["bench", "memcached", "--load", "0"]);
    assert!(zero.contains("a load of 0 sends nothing"), "{zero}");
    let beyond = refused(&["bench", "memcached", "--load", "900M"]);
    assert!(beyond.contains("beyond the wire") && beyond.contains("link.rate"), "{beyond}");
    let none = refused(&["bench", "udp-sink", "--world", "machine", "--load", "many"]);
    assert!(none.contains("'many' is not a load of this workload"), "{none}");
}

#[test]
fn options_of_one_world_are_refused_in_the_other() {
    let refuses_with = |args: &[&str], part: &str| {
        let message = refused(args);
        assert!(message.contains(part), "{args:?}: {message}");
    };
    refuses_with(&["bench", "ssd", "--world", "linux"], "runs in machine and engine only");
    refuses_with(
        &["bench", "xsk-rr", "--world", "engine", "--queues", "2"],
        "--queues is for a modelled host",
    );
    refuses_with(
        &["bench", "memcached", "--connections", "4"],
        "--connections is for engine and linux",
    );
    refuses_with(
        &["bench", "memcached", "--world", "linux", "--queues", "2"],
        "is for a modelled host",
    );
    refuses_with(
        &["bench", "memcached", "--world", "engine,linux", "--queues", "2"],
        "not for linux",
    );
    refuses_with(
        &["bench", "xsk-rr", "--world", "engine,machine", "--queues", "2"],
        "not for engine",
    );
    refuses_with(
        &["bench", "udp-sink", "--world", "linux", "--corner"],
        "--corner is for the engine",
    );
    refuses_with(&["bench", "memcached", "--world", "linux", "--load", "0"], "'0' is not a load");
    refuses_with(&["bench", "udp-sink", "--queues", "2"], "--queues is for a modelled host");
    refuses_with(
        &["bench", "udp-sink", "--world", "machine", "--corner"],
        "--corner is for the engine",
    );
    refuses_with(
        &["bench", "xsk-rr", "--world", "machine", "--rate", "9"],
        "--rate is for engine and linux",
    );
    refuses_with(&["bench", "--world", "machine"], "name a workload");
    refuses_with(&["bench", "memcached", "--cpus", "0-3"], "how many it has");
    refuses_with(
        &["bench", "tcp-rr", "--world", "engine", "--set", "a=1"],
        "is for a modelled host",
    );
    refuses_with(
        &["bench", "tcp-rr", "--world", "engine", "--load", "0"],
        "a load of 0 sends nothing",
    );
    refuses_with(&["bench", "tcp-rr", "--world", "engine,engine"], "--world has engine twice");
    refuses_with(
        &["bench", "tcp-rr", "--world", "engine,linux"],
        "runs in machine and engine only",
    );
    refuses_with(&["bench", "--world", "engine,machine"], "name a workload");
    // Refused before anything runs in the engine.
    let range = ["bench", "tcp-rr", "--world", "engine,machine", "--set", "tcp-rr.threads=1"];
    refuses_with(&range, "outside of its range");
}

#[test]
fn a_profile_based_on_another_is_checked_and_shown() {
    let place = TempDir::new("machine-based-on");
    let file = place.0.join("mine.toml");
    let path = file.to_str().expect("a plain path");
    let ring = "[nic]\nring = { value = 512, source = \"ethtool -g\" }\n";
    let head = "name = \"mine\"\nabout = \"another card\"\nbased-on = \"emulator-7.2\"\n";
    std::fs::write(&file, format!("{head}{ring}")).expect("a file");
    let check = text(&napkin(["profile", "check", path]).stdout);
    assert!(check.contains("based on emulator-7.2: 1 of the constants its own, "), "{check}");
    assert!(check.contains("\n  processor: cpus, frequency, "), "{check}");
    let nic = check.lines().find(|line| line.starts_with("  nic: ")).expect("the rest of it");
    assert!(!nic.contains(" ring,"), "{nic}");
    let shown = napkin(["profile", "show", path, "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["based-on"], "emulator-7.2");
    assert_eq!(shown["constants"]["nic.ring"]["inherited"], false);
    assert_eq!(shown["constants"]["nic.queues"]["inherited"], true);
    let toml = text(&napkin(["profile", "show", path, "--toml"]).stdout);
    std::fs::write(&file, &toml).expect("a file");
    let check = text(&napkin(["profile", "check", path]).stdout);
    assert!(check.contains("nothing is wrong") && !check.contains("inherited"), "{check}");
}

#[test]
fn profiles_are_listed_and_shown() {
    let list = text(&napkin(["profile", "list"]).stdout);
    for name in napkin_machine::profile::Profile::names() {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name}: {list}");
    }
    let shown = napkin(["profile", "show", "epyc-7662", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["constants"]["processor.cpus"]["value"], 64.0);
    let table = text(&napkin(["profile", "show", "epyc-7662"]).stdout);
    assert!(table.contains("cost.poll") && table.contains("fitted within"), "{table}");
}

#[test]
fn a_fit_writes_a_profile_that_is_no_worse() {
    let place = TempDir::new("machine-fit");
    let file = place.0.join("fitted.toml");
    let path = file.to_str().expect("a plain path");
    let args = ["profile", "fit", "desktop-2007", "--evaluations", "9", "--out", path, "--quiet"];
    let output = napkin(args);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let number = |word: &str| {
        let end = stdout.find(word).expect(word);
        let number = stdout[..end].trim_end().rsplit(' ').next().expect("a number");
        number.parse::<f64>().expect("a number")
    };
    assert!(number("before,") >= number("after "), "{stdout}");
    assert!(napkin(["profile", "check", path]).status.success());
    let none = refused(&["profile", "fit", "desktop-2007", "--experiment", "1999"]);
    assert!(none.contains("no experiment to fit"), "{none}");
}

#[test]
fn an_experiment_is_reproduced_with_its_files() {
    let place = TempDir::new("machine-reproduce");
    let (figures, page) = (place.0.join("r.json"), place.0.join("r.html"));
    let path = |path: &std::path::Path| path.to_str().expect("a plain path").to_owned();
    let (json_path, page_path) = (path(&figures), path(&page));
    let output = napkin([
        "reproduce",
        "2007",
        "--quick",
        "--quiet",
        "--json",
        &json_path,
        "--report",
        &page_path,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("2007: "), "{}", text(&output.stdout));
    assert_eq!(json(&figures)["experiments"][0]["experiment"], "2007");
    assert!(std::fs::read_to_string(&page).expect("a page").contains("<svg"));
    let unknown = refused(&["reproduce", "1999"]);
    assert!(unknown.contains("there are 2007, "), "{unknown}");
    let table = refused(&["reproduce", "2007", "--table", "x.csv"]);
    assert!(table.contains("for the experiment 'kernel'"), "{table}");
    let length = refused(&["reproduce", "kernel", "--virtual", "1s"]);
    assert!(length.contains("a length of their own"), "{length}");
    let profile = refused(&["reproduce", "2024", "--profile", "epic-7662"]);
    assert!(profile.contains("no profile is called 'epic-7662'"), "{profile}");
    let file = place.0.join("t.csv");
    std::fs::write(&file, "a,b\n").expect("a file");
    let table = refused(&["reproduce", "kernel", "--table", &path(&file)]);
    assert!(table.contains("t.csv"), "{table}");
}

#[test]
fn a_swarm_counts_what_it_went_through_and_a_seed_replays() {
    let output = napkin(["swarm", "--seeds", "1..8", "--quiet"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(stdout.starts_with("8 seeds, ") && stdout.contains("virtual hours"), "{stdout}");
    assert!(
        stdout.contains("events a minute") && stdout.ends_with("every invariant held\n"),
        "{stdout}"
    );
    assert!(napkin(["swarm", "--seed", "3"]).status.success());
    assert!(refused(&["swarm", "--seeds", "8..1"]).contains("the lesser first"));
    assert!(refused(&["swarm", "--minutes", "0"]).contains("minutes above 0"));
}
