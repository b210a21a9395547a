//! The cost of an engine while nothing arrives, after a phase of traffic: wake-ups and processor time of all its
//! threads and of the application that waits, in every policy that does not spin by design. The table names those
//! that do.
//!
//! Each policy runs in a process of its own. `NAPKIN_LONG=1` makes the idle phase 10 seconds long.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::app::App;
use common::{PORT, Setup, alone, policy, start};
use napkin_os::rights::Right;
use napkin_testing::{needs, test};

/// Wake-ups a second, at most.
const WAKE_UPS: f64 = 20.0;
/// Share of one CPU, at most.
const CPU: f64 = 0.005;

/// Processes at a time: they sleep for most of theirs.
const AT_A_TIME: usize = 8;

/// The policies that spin by design, and the thread that does: these are not expected to cost nothing.
const SPINNERS: [(&str, &str); 3] = [
    ("fullbusy", "the application's thread"),
    ("threaded-busy-poll", "each instance's thread"),
    ("busypoll-separate", "a thread that only polls the sockets"),
];

const CHILD: &str = "NAPKIN_TEST_IDLE_CHILD";
const RESULT: &str = "idle-result";

/// Voluntary switches and nanoseconds on a CPU of all threads of this process, and their number.
fn spent() -> (u64, u64, u64) {
    let mut sum = (0, 0, 0);
    for task in std::fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let status = read("status");
        let switches = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
        sum.0 += switches.and_then(|it| it.trim().parse::<u64>().ok()).unwrap_or(0);
        let ns = read("schedstat").split_whitespace().next().and_then(|it| it.parse().ok());
        sum.1 += ns.unwrap_or(0);
        sum.2 += 1;
    }
    sum
}

fn idles(name: &str) {
    let policy = policy(name);
    let setup = Setup { count: 1_000, per_second: 10_000.0, queues: 2, ..Setup::default() };
    let (engine, source) = start(&policy, &setup);
    let app = App::start(&engine, PORT, &policy, None);
    let stack = engine.stack("syn0").expect("the device");
    // Frames that came before the socket was bound, or while this process did not run, are dropped.
    let start = Instant::now();
    while source.offered() < setup.count || app.received() < stack.counters().delivered() {
        let state = (source.offered(), app.received(), stack.counters(), engine.napis());
        assert!(start.elapsed() < common::HANGS, "traffic stopped: {state:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Deferral, hold and suspension end; 200 ms is ten of their longest.
    std::thread::sleep(Duration::from_millis(200));
    let long = std::env::var_os("NAPKIN_LONG").is_some_and(|it| it == "1");
    let (before, since) = (spent(), Instant::now());
    std::thread::sleep(Duration::from_secs(if long { 10 } else { 2 }));
    let (after, elapsed) = (spent(), since.elapsed().as_secs_f64());
    // One switch is this thread's own sleep.
    let wake_ups = (after.0 - before.0).saturating_sub(1) as f64 / elapsed;
    let cpu = (after.1 - before.1) as f64 / 1e9 / elapsed;
    println!("\n{RESULT} {wake_ups} {cpu} {}", after.2);
    engine.stop();
    assert!(app.join());
}

fn measure(name: &str) -> std::process::Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["no_policy_that_sleeps_costs_anything", "--exact", "--nocapture"])
        .env(CHILD, name)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// The policies that sleep: those that need no right, or those that need one.
fn sleepers(privileged: bool) -> Vec<&'static str> {
    let families =
        ["interrupts", "busypoll", "busypoll-separate", "base-6.4", "ksoftirqd-as-posted"];
    let (spinners, mut names): (Vec<&str>, Vec<&str>) = common::POLICIES
        .into_iter()
        .chain(families)
        .partition(|name| policy(name).spins_by_design());
    let expected: Vec<&str> = SPINNERS.into_iter().map(|(name, _)| name).collect();
    assert_eq!(spinners, expected, "spinners by design");
    names.retain(|name| policy(name).application.needs_prefer_privilege() == privileged);
    names
}

/// Measures each policy and prints a table.
fn cost_nothing(names: &[&str]) {
    let mut failed = Vec::new();
    eprintln!("{:22}{:>12}{:>12}{:>9}", "idle", "wake-ups/s", "CPU", "threads");
    for some in names.chunks(AT_A_TIME) {
        let children: Vec<_> = some.iter().map(|name| (*name, measure(name))).collect();
        for (name, child) in children {
            let output = child.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&output.stdout);
            let result = text.lines().find_map(|line| line.strip_prefix(RESULT));
            let result = result.unwrap_or_else(|| panic!("{name}: no result:\n{text}"));
            let numbers: Vec<f64> = result.split_whitespace().flat_map(str::parse).collect();
            let [wake_ups, cpu, threads] = numbers[..] else { panic!("{name}: {result}") };
            eprintln!("{name:22}{wake_ups:>12.1}{:>11.3}%{threads:>9}", cpu * 100.0);
            if wake_ups > WAKE_UPS || cpu > CPU {
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "more than {WAKE_UPS} wake-ups a second or {CPU} CPUs: {failed:?}");
}

#[test]
fn no_policy_that_sleeps_costs_anything() {
    if let Ok(name) = std::env::var(CHILD) {
        return idles(&name);
    }
    let _alone = alone();
    for (name, who) in SPINNERS {
        eprintln!("{name:22}  spins by design: {who}");
    }
    cost_nothing(&sleepers(false));
}

#[test]
fn nor_does_one_that_takes_a_right() {
    needs(Right::NetAdmin.held(), "CAP_NET_ADMIN");
    let _alone = alone();
    cost_nothing(&sleepers(true));
}

napkin_testing::main!();
