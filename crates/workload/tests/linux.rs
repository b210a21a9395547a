//! The workloads on the kernel's own NAPI: which context polls, by policy. Ignored without root's capabilities.

use std::time::Duration;

use napkin_measure::report::{Column, Report, Row};
use napkin_os::rights::Right;
use napkin_policy::NamedPolicy;
use napkin_testing::{needs, needs_program, test};
use napkin_workload::{Given, Options, find, run};

/// Ignores the test unless this process may create namespaces and count polls in them.
fn needs_rights() {
    for right in [Right::SysAdmin, Right::NetAdmin, Right::Bpf, Right::Perfmon] {
        needs(right.held(), right);
    }
}

/// Also ignores the test unless the program is installed.
fn needs_rights_and(program: &str) {
    needs_rights();
    needs_program(program);
}

fn report(name: &str, load: &str, policies: &[&str]) -> Report {
    let given = Given([("connections", vec!["8".to_owned()])].into());
    let workload = find(name).expect(name).linux(&[load.to_owned()], &given).expect(name);
    let options = Options {
        policies: NamedPolicy::read(&policies.join(",")).expect("policies"),
        repetitions: 1,
        window: Duration::from_millis(300),
        warm_up: Duration::from_millis(100),
        progress: false,
        ..Options::default()
    };
    let report = run(&*workload, &options).unwrap_or_else(|stopped| panic!("{name}: {stopped}"));
    // These three are left out if the kernel's timers cannot be traced.
    let timers = ["defer", "wdog", "suspend"];
    // In a closed loop, nothing is offered at a rate, and no request is due at a given time.
    let open = ["offered", "unanswered"];
    let closed = |column: &&Column| load == "max" && open.contains(&column.name);
    // A p99.9 needs 10 000 answers, which a slow host does not reach in such a window.
    let answers = |row: &Row| row.figures.latency_ns.as_ref().map_or(0, |it| it.count);
    let few = report.rows.iter().all(|row| answers(row) < 10_000);
    let columns = workload.columns().into_iter().filter(|it| !timers.contains(&it.name));
    let columns = columns.filter(|it| !(few && it.name == "p99.9"));
    for column in columns.filter(|it| !closed(it)) {
        let has_value = |row: &Row| column.value(&serde_json::to_value(row).unwrap()).is_some();
        assert!(report.rows.iter().any(has_value), "{name}: column {} is empty", column.name);
    }
    report
}

fn extra(row: &Row, name: &str) -> u64 {
    row.figures
        .extra
        .get(name)
        .and_then(serde_json::Value::as_u64)
        .unwrap_or_else(|| panic!("{name}"))
}

/// Polls by softirq, thread and application.
fn polls(row: &Row) -> [u64; 3] {
    ["polls_softirq", "polls_thread", "polls_application"].map(|name| extra(row, name))
}

#[test]
fn each_policy_s_polls_of_memcached_are_made_by_whom_it_says() {
    needs_rights_and("memcached");
    let report = report("memcached", "max", &["base", "threaded", "defer20", "suspend20", "hold"]);
    let [base, threaded, defer, suspend, hold] = &report.rows[..] else { panic!("five rows") };
    assert_eq!(report.world, "linux");
    let [softirq, thread, application] = polls(base);
    assert!(softirq > 0 && thread == 0 && application == 0, "{base:?}");
    assert_eq!((extra(base, "deferrals"), extra(base, "watchdogs")), (0, 0));
    let [_, thread, application] = polls(threaded);
    assert!(thread > 0 && application == 0, "{threaded:?}");
    assert!(polls(defer)[2] == 0 && extra(defer, "watchdogs") > 0, "{defer:?}");
    assert!(polls(suspend)[2] > 0 && extra(suspend, "suspensions") > 0, "{suspend:?}");
    for row in [base, threaded, defer, suspend] {
        let served = row.figures.packets.expect("requests");
        assert!(served > 0 && row.figures.latency_ns.is_some(), "{row:?}");
        assert_eq!(row.figures.extra["client_errors"], serde_json::json!({}), "{row:?}");
        assert_eq!((row.figures.interrupts, row.figures.cpu), (None, None), "a veth has none");
    }
    assert!(hold.repetitions.is_empty(), "no Linux holds: {hold:?}");
    assert!(hold.notes[0].contains("nearest"), "{:?}", hold.notes);
}

#[test]
fn pings_are_answered_and_a_sink_receives_what_was_sent() {
    needs_rights_and("ping");
    let measure = || report("flood-ping", "flood", &["base", "threaded"]);
    let mut flood = measure();
    // A busy host may give no CPU time to a window's ping, or to the thread that polls for it.
    for _ in 0..10 {
        if flood.rows.iter().all(|row| row.figures.packets > Some(0)) {
            break;
        }
        flood = measure();
    }
    for row in &flood.rows {
        assert!(row.figures.packets > Some(0), "{row:?}");
    }
    assert!(polls(&flood.rows[1])[1] > 0, "{:?}", flood.rows[1]);
    let sink = report("udp-sink", "2000", &["base", "busypoll", "napibusy"]);
    let [base, busypoll, napibusy] = &sink.rows[..] else { panic!("three rows") };
    for row in [base, busypoll] {
        let (sent, received) = (extra(row, "sent"), row.figures.packets.expect("received"));
        assert!(received > 0 && received <= sent + 100, "{sent} {row:?}");
    }
    assert!(polls(busypoll)[2] > 0, "the sink polls: {busypoll:?}");
    assert!(napibusy.repetitions.is_empty(), "it has no epoll: {napibusy:?}");
    assert!(napibusy.notes[0].contains("in an epoll wait"), "{:?}", napibusy.notes);
}

#[test]
fn an_application_on_rings_is_answered_by_whoever_polls_and_polls_of_its_own_are_refused() {
    needs_rights();
    let given = Given([("rate", vec!["5000".to_owned()])].into());
    let workload = find("xsk-rr").expect("one").linux(&[], &given).expect("linux has it");
    let options = Options {
        policies: NamedPolicy::read("interrupts,busypoll,threaded,threaded-busy-poll")
            .expect("policies"),
        repetitions: 1,
        window: Duration::from_millis(300),
        warm_up: Duration::from_millis(100),
        progress: false,
        ..Options::default()
    };
    let report = run(&*workload, &options).unwrap_or_else(|stopped| panic!("{stopped}"));
    let [interrupts, busypoll, threaded, polling] = &report.rows[..] else { panic!("four rows") };
    assert!(busypoll.repetitions.is_empty(), "{busypoll:?}");
    assert!(busypoll.notes[0].contains("zero-copy"), "{:?}", busypoll.notes);
    for (row, who) in [(interrupts, 0), (threaded, 1), (polling, 1)] {
        // Not every kernel has a thread that polls without end.
        if row.repetitions.is_empty() {
            assert!(row.notes[0].contains("nearest"), "{:?}", row.notes);
            continue;
        }
        assert!(row.figures.packets > Some(0) && row.figures.latency_ns.is_some(), "{row:?}");
        assert!(polls(row)[who] > 0 && polls(row)[2] == 0, "{row:?}");
    }
    assert!(!interrupts.repetitions.is_empty(), "{interrupts:?}");
}

napkin_testing::main!();
