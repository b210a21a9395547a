//! `napkin doctor`: what it prints, and its exit code.

#[path = "../../linux/tests/doctored/mod.rs"]
mod doctored;

use std::process::{Command, Output};

use doctored::{Mode, Rig, SUSPEND20};
use napkin_linux::doctor::CHECKS;
use napkin_testing::test;
use serde_json::Value;

fn doctor(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.arg("doctor").args(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_checks_are_listed() {
    let output = doctor(&["--list"]);
    assert!(output.status.success());
    let out = text(&output.stdout);
    for check in CHECKS {
        assert!(out.contains(check.name), "{}", check.name);
    }
    let output = doctor(&["--list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(CHECKS.len()));
}

#[test]
fn what_keeps_it_from_an_answer_is_said_and_is_no_fault() {
    for (args, expected) in [
        (&["--dev", "no-such-device"][..], "no-such-device"),
        (&["2147483647"][..], "there is no process 2147483647"),
        (&["--policy", "suspnd20"][..], "did you mean 'suspend20'?"),
        (&["--for", "2m"][..], "at most 60s"),
        (&["0"][..], "0 is not in"),
    ] {
        let output = doctor(args);
        let error = text(&output.stderr);
        assert!(error.contains(expected), "{args:?}: {error}");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    }
}

#[test]
fn loopback_has_nothing_to_set() {
    let output = doctor(&["--dev", "lo", "--for", "20ms", "--policy", "base"]);
    // Loopback has no instance, whatever the policy.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("fault   napi\n"), "{}", text(&output.stdout));
}

#[test]
fn that_nobody_reads_of_a_fault_makes_none_of_it() {
    for form in ["", "--json"] {
        let gone = std::io::pipe().expect("a pipe").1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
        command.args(["doctor", "--dev", "lo", "--for", "20ms", "--policy", "base"]);
        command.args(form.split_whitespace()).stdout(gone);
        assert_eq!(command.status().expect("the binary runs").code(), Some(1), "'{form}'");
    }
}

#[test]
fn a_sound_set_up_ends_with_0_and_a_broken_one_with_1() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let pid = rig.pid().to_string();
    let args = [pid.as_str(), "--dev", "va", "--policy", SUSPEND20, "--for", "100ms"];

    let sound = rig.run(|| doctor(&args));
    let out = text(&sound.stdout);
    assert_eq!(sound.status.code(), Some(0), "{out}{}", text(&sound.stderr));
    assert!(out.starts_with("va: suspend20 (asked for), "), "{out}");
    assert!(out.contains("\nin order: kernel-support, napi, "), "{out}");
    let last = out.lines().last().expect("a summary");
    assert!(last.starts_with("0 faults, ") && last.contains(" in order, "), "{last}");
    // Except commands, which are not wrapped so that they can be copied.
    let mut lines = out.lines().filter(|line| !line.starts_with("    fix: "));
    assert!(lines.all(|line| line.chars().count() < 80), "{out}");

    rig.write("queues/rx-0/rps_cpus", "1");
    let broken = rig.run(|| doctor(&args));
    let out = text(&broken.stdout);
    assert_eq!(broken.status.code(), Some(1), "{out}");
    assert!(out.contains("\nfault   rps\n"), "{out}");
    assert!(out.contains("\n   seen: rx-0: rps_cpus 0\n"), "{out}");
    let fix = out.lines().find_map(|line| line.trim_start().strip_prefix("fix: "));
    let fix = fix.expect("a command").to_owned();

    // The command fixes it.
    let fixed = rig.run(|| Command::new("sh").args(["-c", &fix]).status());
    assert!(fixed.is_ok_and(|status| status.success()), "{fix}");
    let json = rig.run(|| doctor(&[&args[..], &["--json"]].concat()));
    assert_eq!(json.status.code(), Some(0), "{}", text(&json.stdout));
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["faults"], 0);
    let device = &json["devices"][0];
    assert_eq!((&device["ifname"], &device["policy"]), (&"va".into(), &SUSPEND20.into()));
    let findings = device["findings"].as_array().expect("a list");
    let rps = findings.iter().find(|it| it["check"] == "rps").expect("it was checked");
    assert_eq!((&rps["status"], &rps["fix"]), (&"ok".into(), &Value::Null));
}

napkin_testing::main!(doctored::program);
