//! Facts that were made up: in order for a policy, then broken one at a time.

use std::collections::BTreeMap;

use napkin_core::Policy;
use napkin_core::policy::{EpollPolicy, Threaded};

use super::super::facts::*;
use super::super::finding::Status;
use super::{CHECKS, examine};
use crate::device::{Device, Napi};
use crate::settings::Settings;

/// A host of four CPUs whose `eth0` has two queues, each with its interrupt on its CPU; a memcached
/// of two threads, each with the connections of one queue, on that queue's CPU. Everything is as the
/// policy wants it.
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
        // With suspension a thread and the program take turns; otherwise each has its own.
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
    let epoll =
        |queue: i32| Epoll { fd: 5 + queue, params: Ok(policy.epoll), members: fds(queue).into() };
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
        },
        host: Host {
            cpus: vec![0, 1, 2, 3],
            smt: Ok(false),
            timer_migration: Ok(0),
            rt_runtime: Ok(950_000),
            busy_poll: Ok(0),
            busy_read: Ok(0),
            netdev_budget: Ok(300),
            rps_sock_flow_entries: Ok(0),
            workqueue_cpus: Ok(vec![]),
            irqbalance: Ok(None),
        },
        programs: vec![program],
        others: Ok(vec![]),
        unseen: 0,
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
        },
    }
}

/// What is not in order.
fn complaints(facts: &Facts) -> Vec<(&'static str, Status)> {
    let findings = examine(facts).findings.into_iter();
    findings.filter(|it| it.status != Status::Ok).map(|it| (it.check, it.status)).collect()
}

/// What is not in order once something is broken.
fn broken(policy: &str, mut breaks: impl FnMut(&mut Facts)) -> Vec<(&'static str, Status)> {
    let mut facts = sound(policy);
    breaks(&mut facts);
    complaints(&facts)
}

/// Exactly one fault is added by what is broken, under this name.
#[track_caller]
fn faulty(policy: &str, check: &'static str, breaks: impl FnMut(&mut Facts)) {
    assert_eq!(broken(policy, breaks), [(check, Status::Fault)]);
}

/// Exactly one piece of advice is added.
#[track_caller]
fn advised(policy: &str, check: &'static str, breaks: impl FnMut(&mut Facts)) {
    assert_eq!(broken(policy, breaks), [(check, Status::Advice)]);
}

/// Exactly one thing is not known any more, and what was missing is said.
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
        assert_eq!(complaints(&sound(policy)), [], "{policy}");
    }
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
    assert!(report.findings[0].mend.as_ref().is_some_and(|it| it.contains("eth0/queues/rx-0")));
}

#[test]
fn a_kernel_that_lacks_the_mode_is_said_with_the_nearest() {
    let lacks = || Support::No { lacks: "Linux 6.19".into(), nearest: Some("threaded".into()) };
    faulty("threaded-busy-poll", "kernel-support", |it| it.support = Ok(lacks()));
    unknown("suspend20", "kernel-support", |it| it.support = missing());
    let mut facts = sound("threaded-busy-poll");
    facts.support = Ok(lacks());
    let mend = examine(&facts).findings.remove(0).mend;
    assert_eq!(mend.as_deref(), Some("napkin apply threaded --dev eth0"));
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
        examine(&facts).findings.remove(0).mend
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
    // Nobody asked: they are what they are.
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

#[test]
fn a_connection_without_an_id_is_never_polled() {
    faulty("suspend20", "napi-id", |it| sockets(it)[0].napi_id = 0);
    // Before there is a connection little is known.
    let idle = broken("suspend20", |it| {
        sockets(it).clear();
        waits(it).clear();
        it.measured.polls = Ok(Polls { suspend_expiries: Some(0), ..Polls::default() });
    });
    assert!(idle.contains(&("napi-id", Status::Unknown)), "{idle:?}");
    assert!(idle.iter().all(|(_, status)| *status == Status::Unknown), "{idle:?}");
}

#[test]
fn the_other_end_of_a_veth_is_named() {
    let mut facts = sound("suspend20");
    facts.device.driver = Some("veth".into());
    sockets(&mut facts)[0].napi_id = 0;
    let mend = examine(&facts).findings.remove(0).mend;
    assert!(mend.is_some_and(|it| it.contains("tso off gso off")));
}

#[test]
fn connections_over_loopback_are_not_the_device_s() {
    let local = broken("suspend20", |it| {
        let loopback = Socket {
            fd: 99,
            local: Some([127, 0, 0, 1].into()),
            napi_id: 0,
            ..sockets(it)[0].clone()
        };
        epolls(it)[0].members.push(99);
        sockets(it).push(loopback);
    });
    assert_eq!(local, []);
}

#[test]
fn receive_calls_poll_if_their_sockets_say_so() {
    faulty("busypoll", "socket-busy-poll", |it| sockets(it)[1].busy_poll_usecs = 0);
}

#[test]
fn a_program_without_epoll_cannot_suspend() {
    let without = broken("suspend20", |it| {
        epolls(it).clear();
        waits(it).clear();
    });
    assert!(without.contains(&("epoll", Status::Fault)), "{without:?}");
    assert_eq!(without.iter().filter(|(_, status)| *status == Status::Fault).count(), 1);
    let elsewhere = broken("suspend20", |it| {
        for epoll in epolls(it) {
            epoll.members.clear();
        }
    });
    assert!(elsewhere.contains(&("epoll", Status::Fault)), "{elsewhere:?}");
    unknown("suspend20", "epoll", |it| epolls(it)[0].params = missing());
}

#[test]
fn the_flag_belongs_to_the_epoll_with_the_sockets() {
    faulty("suspend20", "prefer", |it| params(it, |it| it.prefer_busy_poll = false));
    faulty("napibusy", "prefer", |it| params(it, |it| it.prefer_busy_poll = false));
    faulty("suspend20", "prefer-epoll", |it| {
        let right = epolls(it)[0].clone();
        params(it, |it| it.prefer_busy_poll = false);
        let wrong = Epoll { fd: 77, members: vec![], ..right };
        epolls(it).push(wrong);
    });
}

#[test]
fn an_epoll_polls_as_long_and_as_much_as_the_policy_says() {
    faulty("napibusy", "busy-poll-usecs", |it| params(it, |it| it.busy_poll_usecs = 0));
    advised("napibusy", "busy-poll-usecs", |it| params(it, |it| it.busy_poll_usecs = 32));
    faulty("suspend20", "budget", |it| params(it, |it| it.busy_poll_budget = 0));
    faulty("suspend20", "budget", |it| params(it, |it| it.busy_poll_budget = 8));
    advised("suspend20", "budget", |it| {
        it.asked = false;
        params(it, |it| it.busy_poll_budget = 0);
    });
}

#[test]
fn an_epoll_polls_one_instance() {
    faulty("suspend20", "epoll-instance", |it| {
        // All connections are the first thread's.
        sockets(it).iter_mut().for_each(|socket| socket.fd %= 10);
        let fds: Vec<i32> = (0..4).collect();
        for (socket, fd) in sockets(it).iter_mut().zip(&fds) {
            socket.fd = *fd;
        }
        epolls(it)[0].members = fds;
        epolls(it).truncate(1);
        waits(it).truncate(1);
        // It may run on either queue's CPU.
        it.programs[0].threads[0].cpus = vec![0, 1];
    });
}

#[test]
fn an_epoll_is_one_thread_s() {
    let share = |it: &mut Facts| {
        let second = Wait { epoll: 5, ..waits(it)[1] };
        waits(it).push(second);
        it.programs[0].threads[1].cpus = vec![0, 1];
    };
    faulty("suspend20", "epoll-shared", share);
    advised("napibusy", "epoll-shared", share);
}

#[test]
fn an_instance_is_one_epoll_s() {
    advised("suspend20", "instance-shared", |it| {
        for socket in sockets(it) {
            socket.napi_id = 513;
        }
        it.programs[0].threads[1].cpus = vec![0];
    });
}

#[test]
fn a_wait_with_a_zero_timeout_never_polls() {
    let timeout = |it: &mut Facts, nanoseconds| {
        for wait in waits(it) {
            wait.timeout = nanoseconds;
        }
    };
    faulty("suspend20", "wait-timeout", |it| timeout(it, Some(0)));
    advised("suspend20", "wait-timeout", |it| timeout(it, Some(10_000_000)));
    advised("fullbusy", "wait-timeout", |it| timeout(it, None));
    // A look before it sleeps is no harm.
    let looks = broken("suspend20", |it| {
        let look = Wait { timeout: Some(0), times: 3, ..waits(it)[0] };
        waits(it).push(look);
    });
    assert_eq!(looks, []);
    let unseen = broken("suspend20", |it| program(it).waits = missing());
    assert_eq!(unseen, [("wait-timeout", Status::Unknown), ("cpu-match", Status::Unknown)]);
}

#[test]
fn a_program_that_was_never_seen_to_wait_is_not_known() {
    let running = broken("suspend20", |it| {
        waits(it).clear();
        program(it).uncounted = Some("counting its calls takes CAP_PERFMON".into());
    });
    assert!(running.contains(&("wait-timeout", Status::Unknown)), "{running:?}");
    assert!(running.iter().all(|(_, status)| *status == Status::Unknown), "{running:?}");
}

#[test]
fn a_batch_fits_into_the_suspension() {
    let crowd = |it: &mut Facts, connections: i32, maxevents| {
        let one = sockets(it)[0].clone();
        for fd in 1_000..1_000 + connections {
            sockets(it).push(Socket { fd, ..one.clone() });
            epolls(it)[0].members.push(fd);
        }
        waits(it)[0].maxevents = maxevents;
    };
    // 4096 requests of 20 us are more than 20 ms.
    advised("suspend20", "maxevents", |it| crowd(it, 5_000, 4_096));
    advised("suspend20", "maxevents", |it| {
        crowd(it, 100, 1);
        waits(it)[1].maxevents = 1;
    });
    assert_eq!(broken("suspend20", |it| crowd(it, 5_000, 64)), []);
}

#[test]
fn a_program_that_spins_is_said() {
    advised("suspend20", "spinning", |it| {
        let thread = &mut it.programs[0].threads[0];
        (thread.permille, thread.slept) = (990, Some(false));
    });
    advised("fullbusy", "spinning", |it| {
        for thread in &mut it.programs[0].threads {
            (thread.permille, thread.slept) = (20, Some(true));
        }
    });
    unknown("suspend20", "spinning", |it| {
        for thread in &mut it.programs[0].threads {
            thread.slept = None;
        }
    });
}

#[test]
fn go_is_warned_about() {
    advised("suspend20", "go-runtime", |it| program(it).go = Ok(true));
    unknown("suspend20", "go-runtime", |it| program(it).go = missing());
}

#[test]
fn program_and_queue_share_a_cpu_where_they_take_turns() {
    let put = |it: &mut Facts, cpus: &[usize]| it.programs[0].threads[0].cpus = cpus.into();
    faulty("suspend20", "cpu-match", |it| put(it, &[3]));
    faulty("napibusy", "cpu-match", |it| put(it, &[2, 3]));
    advised("suspend20", "cpu-match", |it| put(it, &[0, 1, 2, 3]));
    faulty("suspend20,threaded=enabled", "cpu-match", |it| put(it, &[3]));
    let mut facts = sound("suspend20");
    put(&mut facts, &[3]);
    let mend = examine(&facts).findings.remove(0).mend;
    assert_eq!(mend.as_deref(), Some("taskset -pc 0 813"));
}

#[test]
fn a_thread_that_polls_has_another_cpu_than_the_program() {
    let together = |it: &mut Facts| it.programs[0].threads[0].cpus = vec![2];
    faulty("threaded-busy-poll", "cpu-match", together);
    advised("threaded", "cpu-match", together);
}

#[test]
fn without_interrupt_and_thread_there_is_nothing_to_match() {
    let virtual_device = broken("suspend20", |it| {
        for napi in &mut it.device.napis {
            (napi.irq, napi.irq_cpus) = (None, None);
        }
        it.programs[0].threads[0].cpus = vec![3];
    });
    assert_eq!(virtual_device, []);
}

#[test]
fn a_polling_thread_is_pinned() {
    let free = |it: &mut Facts| {
        for thread in it.poll_threads.values_mut() {
            thread.cpus = vec![0, 1, 2, 3];
        }
    };
    advised("threaded", "napi-thread", free);
    let busy = broken("threaded-busy-poll", free);
    assert_eq!(busy, [("napi-thread", Status::Advice)]);
}

#[test]
fn interrupts_stay_where_they_are() {
    advised("suspend20", "irq-affinity", |it| it.device.napis[0].irq_cpus = Some(vec![0, 1]));
    unknown("defer20", "irq-affinity", |it| {
        for napi in &mut it.device.napis {
            napi.irq_cpus = None;
        }
    });
    advised("suspend20", "irqbalance", |it| it.host.irqbalance = Ok(Some(700)));
    unknown("suspend20", "irqbalance", |it| it.host.irqbalance = missing());
}

#[test]
fn packets_stay_on_their_cpu() {
    faulty("suspend20", "rps", |it| it.receive.rps = Ok(vec![(1, vec![2])]));
    advised("threaded", "rps", |it| it.receive.rps = Ok(vec![(1, vec![2])]));
    unknown("suspend20", "rps", |it| it.receive.rps = missing());
    let flows = |it: &mut Facts| it.receive.rps_flows = Ok(vec![(0, 4_096)]);
    advised("suspend20", "rfs", flows);
    faulty("suspend20", "rfs", |it| {
        flows(it);
        it.host.rps_sock_flow_entries = Ok(32_768);
    });
    advised("suspend20", "rfs", |it| {
        flows(it);
        it.host.rps_sock_flow_entries = missing();
    });
    unknown("suspend20", "rfs", |it| it.receive.rps_flows = missing());
}

#[test]
fn the_device_does_its_part() {
    let ring =
        |entries, most| move |it: &mut Facts| it.receive.ring = Ok(Some(Ring { entries, most }));
    advised("suspend20", "ring", ring(128, 8_192));
    assert_eq!(broken("suspend20", ring(256, 256)), [], "it has no more");
    unknown("suspend20", "ring", |it| it.receive.ring = missing());
    advised("defer20", "coalescing", |it| it.receive.adaptive = Ok(Some(true)));
    unknown("defer20", "coalescing", |it| it.receive.adaptive = missing());
    let none = broken("suspend20", |it| {
        it.receive.ring = Ok(None);
        it.receive.adaptive = Ok(None);
    });
    assert_eq!(none, []);
}

#[test]
fn the_host_is_as_the_published_ones() {
    advised("suspend20", "smt", |it| it.host.smt = Ok(true));
    unknown("suspend20", "smt", |it| it.host.smt = missing());
    advised("threaded-busy-poll", "timer-migration", |it| it.host.timer_migration = Ok(1));
    unknown("busypoll", "timer-migration", |it| it.host.timer_migration = missing());
    assert_eq!(broken("suspend20", |it| it.host.timer_migration = Ok(1)), []);
    advised("suspend20", "system-busy-poll", |it| it.host.busy_poll = Ok(50));
    advised("suspend20", "system-busy-poll", |it| it.host.busy_read = Ok(50));
    assert_eq!(broken("busypoll", |it| it.host.busy_read = Ok(400)), []);
    unknown("base", "system-busy-poll", |it| it.host.busy_poll = missing());
    advised("base", "netdev-budget", |it| it.host.netdev_budget = Ok(64));
    unknown("base", "netdev-budget", |it| it.host.netdev_budget = missing());
}

#[test]
fn a_real_time_thread_that_never_sleeps_is_throttled() {
    let fifo = |it: &mut Facts| {
        for thread in it.poll_threads.values_mut() {
            thread.fifo = Some(50);
        }
    };
    faulty("threaded-busy-poll", "rt-runtime", fifo);
    assert_eq!(broken("threaded", fifo), [], "it sleeps");
    let unlimited = broken("threaded-busy-poll", |it| {
        fifo(it);
        it.host.rt_runtime = Ok(-1);
    });
    assert_eq!(unlimited, []);
    unknown("threaded", "rt-runtime", |it| {
        fifo(it);
        it.host.rt_runtime = missing();
    });
}

#[test]
fn kernel_work_keeps_off_the_polling_cpus() {
    let work = |it: &mut Facts| it.host.workqueue_cpus = Ok(vec![0, 1, 2, 3]);
    advised("threaded-busy-poll", "workqueue-cpumask", work);
    advised("fullbusy", "workqueue-cpumask", work);
    assert_eq!(broken("suspend20", work), []);
    let mut facts = sound("threaded-busy-poll");
    work(&mut facts);
    let findings = examine(&facts).findings;
    // The threads are on CPU 2 and 3.
    let mend = findings[0].mend.as_deref();
    assert_eq!(mend, Some("echo 3 > /sys/devices/virtual/workqueue/cpumask"));
    unknown("threaded-busy-poll", "workqueue-cpumask", |it| it.host.workqueue_cpus = missing());
}

#[test]
fn what_goes_on_is_said() {
    advised("base", "time-squeeze", |it| it.measured.squeezes = Ok(3));
    unknown("base", "time-squeeze", |it| it.measured.squeezes = missing());
    advised("base", "softnet-drops", |it| it.measured.drops = Ok(3));
    unknown("base", "softnet-drops", |it| it.measured.drops = missing());
}

#[test]
fn a_mode_that_is_set_and_not_active_is_seen() {
    advised("napibusy", "poller", |it| polls(it).application = 0);
    advised("threaded", "poller", |it| polls(it).thread = 0);
    unknown("napibusy", "poller", |it| polls(it).packets = 0);
    unknown("threaded", "poller", |it| it.measured.polls = missing());
}

#[test]
fn a_suspension_that_ends_by_its_timeout_is_seen() {
    advised("suspend20", "suspend-expiry", |it| polls(it).suspend_expiries = Some(4));
    unknown("suspend20", "suspend-expiry", |it| polls(it).suspend_expiries = None);
    let uncounted = broken("suspend20", |it| it.measured.polls = missing());
    let names: Vec<_> = uncounted.iter().map(|(check, _)| *check).collect();
    assert_eq!(names, ["poller", "suspend-expiry"]);
}

#[test]
fn others_on_the_queue_are_named_where_they_wait() {
    let ssh = |it: &mut Facts| it.others = Ok(vec![Other { pid: 7, comm: "sshd".into() }]);
    advised("suspend20", "shared-interface", ssh);
    assert_eq!(broken("defer20", ssh), [], "20 us are nobody's trouble");
    unknown("suspend20", "shared-interface", |it| it.others = missing());
}

#[test]
fn every_fault_says_how_it_was_seen() {
    let mut facts = sound("suspend20");
    params(&mut facts, |it| *it = EpollPolicy::default());
    facts.receive.rps = Ok(vec![(0, vec![1])]);
    settings(&mut facts).defer_hard_irqs = Some(0);
    for finding in examine(&facts).findings {
        assert!(!finding.what.is_empty() && !finding.seen.is_empty(), "{finding:?}");
        if finding.status == Status::Fault {
            assert!(finding.mend.is_some(), "{finding:?}");
        }
    }
}
