//! `napkin place`, the real binary in a namespace of its own: a plan is carried out and put back.
#![allow(unreachable_pub, reason = "the shared module is another test's as well")]

mod common;

use std::process::Output;

use common::namespace::fresh;
use common::{TempDir, add_veth, command, napkin, text};
use napkin_kernel::namespace::Namespace;
use napkin_testing::{needs_cpus, test};
use serde_json::Value;

/// A namespace with `va`, and a directory for journals.
struct Lab {
    namespace: Namespace,
    state: TempDir,
}

impl Lab {
    fn new(name: &str, queues: u32) -> Lab {
        let namespace = fresh();
        namespace.run(|| add_veth(queues)).expect("the namespace is ours");
        Lab { namespace, state: TempDir::new(name) }
    }

    fn run(&self, args: &[&str]) -> Output {
        let run =
            || command().args(args).env("NAPKIN_STATE", &self.state.0).output().expect("it starts");
        self.namespace.run(run).expect("the namespace is ours")
    }

    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The current CPUs of each queue's thread, and the planned one.
    fn rows(&self, args: &[&str]) -> Vec<(Vec<u64>, u64)> {
        let args = [&["place", "--dev", "va", "--json"], args].concat();
        let plan: Value = serde_json::from_str(&self.done(&args)).expect("JSON");
        let rows = plan["rows"].as_array().expect("rows").iter().map(|row| {
            let now = row["thread"]["cpus"].as_array().expect("a thread");
            let now = now.iter().filter_map(Value::as_u64).collect();
            (now, row["cpu"].as_u64().expect("a CPU"))
        });
        rows.collect()
    }
}

#[test]
fn threads_get_a_cpu_each_and_their_old_ones_back() {
    needs_cpus(2);
    let lab = Lab::new("place-threads", 2);
    lab.done(&["apply", "threaded", "--dev", "va"]);
    let plan = lab.rows(&["--cpus", "0-1"]);
    let cpus: Vec<u64> = plan.iter().map(|(_, cpu)| *cpu).collect();
    // CPU 0 comes last.
    assert_eq!(cpus, [1, 0]);
    assert!(plan.iter().all(|(now, _)| now.len() > 1), "nothing was moved: {plan:?}");
    let before = plan;

    let carried = lab.run(&["place", "--dev", "va", "--cpus", "0-1", "--apply"]);
    let stderr = text(&carried.stderr);
    assert!(carried.status.success() && stderr.contains("va: 2 moved; napkin restore"), "{stderr}");
    let after = lab.rows(&["--cpus", "0-1"]);
    assert!(after.iter().all(|(now, cpu)| now == &[*cpu]), "{after:?}");
    let shown = lab.done(&["place", "--dev", "va"]);
    assert!(shown.ends_with("everything is in its place\n"), "{shown}");
    // The policy is unchanged.
    assert!(lab.done(&["show", "va"]).contains("threaded"));

    lab.done(&["restore", "--dev", "va"]);
    lab.done(&["apply", "threaded", "--dev", "va"]);
    let restored: Vec<_> = lab.rows(&[]).into_iter().map(|(now, _)| now).collect();
    assert!(restored.iter().zip(&before).all(|(now, (old, _))| now == old), "{restored:?}");
    lab.done(&["restore", "--dev", "va"]);
}

#[test]
fn too_few_cpus_and_instances_that_differ_are_said() {
    let lab = Lab::new("place-few", 2);
    lab.done(&["apply", "threaded", "--dev", "va"]);
    let few = lab.run(&["place", "--dev", "va", "--cpus", "0"]);
    assert!(text(&few.stderr).contains("2 queues share one CPU: ethtool -L va combined 1"));
    lab.done(&["apply", "defer20", "--dev", "va", "--queue", "1"]);
    let mixed = lab.run(&["place", "--dev", "va", "--cpus", "0", "--apply"]);
    let stderr = text(&mixed.stderr);
    assert!(!mixed.status.success() && stderr.contains("are not set alike"), "{stderr}");
    let off = lab.run(&["place", "--dev", "va", "--cpus", "1000", "--apply"]);
    let stderr = text(&off.stderr);
    assert!(!off.status.success() && stderr.contains("none of the CPUs is on"), "{stderr}");
    lab.done(&["restore", "--dev", "va"]);
}

#[test]
fn a_device_without_instances_is_not_in_its_place() {
    let lab = Lab::new("place-none", 1);
    for args in [&["place", "--dev", "lo"][..], &["place", "--dev", "lo", "--json"]] {
        let none = lab.run(args);
        let stderr = text(&none.stderr);
        assert_eq!(none.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("nothing to place: lo "), "{stderr}");
        assert!(stderr.contains("no NAPI instance"), "{stderr}");
        assert_eq!(text(&none.stdout), "");
    }
}

#[test]
fn a_device_that_is_not_there_is_said() {
    let output = napkin(["place", "--dev", "nowhere0"]);
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && stderr.contains("nowhere0"), "{stderr}");
}

napkin_testing::main!();
