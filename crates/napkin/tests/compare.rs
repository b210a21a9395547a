//! `napkin compare` on Debian's memcached under napkin's own client, over a veth between two namespaces.

mod common;
#[path = "../../compare/tests/harness/mod.rs"]
mod harness;

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use common::namespace::needs_rights;
use common::{TempDir, text, within};
use harness::Bed;
use napkin_client::{Client, Load};
use napkin_kernel::netlink::{Netdev, Route};
use napkin_kernel::settings::Settings;
use napkin_os::rights::Right;
use napkin_testing::{needs_program, test};
use napkin_workload::linux::pair::DEVICE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A service under load, and a state directory.
struct Service {
    bed: Bed,
    client: Option<Client>,
    home: TempDir,
    before: Settings,
}

impl Service {
    fn new(name: &str) -> Service {
        let rights =
            [Right::SysAdmin, Right::NetAdmin, Right::Bpf, Right::Perfmon, Right::SysPtrace];
        needs_rights(&rights);
        needs_program("memcached");
        let bed = Bed::new();
        let client = Some(bed.client(Load::Open { per_second: 2_000.0 }));
        let before = settings(&bed);
        Service { bed, client, home: TempDir::new(name), before }
    }

    /// The command, with short slices.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = common::command();
        command.args(["compare", "--dev", DEVICE, "--pid", &self.bed.pid().to_string()]);
        for (option, value) in [("--slice", "500ms"), ("--settle", "100ms"), ("--rounds", "2")] {
            if !args.contains(&option) {
                command.args([option, value]);
            }
        }
        command.args(args);
        command.env("NAPKIN_STATE", self.home.0.join("state")).env_remove("SSH_CONNECTION");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        self.bed.pair.server.run(|| command.output()).expect("entered").expect("it runs")
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.bed.pair.server.run(|| command.spawn()).expect("entered").expect("it starts")
    }

    fn in_force(&self) -> bool {
        settings(&self.bed) != self.before
    }

    fn journals(&self) -> usize {
        let files = fs::read_dir(self.home.0.join("state")).into_iter().flatten().flatten();
        files.filter(|it| it.path().extension().is_some_and(|it| it == "journal")).count()
    }

    /// The settings are as before, and no journal is left.
    fn check_unchanged(&self) {
        assert_eq!(settings(&self.bed), self.before);
        assert_eq!(self.journals(), 0);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Ignore errors: the client may have lost its server.
        let _ = self.client.take().map(Client::stop);
    }
}

fn settings(bed: &Bed) -> Settings {
    let napis = || Netdev::open().expect("netdev").napis(None).expect("instances");
    bed.pair.server.run(napis).expect("entered")[0].settings
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

#[test]
fn each_policy_has_its_rounds_and_everything_is_put_back() {
    let service = Service::new("compare-rounds");
    let page = service.home.0.join("page.html");
    let report = page.to_str().expect("plain");
    let output = service.run(&["--policies", "base,defer20", "--json", "-", "--report", report]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = json(&output);
    for row in report["rows"].as_array().expect("rows") {
        let slices = row["slices"].as_array().expect("slices");
        assert_eq!(slices.len(), 2, "{row:#}");
        for slice in slices {
            let parts = &slice["latency_ns"];
            for part in ["ring", "socket", "service", "whole"] {
                assert!(parts[part]["count"].as_u64().expect("counted") > 0, "{part}: {slice:#}");
            }
            assert!(slice["answers_per_s"].as_f64().expect("answered") > 0.0);
        }
    }
    let verdict = report["verdict"]["sentence"].as_str().expect("said");
    assert!(verdict.contains("2 whole rounds have no interval of 95 %"), "{verdict}");
    assert!(text(&output.stderr).contains("verdict: "), "{}", text(&output.stderr));
    assert!(fs::read_to_string(page).expect("written").contains("<b>Verdict:</b>"));
    service.check_unchanged();
}

#[test]
fn a_service_with_many_requests_is_timed_in_turns_and_none_of_its_slices_is_empty() {
    let mut service = Service::new("compare-turns");
    let _ = service.client.take().map(Client::stop);
    service.client = Some(service.bed.client(Load::Closed));
    let args = ["--policies", "base,suspend20", "--slice", "2s", "--rounds", "1", "--json", "-"];
    let report = json(&service.run(&args));
    assert!(report["failed"].is_null(), "{report:#}");
    let rows = report["rows"].as_array().expect("rows");
    let of = |row: &Value, field: &str| row[field].as_f64().expect(field);
    // The share depends on the rate: up to 10000 requests a second are all timed.
    let most = rows.iter().map(|row| of(row, "answers_per_s")).fold(0.0, f64::max);
    let share = of(&report, "timed_share");
    eprintln!("{most:.0} answers a second, timed for {share:.3} of the time");
    assert!(share > 0.0 && share <= 1.0, "{share}");
    for row in rows {
        assert!(row["slices"][0]["latency_ns"]["whole"]["count"].as_u64().expect("some") > 0);
        assert!(of(row, "answers_per_s") > 0.0);
    }
    service.check_unchanged();
}

#[test]
fn a_policy_that_breaks_the_guard_is_out_and_the_others_go_on() {
    let service = Service::new("compare-guard");
    let bad = format!("bad={BAD}");
    let policies = ["--policies", "base,defer20", "--policies", &bad];
    let guarded = [&policies[..], &["--guard", "p99<50ms", "--json", "-"]].concat();
    let report = json(&service.run(&guarded));
    let rows = report["rows"].as_array().expect("rows");
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).expect("there");
    // The guard breaks within the first slice.
    assert_eq!(of("bad")["slices"].as_array().expect("slices").len(), 1, "{report:#}");
    assert!(!of("bad")["out"].is_null(), "{report:#}");
    assert_eq!(of("base")["slices"].as_array().expect("slices").len(), 2);
    service.check_unchanged();

    let command = "test $NAPKIN_POLICY != defer20";
    let report =
        json(&service.run(&["--policies", "base,defer20", "--guard", command, "--json", "-"]));
    assert!(report["rows"][1]["out"].as_str().expect("out").contains("failed"), "{report:#}");
    service.check_unchanged();
}

/// A policy that delays requests by 200 ms.
const BAD: &str = "defer-hard-irqs=1000,gro-flush-timeout=200ms";

impl Service {
    /// `napkin apply` on its device.
    fn apply(&self, args: &[&str]) -> Output {
        let mut command = common::command();
        command.args(["apply", "--dev", DEVICE]).args(args);
        command.env("NAPKIN_STATE", self.home.0.join("state")).stdin(Stdio::null());
        self.bed.pair.server.run(|| command.output()).expect("entered").expect("it runs")
    }
}

#[test]
fn a_canary_that_breaks_is_put_back_and_one_that_holds_stays() {
    let service = Service::new("apply-canary");
    let pid = service.bed.pid().to_string();
    for guard in [&["--guard", "p99<50ms"][..], &["--guard", "p99<50ms", "--pid", &pid]] {
        let output = service.apply(&[&[BAD, "--watch", "5m"], guard].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("the guard broke and defer-hard-irqs="), "{stderr}");
        eprintln!("{}", stderr.trim());
        service.check_unchanged();
    }
    // A guard without a request to judge by has not held.
    for guard in [["--guard", "p99<1us", "--watch", "0s"], ["--guard", "rate>9", "--watch", "0s"]] {
        let output = service.apply(&[&["defer20"][..], &guard[..]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("the guard was never judged and defer20 is put back"), "{stderr}");
        assert!(stderr.contains("give a longer time"), "{stderr}");
        service.check_unchanged();
    }
    let file = service.home.0.join("healthy");
    fs::write(&file, "").expect("written");
    let healthy = format!("test -e {}", file.display());
    let args = ["defer20", "--guard", &healthy, "--watch", "1s"];
    let output = service.apply(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the policy stays"), "{}", text(&output.stderr));
    assert!(service.in_force());
    // The canary starts from another policy, which is restored when the guard breaks.
    let unhealthy = format!("rm {} 2>/dev/null", file.display());
    let found = settings(&service.bed);
    let output = service.apply(&["defer200", "--guard", &unhealthy, "--for", "5m"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(settings(&service.bed), found);
    let mut restore = common::command();
    restore.args(["restore", "--dev", DEVICE]).env("NAPKIN_STATE", service.home.0.join("state"));
    let restored = service.bed.pair.server.run(|| restore.output()).expect("entered");
    assert!(restored.expect("it runs").status.success());
    service.check_unchanged();
}

#[test]
fn a_canary_without_what_it_takes_changes_nothing() {
    let mut service = Service::new("apply-canary-refused");
    let refused = |args: &[&str], why: &str| {
        let output = service.apply(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
        service.check_unchanged();
    };
    refused(&["defer20", "--guard", "p99<fast"], "a factor of the reference, as in 2x, or a time");
    refused(&["defer20", "--guard", "p99<2x", "--guard", "true"], "given twice");
    refused(&["defer20", "--watch", "1s"], "for a guard that is a canary");
    refused(&["defer20", "--guard", "off"], "give --for TIME");
    let _ = service.client.take().map(Client::stop);
    let output = service.apply(&["defer20", "--guard", "p99<2x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("nothing to compare with"));
    service.check_unchanged();
}

#[test]
fn a_measure_of_one_s_own_takes_the_place_of_ours_and_rubbish_ends_it() {
    let service = Service::new("compare-measure");
    let policies = ["--policies", "base,defer20", "--rounds", "6", "--settle", "10ms"];
    let of =
        |command: &'static str| [&policies[..], &["--json", "-", "--measure", command]].concat();
    let command = "if test $NAPKIN_POLICY = base; then echo 2; else echo 1; fi";
    let report = json(&service.run(&of(command)));
    let verdict = report["verdict"]["sentence"].as_str().expect("said");
    assert!(
        verdict.starts_with("defer20: the measure 0.50 of base (97 %: 0.50 to 0.50)"),
        "{verdict}"
    );

    for (command, expected) in [
        ("echo fast", "no number"),
        ("true", "printed nothing"),
        ("echo 1; false", "failed"),
        ("echo 0", "above 0"),
    ] {
        let output = service.run(&of(command));
        assert_eq!(output.status.code(), Some(1));
        let failed = json(&output)["failed"].to_string();
        assert!(failed.contains(expected), "{command}: {failed}");
        service.check_unchanged();
    }
    let hang = [&of("sleep 1000 & sleep 1000")[..], &["--measure-limit", "200ms"]].concat();
    let failed = json(&service.run(&hang))["failed"].to_string();
    assert!(failed.contains("did not end within 0.2 s"), "{failed}");
    service.check_unchanged();
}

#[test]
fn a_relative_guard_is_refused_where_the_measure_brings_the_load() {
    let mut service = Service::new("compare-measure-guard");
    let _ = service.client.take().map(Client::stop);
    let measured = ["--policies", "base,defer20", "--rounds", "1", "--measure", "echo 1"];
    for guard in ["p99<2x", "rate>0.9x"] {
        let output = service.run(&[&measured[..], &["--guard", guard]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{guard}: {stderr}");
        assert!(stderr.contains("nothing to compare with: give a time"), "{guard}: {stderr}");
        service.check_unchanged();
    }
    let output = service.run(&[&measured[..], &["--guard", "p99<500ms"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    service.check_unchanged();
}

#[test]
fn a_service_that_ends_and_a_device_that_goes_end_it_with_all_put_back() {
    let long = ["--policies", "base,defer20", "--rounds", "100"];
    let mut service = Service::new("compare-ends");
    let running = service.start(&long);
    within("a policy is in force", || service.in_force().then_some(()));
    service.bed.server.kill().expect("it is a child");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("has ended; what was changed"),
        "{}",
        text(&output.stdout)
    );
    service.check_unchanged();

    let service = Service::new("compare-device");
    let running = service.start(&long);
    within("a policy is in force", || service.in_force().then_some(()));
    let delete = || {
        let mut route = Route::open().expect("rtnetlink");
        let ifindex = route.link(DEVICE).expect("there").ifindex;
        route.delete(ifindex).expect("deleted");
    };
    service.bed.pair.server.run(delete).expect("entered");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("is gone"), "{}", text(&output.stdout));
    assert_eq!(service.journals(), 0);
}

#[test]
fn a_signal_puts_back_and_shows_and_after_a_kill_the_journal_knows() {
    let service = Service::new("compare-signal");
    let long = ["--policies", "base,suspend20", "--rounds", "100"];
    let running = service.start(&long);
    within("a policy is in force", || service.in_force().then_some(()));
    let pid = |child: &Child| Pid::from_child(child);
    kill_process(pid(&running), Signal::INT).expect("it runs");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("verdict: "), "{}", text(&output.stdout));
    service.check_unchanged();

    // A terminal's Ctrl-C may have ended the reader of the output as well.
    let mut running = service.start(&long);
    within("a policy is in force", || service.in_force().then_some(()));
    drop(running.stdout.take());
    kill_process(pid(&running), Signal::INT).expect("it runs");
    let output = running.wait_with_output().expect("it ends");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted: everything was put back"), "{stderr}");
    service.check_unchanged();

    // Kill it at an arbitrary point.
    for _ in 0..3 {
        let mut running = service.start(&long);
        within("a policy is in force", || service.in_force().then_some(()));
        running.kill().expect("it runs");
        running.wait().expect("it ends");
        assert!(service.journals() > 0);
        let mut restore = common::command();
        restore.args(["restore"]).env("NAPKIN_STATE", service.home.0.join("state"));
        let restored = service.bed.pair.server.run(|| restore.output()).expect("entered");
        let restored = restored.expect("it runs");
        assert!(restored.status.success(), "{}", text(&restored.stderr));
        service.check_unchanged();
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_changed() {
    let service = Service::new("compare-refused");
    for (args, expected) in [
        (&["--policies", "base"][..], "one policy"),
        (&["--policies", "base,base"], "twice"),
        (&["--rounds", "0"], "0 rounds"),
        (&["--rounds", "100000000000"], "100000000000 rounds"),
        (&["--measure", " "], "--measure is empty"),
        (&["--settle", "450ms"], "--settle"),
        (&["--guard", "p99>2x"], "from above"),
        (&["--policies", "base,defr20"], "defr20"),
        (&["--dev", "nk-servr"], "nk-servr"),
        (&["--pid", "2147483647"], "2147483647"),
        (&["--pid", "1"], "network namespace"),
    ] {
        // Leave out the option under test: clap refuses one given twice.
        let mut command = common::command();
        let pid = service.bed.pid().to_string();
        let mut all = vec!["compare"];
        for (option, value) in [("--dev", DEVICE), ("--pid", pid.as_str())] {
            if args[0] != option {
                all.extend([option, value]);
            }
        }
        all.extend(["--slice", "500ms"]);
        command.args(all).args(args).env("NAPKIN_STATE", service.home.0.join("state"));
        let output = service.bed.pair.server.run(|| command.output()).expect("entered");
        let output = output.expect("it runs");
        assert!(!output.status.success(), "{args:?}");
        let error = text(&output.stderr);
        assert!(error.contains(expected), "{args:?}: {error}");
        assert!(!error.contains("Ctrl-C puts everything back"), "{args:?}: {error}");
        service.check_unchanged();
    }
}

napkin_testing::main!();
