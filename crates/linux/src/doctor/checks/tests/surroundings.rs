//! Tests of CPUs, interrupts, the device, the host, other programs, and measurements.

use super::*;

#[test]
fn program_and_queue_share_a_cpu_where_they_take_turns() {
    let put = |it: &mut Facts, cpus: &[usize]| it.programs[0].threads[0].cpus = cpus.into();
    faulty("suspend20", "cpu-match", |it| put(it, &[3]));
    faulty("napibusy", "cpu-match", |it| put(it, &[2, 3]));
    advised("suspend20", "cpu-match", |it| put(it, &[0, 1, 2, 3]));
    faulty("suspend20,threaded=enabled", "cpu-match", |it| put(it, &[3]));
    let mut facts = sound("suspend20");
    put(&mut facts, &[3]);
    let fix = examine(&facts).findings.remove(0).command();
    assert_eq!(fix.as_deref(), Some("taskset -pc 0 813"));
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
    let fix = findings[0].command();
    assert_eq!(fix.as_deref(), Some("echo 3 > /sys/devices/virtual/workqueue/cpumask"));
    let mut kept_to = |cpus: &[usize]| {
        facts.host.workqueue_cpus = Ok(cpus.to_vec());
        examine(&facts).findings[0].command()
    };
    // An operator who has also kept it off CPU 1 did so on purpose.
    let narrow = kept_to(&[0, 2]);
    assert_eq!(narrow.as_deref(), Some("echo 1 > /sys/devices/virtual/workqueue/cpumask"));
    let elsewhere = kept_to(&[2, 3]);
    assert_eq!(elsewhere.as_deref(), Some("echo 3 > /sys/devices/virtual/workqueue/cpumask"));
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
    let ssh = |it: &mut Facts| {
        it.others = Ok(vec![Other { pid: 7, comm: "sshd".into(), napi_ids: [513].into() }]);
    };
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
            assert!(finding.command().is_some(), "{finding:?}");
        }
    }
}

#[test]
fn whether_the_settings_last_is_said_where_some_are_set() {
    advised("suspend20", "lasting", |it| it.measured.keeps_settings = Ok(Some(false)));
    unknown("suspend20", "lasting", |it| it.measured.keeps_settings = Ok(None));
    unknown("threaded", "lasting", |it| it.measured.keeps_settings = missing());
    let gone = |it: &mut Facts| it.measured.keeps_settings = Ok(Some(false));
    assert_eq!(broken("base", gone), [], "nothing is set that could be lost");
    let of_device = broken("defer20", |it| {
        gone(it);
        for napi in &mut it.device.napis {
            napi.settings.irq_suspend_timeout = None;
        }
    });
    assert!(of_device.iter().all(|(check, _)| *check != "lasting"), "{of_device:?}");
}
