//! `napkin policies`, and the errors for wrong names of policies.

mod common;

use common::{TempDir, command, napkin, text};
use napkin_policy::{FAMILIES, PRESETS};

#[test]
fn all_policies_are_explained() {
    let output = napkin(["policies"]);
    assert!(output.status.success());
    let out = text(&output.stdout);
    for name in PRESETS.iter().map(|it| it.name).chain(FAMILIES.iter().map(|it| it.pattern)) {
        assert!(out.lines().any(|line| line.starts_with(name)), "{name}: {out}");
    }
    let costs = out.lines().filter(|line| line.trim_start().starts_with("Costs: ")).count();
    assert_eq!(costs, PRESETS.len() + FAMILIES.len(), "each on a line of its own: {out}");
}

#[test]
fn tables_of_words_are_as_wide_as_the_terminal_and_at_most_as_is_read_well() {
    for args in ["policies", "doctor --list", "profile list", "profile show epyc-7662"] {
        for (columns, widest) in [("20", 20), ("60", 60), ("80", 80), ("200", 100)] {
            let mut napkin = command();
            napkin.args(args.split(' ')).env("COLUMNS", columns);
            let out = text(&napkin.output().expect("the binary runs").stdout);
            let table = out.lines().skip_while(|line| !line.starts_with("---")).skip(1);
            let longest =
                table.take_while(|line| !line.is_empty()).map(|line| line.chars().count());
            assert!(longest.max().expect("a table") <= widest, "{args} at {columns}:\n{out}");
        }
    }
}

#[test]
fn one_policy_is_explained_with_its_values() {
    let out = text(&napkin(["policies", "suspend20"]).stdout);
    for part in ["Damato", "Costs: ", "irq-suspend-timeout", "20ms", "gro-flush-timeout", "20us"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let member = text(&napkin(["policies", "hold250"]).stdout);
    assert!(member.contains("Chapman") && member.contains("250us"), "{member}");
    assert!(member.contains("polled mode for 250 us after"), "{member}");
    let member = text(&napkin(["policies", "suspend50"]).stdout);
    assert!(member.contains("defer50 takes over"), "{member}");
    for name in ["hold250", "defer50", "suspend50"] {
        let member = text(&napkin(["policies", name]).stdout);
        let bare = |word: &str| word.trim_matches(|it: char| !it.is_alphanumeric()) == "N";
        assert!(!member.split_whitespace().any(bare), "{member}");
    }
}

#[test]
fn the_json_form_has_the_same() {
    let all: serde_json::Value =
        serde_json::from_slice(&napkin(["policies", "--json"]).stdout).unwrap();
    assert_eq!(all["presets"].as_array().unwrap().len(), PRESETS.len());
    assert_eq!(all["families"].as_array().unwrap().len(), FAMILIES.len());
    let one = napkin(["policies", "threaded-busy-poll", "--json"]);
    let one: serde_json::Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(one["values"]["threaded"], "busy-poll");
    assert_eq!(one["spelled_out"], "threaded=busy-poll,defer-hard-irqs=100,gro-flush-timeout=15us");
}

#[test]
fn what_will_not_do_what_it_says_is_told() {
    let out = text(&napkin(["policies", "suspend20,defer-hard-irqs=0"]).stdout);
    assert!(out.contains("Note: irq-suspend-timeout does nothing without deferral"), "{out}");
}

#[test]
fn a_time_has_a_unit_wherever_one_is_wanted() {
    for args in [
        "policies defer20,gro-flush-timeout=50",
        "sweep udp-sink --vary gro-flush-timeout=50 --out -",
        "sweep udp-sink --vary policy=suspend20,hold=50 --out -",
        "sweep udp-sink --vary seed=1 --out - --window 50",
        "bench udp-sink --window 50",
        "bench xsk-rr --rate 1 --delay 50",
        "bench xsk-rr --world machine --warm-up 50",
        "reproduce 2024 --virtual 50",
        "serve echo --device synthetic --for 50",
        "serve echo --device synthetic=hold=50",
        "napi-set --id 1 --hold 50",
        "dev-set --ifindex 1 --irq-suspend-timeout 50",
        "apply hold=50 --dev lo",
        "doctor --for 50",
        "top --batch --interval 50",
    ] {
        let output = napkin(args.split(' '));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {error}");
        assert!(error.contains("50 has no unit: 50us? 50ms? 50s?"), "{args}: {error}");
    }
}

#[test]
fn what_nobody_waits_for_is_refused_with_the_limit() {
    for (args, limit) in [
        ("bench udp-sink --repetitions 99999999999", "at most 10000 repetitions"),
        ("bench udp-sink --window 99999999s", "a window of at most 1h, not 6 and 99999999s"),
        ("bench udp-sink --world machine --repetitions 99999999999", "at most 10000"),
        ("bench udp-sink --world machine --window 99999999s", "at most an hour"),
        ("sweep udp-sink --vary seed=1 --out - --window 99999999s", "at most an hour"),
        ("reproduce 2024 --virtual 99999999s", "at most 1h"),
        ("reproduce 2024 --virtual 0s", "longer than 0"),
        ("swarm --minutes 999999999999", "at most 1000000"),
    ] {
        let output = napkin(args.split(' '));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {error}");
        assert!(error.contains(limit), "{args}: {error}");
        assert!(!error.contains("measurements, about"), "{args}: refused before it is announced");
    }
}

#[test]
fn a_value_that_makes_no_sense_is_refused_in_words() {
    for (args, why) in [
        ("bench udp-sink --world machine --load 5000,5000", "--load: '5000' stands twice"),
        ("bench udp-sink --world machine --load 5000,6k,5k", "--load: '5k' stands twice"),
        ("bench ssd --world machine --load 4K:5000,4096:5k", "--load: '4096:5k' stands twice"),
        ("bench tcp-rr --world engine --load 5K,5120", "a load stands twice: bytes=5120"),
        ("bench udp-sink --world machine --jobs 0", "give a whole number of at least 1"),
        ("sweep udp-sink --vary seed=1 --out - --jobs 0", "give a whole number of at least 1"),
        ("reproduce 2024 --jobs 0", "give a whole number of at least 1"),
        ("swarm --jobs 0", "give a whole number of at least 1"),
        ("profile fit epyc-7662 --jobs 0", "give a whole number of at least 1"),
        ("serve echo --device synthetic --faults loss=1%,loss=2%", "'loss' is given twice"),
        ("serve echo --device synthetic --rate 5kk", "as in 20000, 20k or 1M"),
        ("serve echo --device tap:nk0 --rate 5k", "--rate is for a synthetic device"),
        ("serve echo --device vhost:/nk0.sock --flows 5", "--flows is for a synthetic device"),
        ("serve echo --device synthetic --flows 0", "the number of flows is at least 1"),
        ("serve echo --device synthetic --port 0", "a port is 1 to 65535, not 0"),
        ("keep defer20 --dev lo --queues 5-2", "give queues, each once, as in 0,2 or 0-3"),
    ] {
        let output = napkin(args.split(' '));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {error}");
        assert!(error.contains(why), "{args}: {error}");
    }
}

#[test]
fn nanoseconds_for_microseconds_are_warned_of() {
    let printed_by = |args: &str| {
        let output = napkin(args.split(' '));
        text(&output.stdout) + &text(&output.stderr)
    };
    let warning = "gro-flush-timeout (50ns) is shorter than a single poll";
    let policies = printed_by("policies defer20,gro-flush-timeout=50ns");
    assert!(policies.contains(warning), "{policies}");
    let sweep = "sweep udp-sink --out - --window 1ms --warm-up 1ms --load 1000 --quiet --vary";
    let sweep = printed_by(&format!("{sweep} gro-flush-timeout=50ns"));
    assert!(sweep.contains(&format!("warning: {warning}")), "{sweep}");
}

#[test]
fn an_unknown_name_gets_the_nearest_one_and_a_usage_error() {
    let output = napkin(["policies", "suspnd20"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean 'suspend20'?"));
    for device in ["synthetic", "synthetic=trheaded"] {
        let output = napkin(["serve", "echo", "--device", device, "--policy", "trheaded"]);
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        assert!(error.contains("did you mean 'threaded'?"), "{error}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .arg("policies")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_closed_pipe_costs_no_world_its_figures() {
    use std::process::{Command, Stdio};
    let place = TempDir::new("closed-worlds");
    let short = "--policy base --repetitions 1 --window 50ms --warm-up 10ms --flows 50 --quiet";
    let args = format!("bench tcp-rr --world machine,engine {short} --json a.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .args(args.split(' '))
        .current_dir(&place.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    for world in ["machine", "engine"] {
        assert!(place.0.join(format!("a.json.{world}.json")).exists(), "{world}");
    }
}
