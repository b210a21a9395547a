//! The doctor against the running kernel: it finds no fault in a working set-up, and reports each of many
//! broken ones by the right check, with no other fault.
//!
//! Server and client are in network namespaces of their own, joined by a veth pair.

mod doctored;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;

use doctored::{Examination, Mode, Rig, SUSPEND20, epolls};
use napkin_kernel::netlink::{Netdev, Route};
use napkin_kernel::process::Params;
use napkin_kernel::{Setting, device};
use napkin_linux::doctor::{Request, Status, Watch, gather};
use napkin_os::rights::Right;
use napkin_testing::{ignore, needs, needs_cpus, needs_program, test};
use rustix::event::epoll;

/// Returns the findings of a broken set-up that those of a sound one lack. Excludes time squeezes: they are
/// those of the host, whatever else runs there.
fn added(sound: &Examination, broken: &Examination, status: Status) -> BTreeSet<&'static str> {
    let mut added = broken.checks(status);
    added.retain(|check| *check != "time-squeeze" && !sound.checks(status).contains(check));
    added
}

/// Breaks a working set-up in one way: exactly this fault is added, and disappears when it is fixed.
#[track_caller]
fn one_fault(check: &'static str, policy: &str, breaks: impl FnOnce(&mut Rig)) -> Examination {
    let mut rig = Rig::new();
    rig.set_up(policy, Mode::Sound);
    let sound = rig.doctor(Some(policy));
    assert_eq!(sound.faults(), BTreeSet::new(), "{sound:#?}");
    breaks(&mut rig);
    let broken = rig.doctor(Some(policy));
    assert_eq!(broken.faults(), BTreeSet::from([check]), "{broken:#?}");
    broken
}

/// Asserts that a program with this mode has exactly this fault.
#[track_caller]
fn wrong_program(check: &'static str, mode: Mode) -> Examination {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, mode);
    let broken = rig.doctor(Some(SUSPEND20));
    assert_eq!(broken.faults(), BTreeSet::from([check]), "{broken:#?}");
    broken
}

#[test]
fn memcached_under_suspension_is_in_order() {
    let mut rig = Rig::new();
    rig.memcached(1);
    rig.set_device(SUSPEND20);
    rig.set_epolls(Params::from(doctored::policy(SUSPEND20).epoll), |_| true);
    rig.connect(1);
    // With a requested policy, and with that of the settings.
    for asked in [Some(SUSPEND20), None] {
        let found = rig.doctor(asked);
        assert_eq!(found.policy, SUSPEND20);
        assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
        for check in ["napi", "napi-id", "prefer", "prefer-epoll", "deferral", "suspend-timeout"] {
            assert!(found.checks(Status::Ok).contains(check), "{check}: {found:#?}");
        }
        for check in ["epoll-instance", "wait-timeout", "maxevents", "go-runtime", "rps"] {
            assert!(found.checks(Status::Ok).contains(check), "{check}: {found:#?}");
        }
        for finding in found.of(Status::Advice).into_iter().chain(found.of(Status::Unknown)) {
            eprintln!("{}: {}: {} ({})", finding.status, finding.check, finding.what, finding.seen);
        }
    }
}

#[test]
fn an_epoll_that_always_has_something_ready_is_named_before_and_while_it_starves() {
    // Longer than a busy host keeps a program off its CPU, and shorter than an examination.
    const POLICY: &str = "suspend20,irq-suspend-timeout=200ms";
    let mut rig = Rig::new();
    rig.set_up("base", Mode::AlwaysReady);
    let before = rig.doctor(Some(POLICY));
    assert!(before.faults().contains("always-ready"), "{before:#?}");
    assert!(!before.faults().contains("starvation"), "{before:#?}");
    let named = before.of(Status::Fault);
    let named = named.iter().find(|it| it.check == "always-ready").expect("as asserted");
    assert!(named.seen.contains("(EPOLLOUT)"), "{named:#?}");

    rig.stop_awaiting_answers();
    rig.set_device(POLICY);
    rig.set_epolls(Params::from(doctored::policy(POLICY).epoll), |_| true);
    let mut starves = || {
        rig.send_without_awaiting();
        rig.doctor(None)
    };
    // If the host keeps the program off its CPU for longer, the timer fires.
    let found = (0..20).map(|_| starves()).find(|found| found.faults().contains("starvation"));
    let found = found.expect("it starves");
    assert!(found.faults().contains("always-ready"), "{found:#?}");
    let faults = found.of(Status::Fault);
    let fix = "napkin apply suspend20,irq-suspend-timeout=0 --dev va";
    assert!(faults.iter().all(|it| it.command().as_deref() == Some(fix)), "{faults:#?}");
    // Once fixed, it is not reported any more.
    rig.set_device("suspend20,irq-suspend-timeout=0");
    let fixed = rig.doctor(None).faults();
    assert!(fixed.iter().all(|check| !["starvation", "always-ready"].contains(check)));
}

#[test]
fn memcached_with_a_thread_for_each_instance_is_in_order() {
    let mut rig = Rig::new();
    rig.memcached(2);
    rig.set_device(SUSPEND20);
    rig.set_epolls(Params::from(doctored::policy(SUSPEND20).epoll), |_| true);
    rig.connect_both_queues();
    let found = rig.doctor(Some(SUSPEND20));
    assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
    assert!(found.checks(Status::Ok).contains("epoll-instance"), "{found:#?}");
}

#[test]
fn packets_that_are_passed_on_are_seen() {
    one_fault("rps", SUSPEND20, |rig| rig.write("queues/rx-0/rps_cpus", "2"));
}

#[test]
fn flows_that_are_passed_on_are_seen() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let sound = rig.doctor(Some(SUSPEND20));
    rig.write("queues/rx-1/rps_flow_cnt", "256");
    let broken = rig.doctor(Some(SUSPEND20));
    // RFS also needs the host's switch, which no test sets; one half of it alone leads to advice.
    assert_eq!(added(&sound, &broken, Status::Advice), BTreeSet::from(["rfs"]), "{broken:#?}");
    assert_eq!(broken.faults(), BTreeSet::new(), "{broken:#?}");
}

#[test]
fn a_device_without_instances_is_seen() {
    let found = one_fault("napi", SUSPEND20, |rig| rig.feature("gro", false));
    assert_eq!(found.fix("napi"), "ethtool -K va gro on");
}

#[test]
fn connections_that_came_past_napi_are_seen() {
    let found = one_fault("napi-id", SUSPEND20, |rig| {
        rig.disconnect();
        rig.peer_offloads(true);
        rig.connect(1);
    });
    assert!(found.fix("napi-id").contains("tso off gso off"), "{found:#?}");
}

#[test]
fn connections_that_came_past_napi_are_seen_where_no_program_polls() {
    let mut rig = Rig::new();
    rig.set_up("defer20", Mode::Sound);
    rig.disconnect();
    rig.peer_offloads(true);
    rig.connect(1);
    let found = rig.doctor(Some("defer20"));
    assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
    assert!(found.checks(Status::Unknown).contains("napi-id"), "{found:#?}");
    assert!(found.fix("napi-id").contains("tso off gso off"), "{found:#?}");
}

#[test]
fn deferral_that_is_off_is_seen() {
    one_fault("deferral", SUSPEND20, |rig| rig.set(Setting::DeferHardIrqs, 0));
}

#[test]
fn deferral_without_a_period_is_seen() {
    one_fault("deferral", SUSPEND20, |rig| rig.set(Setting::GroFlushTimeout, 0));
}

#[test]
fn a_suspension_shorter_than_a_period_is_seen() {
    one_fault("suspend-timeout", SUSPEND20, |rig| rig.set(Setting::IrqSuspendTimeout, 5_000));
}

#[test]
fn a_suspension_that_is_off_is_seen() {
    one_fault("suspend-timeout", SUSPEND20, |rig| rig.set(Setting::IrqSuspendTimeout, 0));
}

#[test]
fn settings_that_do_not_last_are_told_of_and_are_gone_after_down_and_up() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let settings = |rig: &Rig| {
        let read = || device::read(&mut Netdev::open().expect("netdev"), "va");
        let napis = rig.run(read).expect("instances").napis;
        napis.into_iter().map(|napi| napi.settings).collect::<Vec<_>>()
    };
    let before = settings(&rig);
    let found = rig.doctor(Some(SUSPEND20));
    assert!(found.checks(Status::Advice).contains("lasting"), "{found:#?}");
    assert!(found.seen("lasting").contains("va's driver has no place for them"), "{found:#?}");
    rig.run(|| {
        let mut route = Route::open().expect("rtnetlink");
        let ifindex = route.link("va").expect("the server's end").ifindex;
        route.set_down(ifindex).expect("down");
        route.set_up(ifindex).expect("up");
    });
    let after = settings(&rig);
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|it| it.defer_hard_irqs == Some(0)), "{after:#?}");
}

#[test]
fn threads_that_the_policy_does_not_have_are_seen() {
    one_fault("threaded", SUSPEND20, |rig| rig.set(Setting::Threaded, 1));
}

#[test]
fn an_epoll_that_does_not_prefer_is_seen() {
    let found = one_fault("prefer", SUSPEND20, |rig| {
        rig.set_epolls(Params::default(), |_| true);
    });
    assert!(found.fix("prefer").starts_with("napkin attach "), "{found:#?}");
    assert!(found.fix("prefer").ends_with(" --policy suspend20"), "{found:#?}");
}

#[test]
fn the_flag_on_an_epoll_without_sockets_is_seen() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::SpareEpoll);
    let spare = *epolls(rig.pid()).last().expect("the program has two");
    let sound = rig.doctor(Some(SUSPEND20));
    assert_eq!(sound.faults(), BTreeSet::new(), "{sound:#?}");
    rig.set_epolls(Params::default(), |fd| fd != spare);
    let broken = rig.doctor(Some(SUSPEND20));
    assert_eq!(broken.faults(), BTreeSet::from(["prefer-epoll"]), "{broken:#?}");
}

#[test]
fn a_budget_below_the_policy_s_is_seen() {
    one_fault("budget", SUSPEND20, |rig| {
        let epoll = doctored::policy(SUSPEND20).epoll;
        rig.set_epolls(Params { busy_poll_budget: 0, ..Params::from(epoll) }, |_| true);
    });
}

#[test]
fn an_epoll_without_time_to_poll_is_seen() {
    one_fault("busy-poll-usecs", "napibusy", |rig| {
        let epoll = doctored::policy("napibusy").epoll;
        rig.set_epolls(Params { busy_poll_usecs: 0, ..Params::from(epoll) }, |_| true);
    });
}

#[test]
fn sockets_of_two_instances_on_one_epoll_are_seen() {
    let found = one_fault("epoll-instance", SUSPEND20, Rig::connect_both_queues);
    assert!(found.seen("epoll-instance").contains("NAPI"), "{found:#?}");
}

#[test]
fn a_thread_that_is_pinned_elsewhere_is_seen() {
    needs_cpus(2);
    let policy = "suspend20,threaded=enabled";
    let mut rig = Rig::new();
    rig.set_up(policy, Mode::Sound);
    let cpus = napkin_os::sched::usable_cpus();
    rig.pin_poll_threads(cpus[0]);
    rig.pin_program(cpus[0]);
    let sound = rig.doctor(Some(policy));
    assert_eq!(sound.faults(), BTreeSet::new(), "{sound:#?}");
    assert!(sound.checks(Status::Ok).contains("cpu-match"), "{sound:#?}");
    rig.pin_program(cpus[1]);
    let broken = rig.doctor(Some(policy));
    assert_eq!(broken.faults(), BTreeSet::from(["cpu-match"]), "{broken:#?}");
    let fix = broken.fix("cpu-match");
    assert!(fix.starts_with(&format!("taskset -pc {} ", cpus[0])), "{fix}");
}

#[test]
fn a_program_that_looks_and_never_waits_is_seen() {
    let found = wrong_program("wait-timeout", Mode::ZeroTimeout);
    assert!(found.seen("wait-timeout").contains("timeout 0"), "{found:#?}");
}

#[test]
fn a_program_that_wakes_for_nothing_is_advised() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::FiniteTimeout);
    let found = rig.doctor(Some(SUSPEND20));
    assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
    assert!(found.checks(Status::Advice).contains("wait-timeout"), "{found:#?}");
}

#[test]
fn threads_that_share_an_epoll_are_seen() {
    wrong_program("epoll-shared", Mode::SharedEpoll);
}

#[test]
fn a_program_without_epoll_is_seen() {
    wrong_program("epoll", Mode::NoEpoll);
}

#[test]
fn another_program_on_the_queue_is_named() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let sound = rig.doctor(Some(SUSPEND20));
    assert!(sound.checks(Status::Ok).contains("shared-interface"), "{sound:#?}");
    let other = rig.start_another(Mode::NoEpoll);
    let found = rig.doctor(Some(SUSPEND20));
    assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
    let added = added(&sound, &found, Status::Advice);
    assert_eq!(added, BTreeSet::from(["shared-interface"]), "{found:#?}");
    let seen = found.seen("shared-interface");
    assert!(seen.contains(&format!("[{other}]")), "{seen}");
}

#[test]
fn without_a_program_those_on_the_device_are_found() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let found = rig.doctor_of_device(None);
    assert_eq!(found.policy, SUSPEND20);
    assert_eq!(found.programs.len(), 1, "{found:#?}");
    assert!(found.programs[0].contains(&format!("[{}]", rig.pid())), "{found:#?}");
    assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
    rig.stop();
    let alone = rig.doctor_of_device(None);
    assert_eq!(alone.faults(), BTreeSet::new(), "{alone:#?}");
    assert!(alone.checks(Status::Advice).contains("suspend-program"), "{alone:#?}");
}

#[test]
fn without_a_program_those_that_no_instance_knows_are_found() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    // A program that waits for its first connection, configured by `napkin run`.
    rig.disconnect();
    let waiting = rig.doctor_of_device(None);
    assert!(waiting.programs.iter().any(|it| it.contains(&format!("[{}]", rig.pid()))));
    assert!(!waiting.checks(Status::Advice).contains("suspend-program"), "{waiting:#?}");
    // A program whose packets bypassed NAPI gets the same fault as when examined by its process id.
    rig.peer_offloads(true);
    rig.connect(1);
    let by_pid = rig.doctor(None);
    let of_device = rig.doctor_of_device(None);
    assert_eq!(by_pid.faults(), BTreeSet::from(["napi-id"]), "{by_pid:#?}");
    assert_eq!(of_device.faults(), BTreeSet::from(["napi-id"]), "{of_device:#?}");
    assert_eq!(of_device.fix("napi-id"), by_pid.fix("napi-id"));
}

#[test]
fn a_mode_that_the_kernel_lacks_is_said() {
    let mut rig = Rig::new();
    let found = rig.doctor_of_device(Some("ksoftirqd"));
    assert!(found.faults().contains("kernel-support"), "{found:#?}");
    assert!(found.fix("kernel-support").starts_with("napkin apply threaded"), "{found:#?}");
}

#[test]
fn a_go_program_is_warned_about() {
    needs_program("go");
    let mut rig = Rig::new();
    needs(rig.go_server(), "a Go that can build a server");
    rig.set_device(SUSPEND20);
    rig.set_epolls(Params::from(doctored::policy(SUSPEND20).epoll), |_| true);
    rig.connect(1);
    let found = rig.doctor(Some(SUSPEND20));
    assert!(found.checks(Status::Advice).contains("go-runtime"), "{found:#?}");
    assert!(found.fix("go-runtime").ends_with(" --policy defer20 --dev va"), "{found:#?}");
}

#[test]
fn without_a_right_the_rest_is_checked_and_the_right_is_named() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let found = rig.doctor_without_rights(Some(SUSPEND20));
    assert_eq!(found.faults(), BTreeSet::new(), "{found:#?}");
    for check in ["kernel-support", "napi", "settings", "deferral", "suspend-timeout", "rps"] {
        assert!(found.checks(Status::Ok).contains(check), "{check}: {found:#?}");
    }
    for (check, right) in [
        ("napi-id", "CAP_SYS_PTRACE"),
        ("epoll", "CAP_SYS_PTRACE"),
        ("shared-interface", "CAP_SYS_PTRACE"),
        ("poller", "CAP_BPF"),
    ] {
        assert!(found.checks(Status::Unknown).contains(check), "{check}: {found:#?}");
        assert!(found.seen(check).contains(right), "{check}: {}", found.seen(check));
    }
}

#[test]
fn a_program_that_ends_meanwhile_is_no_failure() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let pid = rig.pid();
    let found = rig.doctor_while(|rig| rig.stop());
    assert!(found.programs.is_empty() || found.programs[0].contains(&pid.to_string()));
}

#[test]
fn a_program_in_another_namespace_is_not_taken_for_one_here() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    let request = Request {
        pid: Some(rig.pid()),
        ifname: None,
        policy: None,
        window: std::time::Duration::from_millis(10),
        wishes: vec![],
    };
    let error = gather(&request).expect_err("it is elsewhere").to_string();
    assert!(error.contains(&format!("nsenter -t {} -n", rig.pid())), "{error}");
}

#[test]
fn sockets_that_cannot_be_looked_at_are_not_said_to_have_received_nothing() {
    let mut rig = Rig::new();
    rig.set_up(SUSPEND20, Mode::Sound);
    rig.add_pair("vc", "vd");
    let error = rig.which_device_without_rights().expect_err("va, vc or vd");
    let message = error.to_string();
    assert!(message.contains("cannot be looked at: it takes CAP_SYS_PTRACE"), "{message}");
    assert!(message.contains("name the device with --dev (va, "), "{message}");
}

/// Watches threads; the test is ignored without the necessary rights.
fn watch(tid: i32) -> Watch {
    match Watch::start([tid]) {
        Err(missing) if !Right::Perfmon.held() || !Right::SysAdmin.held() => ignore(missing),
        watch => watch.expect("with the rights"),
    }
}

#[test]
fn calls_are_seen_with_their_timeouts() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let watch = watch(tid);
    let fd = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 7];
    for milliseconds in [0, 0, 0, 1] {
        // SAFETY: the array has room for the 7 events that the call may write.
        let ready =
            unsafe { libc::epoll_wait(fd.as_raw_fd(), events.as_mut_ptr(), 7, milliseconds) };
        assert_eq!(ready, 0);
    }
    let waits = watch.finish();
    let with = |timeout| waits.iter().find(|it| it.timeout == Some(timeout));
    let zero = with(0).expect("three calls");
    assert_eq!((zero.tid, zero.epoll, zero.maxevents, zero.times), (tid, fd.as_raw_fd(), 7, 3));
    assert_eq!(with(1_000_000).map(|it| it.times), Some(1));
}

#[test]
fn a_thread_that_has_ended_is_no_failure() {
    let gone = std::thread::spawn(rustix::thread::gettid).join().expect("no panic");
    assert_eq!(watch(gone.as_raw_nonzero().get()).finish(), []);
}

napkin_testing::main!(doctored::program);
