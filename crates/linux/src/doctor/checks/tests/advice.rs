//! Tests of fixes: a fix has to help, and must not be advised once it is in force.

use super::super::super::fix::Fix;
use super::*;
use crate::journal::Holder;
use napkin_os::procfs::Sysctl;

/// The command that a check advises; `None` if it reports a problem without a fix.
#[track_caller]
fn advice(facts: &Facts, check: &str) -> Option<String> {
    let mut findings = examine(facts).findings.into_iter();
    let finding = findings.find(|it| it.check == check && it.status <= Status::Advice);
    finding.unwrap_or_else(|| panic!("{check} finds nothing: {:#?}", complaints(facts))).command()
}

fn set_all(facts: &mut Facts, set: impl Fn(&mut Settings)) {
    facts.device.napis.iter_mut().for_each(|napi| set(&mut napi.settings));
}

/// Drops the requested policy: the policy is what the settings imply.
fn unasked(facts: &mut Facts) {
    facts.asked = false;
    facts.policy = super::super::super::gather::implied_policy(&facts.device, &facts.programs);
}

#[test]
fn a_suspension_that_was_too_short_gets_longer() {
    let too_short = |present: u64| {
        let mut facts = sound("suspend20");
        set_all(&mut facts, |it| it.irq_suspend_timeout = Some(present));
        unasked(&mut facts);
        polls(&mut facts).suspend_expiries = Some(5);
        advice(&facts, "suspend-expiry")
    };
    let apply =
        |time: &str| Some(format!("napkin apply suspend20,irq-suspend-timeout={time} --dev eth0"));
    assert_eq!(too_short(20_000_000), apply("40ms"));
    assert_eq!(too_short(80_000_000), apply("100ms"));
    assert_eq!(too_short(100_000_000), None, "others would wait noticeably");
}

#[test]
fn a_suspension_that_nobody_polls_in_is_not_too_short() {
    let mut facts = sound("suspend20");
    *polls(&mut facts) = Polls { suspend_expiries: Some(5), packets: 9, ..Polls::default() };
    assert_eq!(advice(&facts, "suspend-expiry"), None);
    let findings = examine(&facts).findings;
    let expiry = findings.iter().find(|it| it.check == "suspend-expiry").expect("as above");
    assert!(expiry.what.contains("does not poll"), "{}", expiry.what);
}

#[test]
fn a_batch_is_given_no_longer_than_others_can_wait_and_that_is_not_taken_back() {
    let mut facts = sound("suspend20");
    let one = sockets(&mut facts)[0].clone();
    for fd in 1_000..9_000 {
        sockets(&mut facts).push(Socket { fd, ..one.clone() });
        epolls(&mut facts)[0].members.push(fd);
    }
    waits(&mut facts)[0].maxevents = 65_536;
    // 8002 requests of 20 us are 160 ms.
    let fix = advice(&facts, "maxevents").expect("it can be longer");
    assert_eq!(fix, "napkin apply suspend20,irq-suspend-timeout=100ms --dev eth0");
    set_all(&mut facts, |it| it.irq_suspend_timeout = Some(100_000_000));
    // Requested again as before, and as advised.
    for policy in ["suspend20", "suspend20,irq-suspend-timeout=100ms"] {
        facts.policy = policy.parse().expect(policy);
        assert_eq!(complaints(&facts), [("maxevents", Status::Advice)], "{policy}");
        assert_eq!(advice(&facts, "maxevents"), None);
    }
}

#[test]
fn a_limit_that_is_too_small_is_raised_and_never_lowered() {
    let squeezed = |packets, usecs| {
        let mut facts = sound("suspend20");
        (facts.host.netdev_budget, facts.host.netdev_budget_usecs) = (packets, usecs);
        facts.measured.squeezes = Ok(7);
        advice(&facts, "time-squeeze")
    };
    let write = |text: &str| Some(format!("sysctl -w net.core.{text}"));
    assert_eq!(squeezed(Ok(64), Ok(8_000)), write("netdev_budget=600"));
    assert_eq!(squeezed(Ok(300), Ok(8_000)), write("netdev_budget=600"));
    assert_eq!(squeezed(Ok(1_000), Ok(8_000)), write("netdev_budget=1200"));
    assert_eq!(squeezed(Ok(5_000), Ok(2_000)), write("netdev_budget_usecs=4000"));
    assert_eq!(squeezed(Ok(5_000), Ok(20_000)), None);
    assert_eq!(squeezed(missing(), missing()), None, "what is set is not known");
    let dropped = |backlog| {
        let mut facts = sound("suspend20");
        facts.host.netdev_max_backlog = backlog;
        facts.measured.drops = Ok(3);
        advice(&facts, "softnet-drops")
    };
    assert_eq!(dropped(Ok(1_000)), write("netdev_max_backlog=10000"));
    assert_eq!(dropped(Ok(30_000)), write("netdev_max_backlog=60000"));
    assert_eq!(dropped(Ok(200_000)), None);
}

#[test]
fn fewer_cpus_than_are_on_are_not_one() {
    // `isolcpus=3`: a thread that is not pinned runs on the others.
    let unbound = |facts: &mut Facts| {
        facts.poll_threads.values_mut().for_each(|it| it.cpus = vec![0, 1, 2]);
    };
    advised("threaded-busy-poll", "napi-thread", unbound);
    advised("threaded", "napi-thread", unbound);
    let mut facts = sound("threaded-busy-poll");
    unbound(&mut facts);
    // The program's threads are on CPU 0 and 1.
    let fix = advice(&facts, "napi-thread");
    assert_eq!(fix.as_deref(), Some("taskset -pc 2 90; taskset -pc 3 91"));
}

#[test]
fn threads_that_spin_have_a_cpu_each() {
    let mut facts = sound("threaded-busy-poll");
    facts.poll_threads.values_mut().for_each(|it| it.cpus = vec![2]);
    assert_eq!(complaints(&facts), [("napi-thread", Status::Fault)]);
    assert_eq!(advice(&facts, "napi-thread").as_deref(), Some("taskset -pc 3 91"));
    // A program's thread on the CPU of another instance's thread is also in the way.
    let mut facts = sound("threaded-busy-poll");
    facts.programs[0].threads[0].cpus = vec![3];
    assert_eq!(complaints(&facts), [("cpu-match", Status::Fault)]);
    assert_eq!(advice(&facts, "cpu-match").as_deref(), Some("taskset -pc 0 813"));
    // If there are too few CPUs, threads that sleep are advised.
    let mut facts = sound("threaded-busy-poll");
    facts.host.cpus = vec![0, 1];
    let fix = advice(&facts, "napi-thread").expect("another policy");
    assert_eq!(fix, "napkin apply threaded-busy-poll,threaded=enabled --dev eth0");
}

#[test]
fn an_interrupt_and_a_program_that_could_meet_are_brought_together() {
    let mut facts = sound("suspend20");
    facts.device.napis[0].irq_cpus = Some(vec![0, 1, 2]);
    facts.programs[0].threads[0].cpus = vec![2, 3];
    assert_eq!(
        advice(&facts, "irq-affinity").as_deref(),
        Some("echo 2 > /proc/irq/40/smp_affinity_list")
    );
    assert_eq!(
        advice(&facts, "cpu-match").as_deref(),
        Some("echo 2 > /proc/irq/40/smp_affinity_list; taskset -pc 2 813")
    );
}

#[test]
fn nothing_is_put_beside_an_interrupt_that_irqbalance_moves() {
    let mut facts = sound("suspend20");
    facts.programs[0].threads[0].cpus = vec![3];
    facts.host.irqbalance = Ok(Some(700));
    assert_eq!(
        advice(&facts, "cpu-match").as_deref(),
        Some("systemctl stop irqbalance; taskset -pc 0 813")
    );
}

#[test]
fn a_thread_is_sent_only_where_its_container_lets_it() {
    let mut facts = sound("suspend20");
    facts.programs[0].cpuset = Some(vec![0, 1]);
    facts.device.napis[0].irq_cpus = Some(vec![3]);
    assert_eq!(
        advice(&facts, "cpu-match").as_deref(),
        Some("echo 0 > /proc/irq/40/smp_affinity_list")
    );
}

#[test]
fn what_is_done_already_is_not_advised() {
    let mixed = |it: &mut Facts| {
        for socket in sockets(it) {
            socket.napi_id = 513 + u32::from(socket.fd % 2 == 1);
        }
    };
    let mut facts = sound("suspend20");
    mixed(&mut facts);
    let restart = advice(&facts, "epoll-instance").expect("it can be started otherwise");
    assert!(restart.starts_with("memcached -t 2 -N 2 "), "{restart}");
    let words = |facts: &mut Facts, text: &str| {
        facts.programs[0].command = text.split(' ').map(str::to_owned).collect();
    };
    words(&mut facts, "memcached -t 4 -N 2");
    assert_eq!(advice(&facts, "epoll-instance"), Some(restart));
    for text in ["memcached -t 2 -N 2", "memcached -u nobody -t2 -N2"] {
        words(&mut facts, text);
        let one = advice(&facts, "epoll-instance").expect("fewer queues");
        assert!(one.starts_with("ethtool -L eth0 combined 1 "), "{text}: {one}");
    }
    // mlx4 sets the queues of each direction alone; a veth is known to.
    facts.receive.per_direction = Some(true);
    let one = advice(&facts, "epoll-instance").expect("fewer queues");
    assert!(one.starts_with("ethtool -L eth0 rx 1 "), "{one}");
    for (driver, words) in [("veth", "rx 1"), ("igb", "combined 1")] {
        (facts.receive.per_direction, facts.device.driver) = (None, Some(driver.into()));
        let one = advice(&facts, "epoll-instance").expect("fewer queues");
        assert!(one.starts_with(&format!("ethtool -L eth0 {words} ")), "{one}");
    }
    // With another device's sockets, this device has no queue too many.
    let mut facts = sound("suspend20");
    sockets(&mut facts)[0].napi_id = 9_999;
    assert_eq!(advice(&facts, "epoll-instance"), None);
}

#[test]
fn what_another_napkin_holds_is_said_with_each_command_that_it_would_refuse() {
    let mut facts = sound("suspend20");
    set_all(&mut facts, |it| it.gro_flush_timeout = Some(30_000));
    params(&mut facts, |it| it.prefer_busy_poll = false);
    facts.receive.adaptive = Ok(Some(true));
    let apply = "napkin apply suspend20 --dev eth0";
    let attach = "napkin attach 812 --policy suspend20";
    assert_eq!(advice(&facts, "settings").as_deref(), Some(apply));
    facts.locks.lifeline = true;
    assert_eq!(advice(&facts, "settings"), Some(format!("{apply} --yes")));
    // A holder that has not written its identity yet.
    facts.locks.device = Some(Holder::default());
    let end = "is held by another napkin: end that first, or start it again with this policy";
    assert_eq!(advice(&facts, "settings"), Some(format!("{apply} --yes    # eth0 {end}")));
    assert_eq!(advice(&facts, "prefer").as_deref(), Some(attach), "it takes the program alone");
    let other = advice(&facts, "coalescing");
    assert_eq!(other.as_deref(), Some("ethtool -C eth0 adaptive-rx off"), "not napkin's");
    facts.locks.programs = [(812, Holder::default())].into();
    assert_eq!(advice(&facts, "prefer"), Some(format!("{attach}    # process 812 {end}")));
    facts.locks.keeper = Some(0);
    let kept = advice(&facts, "settings").expect("a command");
    assert!(kept.contains("change its wish instead (napkin keep --list)"), "{kept}");
    let json = serde_json::to_value(examine(&facts)).expect("plain data").to_string();
    assert!(json.contains(&kept) && !json.contains("in-the-way"), "{json}");
}

#[test]
fn one_program_s_policy_is_not_changed_for_another_s_sake() {
    let mut facts = sound("suspend20");
    let sshd = Program {
        pid: 7,
        comm: "sshd".into(),
        epolls: Ok(vec![]),
        waits: Ok(vec![]),
        ..facts.programs[0].clone()
    };
    facts.programs.push(sshd);
    assert_eq!(complaints(&facts), [("epoll", Status::Advice)]);
    assert_eq!(advice(&facts, "epoll"), None);
    // Without another program, the policy is changed.
    facts.programs.remove(0);
    // The program's settings are reverted with it.
    assert_eq!(advice(&facts, "epoll").as_deref(), Some("napkin apply defer20 --dev eth0"));
    let mut facts = sound("suspend20");
    program(&mut facts).go = Ok(true);
    let fix = advice(&facts, "go-runtime");
    assert_eq!(fix.as_deref(), Some("napkin attach 812 --policy defer20 --dev eth0"));
}

#[test]
fn half_a_deferral_is_taken_away_and_threads_stay() {
    let mut facts = sound("threaded");
    set_all(&mut facts, |it| it.gro_flush_timeout = Some(20_000));
    unasked(&mut facts);
    assert_eq!(advice(&facts, "deferral").as_deref(), Some("napkin apply threaded --dev eth0"));
}

#[test]
fn a_policy_that_cannot_work_as_it_was_asked_for_is_not_advised_again() {
    for (asked, check, advised) in [
        ("suspend20,defer-hard-irqs=0", "deferral", "suspend20"),
        ("suspend20,irq-suspend-timeout=1us", "suspend-timeout", "suspend20"),
        ("suspend20,irq-suspend-timeout=500ms", "suspend-timeout", "suspend20"),
        ("defer20,gro-flush-timeout=2ms", "flush-timeout", "defer20"),
    ] {
        let facts = sound(asked);
        let fix = advice(&facts, check);
        assert_eq!(fix, Some(format!("napkin apply {advised} --dev eth0")), "{asked}");
    }
}

#[test]
fn an_instance_that_only_transmits_is_no_policy_s() {
    let mut facts = sound("suspend20");
    let transmits = Napi {
        id: 600,
        rx_queues: vec![],
        tx_queues: vec![0],
        settings: Settings::of(&Policy::BASE.instance),
        ..facts.device.napis[0].clone()
    };
    facts.device.napis.push(transmits);
    facts.programs.clear();
    // `apply` leaves it alone.
    assert_eq!(complaints(&facts), [("suspend-program", Status::Advice)]);
}

#[test]
fn queues_that_only_others_use_are_given_back() {
    let mut facts = sound("suspend20");
    sockets(&mut facts).retain(|socket| socket.napi_id == 513);
    let other = |ids: &[u32]| {
        Ok(vec![Other { pid: 7, comm: "sshd".into(), napi_ids: ids.iter().copied().collect() }])
    };
    facts.others = other(&[514]);
    let fix = advice(&facts, "shared-interface");
    assert_eq!(fix.as_deref(), Some("napkin apply base --dev eth0 --queue 1"));
    facts.others = other(&[513]);
    assert_eq!(advice(&facts, "shared-interface"), None, "it is the program's as well");
}

#[test]
fn every_thread_and_switch_is_named_at_once() {
    let mut facts = sound("threaded-busy-poll");
    facts.poll_threads.values_mut().for_each(|it| it.fifo = Some(50));
    (facts.host.busy_poll, facts.host.busy_read) = (Ok(50), Ok(50));
    let findings = examine(&facts).findings;
    let fixes = |check| &findings.iter().find(|it| it.check == check).expect("as broken").fix;
    assert_eq!(fixes("rt-runtime")[..], [90, 91].map(|tid| Fix::FairThread { tid }));
    let off = |name| Fix::Sysctl { name, value: 0 };
    assert_eq!(fixes("system-busy-poll")[..], [Sysctl::BusyPoll, Sysctl::BusyRead].map(off));
}
