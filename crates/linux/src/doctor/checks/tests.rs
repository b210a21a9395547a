//! Tests on made-up facts: sound for a policy, then broken in one respect at a time.

use std::collections::BTreeMap;

use napkin_policy::{EpollPolicy, Policy, Threaded};

use super::super::facts::*;
use super::super::finding::Status;
use super::{CHECKS, examine};
use napkin_kernel::device::{Device, Napi};
use napkin_kernel::process::Inaccessible;
use napkin_kernel::settings::Settings;

mod advice;
mod follow;
mod programs;
mod starvation;
mod surroundings;

/// A host of four CPUs whose `eth0` has two queues, each with its interrupt on its own CPU, and a memcached of two
/// threads, each with the connections of one queue, on that queue's CPU. Everything satisfies the policy.
fn sound(name: &str) -> Facts {
    let policy: Policy = name.parse().expect(name);
    let spins = policy.application.spin;
    let threaded = policy.instance.threaded != Threaded::Disabled;
    let napi = |queue: usize| Napi {
        id: 513 + queue as u32,
        rx_queues: vec![queue as u32],
        tx_queues: vec![queue as u32],
        irq: Some(40 + queue as u32),
        irq_cpus: Some(vec![queue]),
        pid: threaded.then_some(90 + queue as i32),
        thread_cpus: threaded.then(|| vec![2 + queue]),
        thread_class: None,
        settings: Settings::of(&policy.instance),
    };
    let thread = |queue: usize| PollThread {
        tid: 90 + queue as i32,
        // With suspension the thread and the program take turns on one CPU; otherwise each has its own.
        cpus: vec![if policy.epoll.enabled() { queue } else { 2 + queue }],
        fifo: None,
    };
    let threads: BTreeMap<u32, PollThread> =
        (0..2).filter(|_| threaded).map(|queue| (513 + queue as u32, thread(queue))).collect();
    let fds = |queue: i32| [10 * (queue + 1), 10 * (queue + 1) + 1];
    let socket = |queue: i32, fd| Socket {
        fd,
        kind: SocketKind::Stream,
        local: Some([10, 0, 0, 1].into()),
        napi_id: 513 + queue as u32,
        busy_poll_usecs: policy.application.socket_busy_poll_usecs,
    };
    let epoll = |queue: i32| Epoll {
        fd: 5 + queue,
        params: Ok(policy.epoll),
        members: fds(queue).into(),
        always_ready: Ok(vec![]),
    };
    let worker = |queue: i32| Thread {
        tid: 813 + queue,
        cpus: vec![queue as usize],
        permille: if spins { 999 } else { 300 },
        slept: Some(!spins),
    };
    let wait = |queue: i32| Wait {
        tid: 813 + queue,
        epoll: 5 + queue,
        maxevents: 32,
        timeout: spins.then_some(1_000_000),
        times: 20,
    };
    let program = Program {
        pid: 812,
        comm: "memcached".into(),
        command: vec![],
        cpuset: None,
        go: Ok(false),
        epolls: Ok((0..2).map(epoll).collect()),
        sockets: Ok((0..2).flat_map(|queue| fds(queue).map(|fd| socket(queue, fd))).collect()),
        threads: (0..2).map(worker).collect(),
        waits: Ok((0..2).map(wait).collect()),
        looks: 50,
        uncounted: None,
    };
    Facts {
        policy,
        asked: true,
        support: Ok(Support::Yes),
        device: Device {
            ifindex: 2,
            ifname: "eth0".into(),
            driver: Some("mlx5_core".into()),
            up: true,
            napis: (0..2).map(napi).collect(),
        },
        poll_threads: threads,
        receive: Receive {
            rps: Ok(vec![(0, vec![]), (1, vec![])]),
            rps_flows: Ok(vec![(0, 0), (1, 0)]),
            ring: Ok(Some(Ring { entries: 1_024, most: 8_192 })),
            adaptive: Ok(Some(false)),
            per_direction: Some(false),
        },
        host: Host {
            cpus: vec![0, 1, 2, 3],
            smt: Ok(false),
            timer_migration: Ok(0),
            rt_runtime: Ok(950_000),
            busy_poll: Ok(0),
            busy_read: Ok(0),
            netdev_budget: Ok(300),
            netdev_budget_usecs: Ok(8_000),
            netdev_max_backlog: Ok(1_000),
            rps_sock_flow_entries: Ok(0),
            workqueue_cpus: Ok(vec![]),
            irqbalance: Ok(None),
        },
        programs: vec![program],
        others: Ok(vec![]),
        unseen: Inaccessible::default(),
        wishes: vec![],
        locks: Locks::default(),
        measured: Measured {
            window: 500_000_000,
            squeezes: Ok(0),
            drops: Ok(0),
            polls: Ok(Polls {
                softirq: 9,
                thread: 500,
                application: 500,
                packets: 1_000,
                suspend_expiries: Some(0),
            }),
            keeps_settings: Ok(Some(true)),
            unpolled: Ok(vec![]),
        },
    }
}

/// All findings that are not in order.
fn complaints(facts: &Facts) -> Vec<(&'static str, Status)> {
    let findings = examine(facts).findings.into_iter();
    findings.filter(|it| it.status != Status::Ok).map(|it| (it.check, it.status)).collect()
}

/// The findings that appear once something is broken.
fn broken(policy: &str, mut breaks: impl FnMut(&mut Facts)) -> Vec<(&'static str, Status)> {
    let mut facts = sound(policy);
    let before = complaints(&facts);
    breaks(&mut facts);
    let mut after = complaints(&facts);
    after.retain(|complaint| !before.contains(complaint));
    after
}

/// Asserts that the breakage adds exactly one finding: a fault of this check.
#[track_caller]
fn faulty(policy: &str, check: &'static str, breaks: impl FnMut(&mut Facts)) {
    assert_eq!(broken(policy, breaks), [(check, Status::Fault)]);
}

/// Asserts that the breakage adds exactly one finding: advice of this check.
#[track_caller]
fn advised(policy: &str, check: &'static str, breaks: impl FnMut(&mut Facts)) {
    assert_eq!(broken(policy, breaks), [(check, Status::Advice)]);
}

/// Asserts that the breakage makes exactly one condition unknown, and that the finding says what was missing.
#[track_caller]
fn unknown(policy: &str, check: &'static str, mut breaks: impl FnMut(&mut Facts)) {
    let mut facts = sound(policy);
    breaks(&mut facts);
    assert_eq!(complaints(&facts), [(check, Status::Unknown)]);
    let findings = examine(&facts).findings;
    let unknown = findings.iter().find(|it| it.status == Status::Unknown).expect("as asserted");
    assert!(!unknown.seen.is_empty());
}

const MISSING: &str = "CAP_SOMETHING";

fn missing<T>() -> Known<T> {
    Err(MISSING.into())
}

fn settings(facts: &mut Facts) -> &mut Settings {
    &mut facts.device.napis[0].settings
}

fn program(facts: &mut Facts) -> &mut Program {
    &mut facts.programs[0]
}

fn epolls(facts: &mut Facts) -> &mut Vec<Epoll> {
    program(facts).epolls.as_mut().expect("made so")
}

fn sockets(facts: &mut Facts) -> &mut Vec<Socket> {
    program(facts).sockets.as_mut().expect("made so")
}

fn waits(facts: &mut Facts) -> &mut Vec<Wait> {
    program(facts).waits.as_mut().expect("made so")
}

fn polls(facts: &mut Facts) -> &mut Polls {
    facts.measured.polls.as_mut().expect("made so")
}

/// Sets a parameter of every epoll.
fn params(facts: &mut Facts, set: impl Fn(&mut EpollPolicy)) {
    for epoll in epolls(facts) {
        set(epoll.params.as_mut().expect("made so"));
    }
}

#[test]
fn what_is_in_order_is_found_in_order() {
    for policy in [
        "base",
        "defer20",
        "defer200",
        "napibusy",
        "fullbusy",
        "suspend20",
        "suspend200",
        "threaded",
        "busypoll",
        "threaded-busy-poll",
        "suspend20,threaded=enabled",
    ] {
        // `fullbusy` as published has a long timer, and gets this advice.
        let own: &[_] = match policy {
            "fullbusy" => &[("busy-poll-in-vain", Status::Advice)],
            _ => &[],
        };
        assert_eq!(complaints(&sound(policy)), own, "{policy}");
    }
}

#[test]
fn a_long_timer_behind_a_busy_poll_is_said_with_what_bounds_it() {
    let findings = examine(&sound("fullbusy")).findings;
    let found = findings.iter().find(|it| it.check == "busy-poll-in-vain").expect("as above");
    assert!(found.what.contains("up to 5ms"), "{}", found.what);
    let fix = found.command().expect("a command");
    assert!(fix.contains("apply fullbusy,gro-flush-timeout=200us"), "{fix}");
    assert_eq!(complaints(&sound("fullbusy,gro-flush-timeout=200us")), []);
    // A wait that polls once drops the NAPI ID, too.
    let findings = examine(&sound("suspend600")).findings;
    let found = findings.iter().find(|it| it.check == "busy-poll-in-vain").expect("it polls");
    assert_eq!(found.status, Status::Advice);
    assert!(found.what.contains("up to 600us"), "{}", found.what);
    assert!(found.seen.contains("one pass a wait"), "{}", found.seen);
}

#[test]
fn a_policy_is_checked_for_what_it_needs() {
    let checks = |policy| -> Vec<_> {
        examine(&sound(policy)).findings.iter().map(|finding| finding.check).collect()
    };
    let base = checks("base");
    assert!(base.contains(&"settings") && base.contains(&"threaded"), "{base:?}");
    for needless in ["prefer", "suspend-timeout", "deferral", "rps", "cpu-match", "smt"] {
        assert!(!base.contains(&needless), "{needless}");
    }
    let suspend = checks("suspend20");
    for needed in ["prefer", "suspend-timeout", "deferral", "rps", "cpu-match", "suspend-expiry"] {
        assert!(suspend.contains(&needed), "{needed}");
    }
    assert!(checks("busypoll").contains(&"socket-busy-poll"));
    assert!(checks("threaded-busy-poll").contains(&"workqueue-cpumask"));
}

#[test]
fn every_name_is_there_once_and_every_finding_has_one() {
    let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), CHECKS.len());
    for name in &names {
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
    }
    for finding in examine(&sound("suspend20")).findings {
        assert!(names.contains(finding.check), "{finding:?}");
    }
}

#[test]
fn faults_come_first_and_are_counted() {
    let mut facts = sound("suspend20");
    facts.host.smt = Ok(true);
    facts.host.irqbalance = missing();
    facts.receive.rps = Ok(vec![(0, vec![1, 2])]);
    let report = examine(&facts);
    let order: Vec<_> = report.findings.iter().map(|it| it.status).take(4).collect();
    assert_eq!(order, [Status::Fault, Status::Advice, Status::Unknown, Status::Ok]);
    let fine = report.count(Status::Ok);
    assert_eq!(report.summary(), format!("1 fault, 1 advice, {fine} in order, 1 unknown"));
    assert!(report.findings[0].what.contains("RPS"));
    assert!(report.findings[0].seen.contains("rx-0: rps_cpus 1-2"));
    assert!(report.findings[0].command().is_some_and(|it| it.contains("eth0/queues/rx-0")));
}

#[test]
fn a_kernel_that_lacks_the_mode_is_said_with_the_nearest() {
    let lacks = || Support::No { lacks: "Linux 6.19".into(), nearest: Some(Policy::THREADED) };
    faulty("threaded-busy-poll", "kernel-support", |it| it.support = Ok(lacks()));
    unknown("suspend20", "kernel-support", |it| it.support = missing());
    let mut facts = sound("threaded-busy-poll");
    facts.support = Ok(lacks());
    let fix = examine(&facts).findings.remove(0).command();
    assert_eq!(fix.as_deref(), Some("napkin apply threaded --dev eth0"));
}

#[test]
fn without_an_instance_nothing_else_is_blamed() {
    let bare = |driver: Option<&str>, up, name: &str| {
        let mut facts = sound("suspend20");
        facts.device.napis.clear();
        facts.device.driver = driver.map(str::to_owned);
        facts.device.up = up;
        facts.device.ifname = name.into();
        let faults: Vec<_> = complaints(&facts);
        assert_eq!(faults, [("napi", Status::Fault)], "{name}");
        examine(&facts).findings.remove(0).command()
    };
    assert_eq!(bare(Some("veth"), true, "va").as_deref(), Some("ethtool -K va gro on"));
    assert_eq!(bare(Some("mlx5_core"), false, "eth0").as_deref(), Some("ip link set eth0 up"));
    assert_eq!(bare(None, true, "lo"), None);
    assert_eq!(bare(Some("old"), true, "eth0"), None);
}

#[test]
fn settings_are_held_against_the_policy_that_was_asked_for() {
    advised("suspend20", "settings", |it| settings(it).gro_flush_timeout = Some(30_000));
    advised("defer20", "settings", |it| settings(it).defer_hard_irqs = Some(50));
    faulty("defer20", "settings", |it| settings(it).irq_suspend_timeout = Some(20_000_000));
    let on = |it: &mut Facts| {
        settings(it).defer_hard_irqs = Some(100);
        settings(it).gro_flush_timeout = Some(20_000);
    };
    faulty("base", "settings", on);
    // No policy was requested: the settings are the policy.
    let unasked = broken("defer20", |it| {
        it.asked = false;
        settings(it).defer_hard_irqs = Some(50);
    });
    assert_eq!(unasked, []);
}

#[test]
fn who_polls_is_as_the_policy_says() {
    faulty("threaded", "threaded", |it| settings(it).threaded = Some(0));
    faulty("suspend20", "threaded", |it| settings(it).threaded = Some(1));
    faulty("threaded-busy-poll", "threaded", |it| settings(it).threaded = Some(1));
    unknown("threaded", "threaded", |it| {
        for napi in &mut it.device.napis {
            napi.settings.threaded = None;
        }
    });
}

#[test]
fn deferral_takes_both_of_its_numbers() {
    for policy in ["suspend20", "defer20", "napibusy"] {
        faulty(policy, "deferral", |it| settings(it).defer_hard_irqs = Some(0));
        faulty(policy, "deferral", |it| settings(it).gro_flush_timeout = Some(0));
    }
    let half = broken("base", |it| {
        it.asked = false;
        settings(it).defer_hard_irqs = Some(100);
    });
    assert_eq!(half, [("deferral", Status::Advice)]);
}

#[test]
fn an_instance_without_the_program_s_sockets_may_be_set_otherwise() {
    let one_queue = |it: &mut Facts| {
        sockets(it).retain(|socket| socket.napi_id == 513);
        epolls(it).truncate(1);
        waits(it).truncate(1);
        it.device.napis[1].settings = Settings::default();
    };
    assert_eq!(broken("suspend20", one_queue), []);
}

#[test]
fn the_period_is_about_a_request() {
    let period = |it: &mut Facts, time| {
        it.asked = false;
        for napi in &mut it.device.napis {
            napi.settings.gro_flush_timeout = Some(time);
        }
    };
    advised("defer20", "flush-timeout", |it| period(it, 2_000_000));
    advised("defer20", "flush-timeout", |it| period(it, 1_000));
    assert_eq!(broken("defer20", |it| period(it, 200_000)), []);
}

#[test]
fn the_suspension_is_in_proportion() {
    let suspension = |time| move |it: &mut Facts| settings(it).irq_suspend_timeout = Some(time);
    faulty("suspend20", "suspend-timeout", suspension(0));
    faulty("suspend20", "suspend-timeout", suspension(10_000));
    let unasked = |time| {
        broken("suspend20", |it| {
            it.asked = false;
            suspension(time)(it);
        })
    };
    assert_eq!(unasked(100_000), [("suspend-timeout", Status::Advice)]);
    assert_eq!(unasked(500_000_000), [("suspend-timeout", Status::Advice)]);
    assert_eq!(unasked(10_000_000), []);
    unknown("suspend20", "suspend-timeout", |it| {
        for napi in &mut it.device.napis {
            napi.settings.irq_suspend_timeout = None;
        }
    });
}

#[test]
fn a_suspend_timeout_without_a_program_is_said() {
    let alone = broken("suspend20", |it| it.programs.clear());
    assert_eq!(alone, [("suspend-program", Status::Advice)]);
    let hidden = broken("suspend20", |it| {
        it.programs.clear();
        it.others = missing();
    });
    assert!(hidden.contains(&("suspend-program", Status::Unknown)), "{hidden:?}");
}
