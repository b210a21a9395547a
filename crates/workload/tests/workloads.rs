//! Short runs of each workload: counts that must hold under any load of the host.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use napkin_client::Load;
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Route, VethConfig};
use napkin_measure::Pow2;
use napkin_measure::report::{Column, Report, Row};
use napkin_os::rights::Right;
use napkin_policy::NamedPolicy;
use napkin_testing::{ignore, needs, needs_cpus, needs_program, test};
use napkin_workload::flood_ping::engine::{Client, FloodPing};
use napkin_workload::memcached::engine::Memcached;
use napkin_workload::server::Servers;
use napkin_workload::ssd::engine::{Load as Operations, Ssd};
use napkin_workload::tcp_rr::engine::TcpRr;
use napkin_workload::udp_sink::engine::{Offered, UdpSink, Waits};
use napkin_workload::xsk_rr::engine::XskRr;
use napkin_workload::xsk_rr::pace::{PACES, Pace};
use napkin_workload::{Live, Options, Server, Wire, run};

/// Serialises the tests, because all of them use the same CPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn briefly(workload: &dyn Live, policies: &[&str]) -> Report {
    on_queues(1, workload, policies)
}

fn on_queues(queues: u16, workload: &dyn Live, policies: &[&str]) -> Report {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let options = Options {
        policies: NamedPolicy::read(&policies.join(",")).expect("policies"),
        repetitions: 1,
        window: Duration::from_millis(400),
        warm_up: Duration::from_millis(100),
        queues,
        progress: false,
        ..Options::default()
    };
    run(workload, &options).expect("the run takes place")
}

/// The same, repeated until each row has packets: a busy host may give a run no CPU time at all.
fn answered(queues: u16, workload: &dyn Live, policies: &[&str]) -> Report {
    let any = |row: &Row| row.figures.packets > Some(0);
    repeated(queues, workload, policies, |report| report.rows.iter().all(any))
}

/// The same, repeated a few times until a condition holds.
fn repeated(
    queues: u16,
    workload: &dyn Live,
    policies: &[&str],
    holds: impl Fn(&Report) -> bool,
) -> Report {
    let mut report = on_queues(queues, workload, policies);
    for _ in 0..10 {
        if holds(&report) {
            break;
        }
        report = on_queues(queues, workload, policies);
    }
    report
}

/// Frames received per queue.
fn by_queue(row: &Row) -> Vec<u64> {
    let counts = row.figures.extra["packets_by_queue"].as_array().expect("a list");
    counts.iter().map(|count| count.as_u64().expect("a count")).collect()
}

/// The columns that are empty in all rows, because their fields are missing in the report or were not measured.
fn empty_columns(workload: &dyn Live, report: &Report) -> Vec<&'static str> {
    let rows: Vec<_> = report.rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect();
    let empty = |column: &&&Column| rows.iter().all(|row| column.value(row).is_none());
    workload.columns().iter().filter(empty).map(|column| column.name).collect()
}

fn extra(row: &Row, name: &str) -> u64 {
    row.figures.extra.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

#[test]
fn a_flood_is_answered_and_hold_needs_no_interrupts_for_it() {
    let flood = Client::Synthetic { turnaround: 20_000 };
    let flood = FloodPing { clients: vec![flood] };
    let measure = || briefly(&flood, &["base", "hold100000", "workqueue"]);
    let mut report = measure();
    // A busy host may give a window no CPU time, and so no interrupt.
    for _ in 0..10 {
        if report.rows[0].figures.extra.contains_key("idle_gap_min_ns") {
            break;
        }
        report = measure();
    }
    // In a closed loop, no request is due at a given time.
    assert_eq!(empty_columns(&flood, &report), ["unanswered"]);
    let [base, hold, workqueue] = &report.rows[..] else { panic!("three rows") };
    for row in [base, hold, workqueue] {
        assert!(row.figures.packets.expect("counted") > 0, "{row:?}");
        // Missed interrupts are not counted as won.
        let won = row.figures.interrupts.unwrap_or(0) + row.figures.interrupts_tx.unwrap_or(0);
        assert!(won.abs_diff(extra(row, "interrupts_won")) <= 2, "{row:?}");
    }
    assert!(
        base.figures.interrupts.expect("counted") + base.figures.interrupts_tx.unwrap_or(0) > 0
    );
    // A gap of 100 ms did not occur, or if it did, it preceded each interrupt. The two counters are not read at the
    // same moment, so they may differ by one interrupt.
    assert!(extra(hold, "interrupts_after_hold") + 1 >= extra(hold, "interrupts_won"), "{hold:?}");
    for row in [base, workqueue] {
        assert!(!row.figures.extra.contains_key("interrupts_after_hold"), "no hold: {row:?}");
    }
}

#[test]
fn a_flood_beyond_the_capacity_says_what_was_due_and_not_answered() {
    let extreme = FloodPing { clients: vec![FloodPing::extreme()] };
    let report = briefly(&extreme, &["base"]);
    let figures = &report.rows[0].figures;
    let (due, answered) = (figures.due.expect("open loop"), figures.packets.expect("counted"));
    assert_eq!(figures.unanswered, Some(due.saturating_sub(answered)), "{figures:?}");
    // 400 000 requests per second are offered, each of which takes at least 5 us: half cannot be answered.
    assert!(figures.unanswered > Some(due / 3), "{figures:?}");
    let closed = FloodPing { clients: vec![Client::Synthetic { turnaround: 20_000 }] };
    let figures = &briefly(&closed, &["base"]).rows[0].figures;
    assert_eq!((figures.due, figures.unanswered), (None, None), "nothing falls due: {figures:?}");
}

#[test]
fn a_sink_accounts_for_what_it_was_offered() {
    for waits in [Waits::Blocking, Waits::Epoll] {
        let sink = UdpSink { offered: vec![Offered::TimesPeak(3.0)], waits, ..UdpSink::default() };
        let policies = ["ksoftirqd", "feedback", "suspend20"];
        // If the host takes the CPUs away for a while, no socket fills, and nothing parks.
        let parked = |report: &Report| extra(&report.rows[1], "parks") > 0;
        let mut report = briefly(&sink, &policies);
        for _ in 0..10 {
            if parked(&report) {
                break;
            }
            report = briefly(&sink, &policies);
        }
        assert_eq!(empty_columns(&sink, &report), [] as [&str; 0]);
        for row in &report.rows {
            let polled = row.figures.polled_packets.expect("counted");
            let received = row.figures.achieved_per_s.expect("counted") * 0.4;
            assert!(polled > 0 && received > 0.0, "{row:?}");
            assert!(row.figures.dropped() > 0, "three times the peak is too much: {row:?}");
        }
        let feedback = &report.rows[1];
        assert!(extra(feedback, "parks") > 0, "{feedback:?}");
        // Only a park that timed out, because the application got no CPU time, drops at the socket.
        let at_socket = feedback.figures.drops.get("socket_full").copied().unwrap_or(0);
        assert!(at_socket * 20 <= feedback.figures.dropped(), "{feedback:?}");
    }
}

#[test]
fn the_corner_interrupts_after_each_softirq() {
    let sink = UdpSink { offered: vec![Offered::AfterSoftirq], ..UdpSink::default() };
    let report = briefly(&sink, &["base"]);
    let row = &report.rows[0];
    let figures = &row.figures;
    let packets = figures.polled_packets.expect("counted");
    let [won, missed] = ["interrupts_won", "interrupts_missed"].map(|it| extra(row, it));
    assert!(packets > 0 && (won + missed) * 10 >= packets * 9, "{figures:?}");
    // If other programs take the CPU from the softirq, ksoftirqd continues, and each interrupt finds it at work.
    if extra(row, "polls_ksoftirqd") == 0 {
        let irqs = figures.interrupts.expect("counted");
        assert!(irqs * 10 >= packets * 9, "{figures:?}");
    }
}

#[test]
fn packets_are_answered_in_all_four_configurations() {
    needs(Right::NetAdmin.held(), "CAP_NET_ADMIN: two of them prefer busy polling on a socket");
    let xsk_rr = XskRr { paces: vec![PACES[0]], wire: None };
    let report = briefly(
        &xsk_rr,
        &["interrupts", "busypoll", "busypoll-separate", "threaded-busy-poll", "suspend20"],
    );
    // 5000 answers are too few for a p99.9.
    assert_eq!(empty_columns(&xsk_rr, &report), ["p99.9"]);
    for row in &report.rows {
        let latency = row.figures.latency_ns.expect("packets were answered");
        assert!(
            latency.count > 0 && latency.at.p50 <= latency.at.p99.or(latency.at.p50),
            "{row:?}"
        );
    }
    for row in &report.rows {
        let calls = row.figures.receive_time_histogram.as_ref().map_or(0, Pow2::count);
        // An application whose queue a thread polls without end makes no calls, like the document's `-n`.
        assert_eq!(calls > 0, row.policy != "threaded-busy-poll", "{row:?}");
    }
    let busy = &report.rows[3];
    assert_eq!(busy.figures.interrupts, Some(0), "a thread that never stops polling: {busy:?}");
    let json = serde_json::to_string(&report).expect("it is written");
    let back: Report = serde_json::from_str(&json).expect("and read");
    assert_eq!(back.rows.len(), 5);
}

#[test]
fn the_real_ping_is_answered_over_a_tap_device() {
    needs(Right::NetAdmin.held(), "CAP_NET_ADMIN");
    needs(std::path::Path::new("/dev/net/tun").exists(), "/dev/net/tun");
    needs_program("ping");
    let report = briefly(&FloodPing::tap(), &["base"]);
    let figures = &report.rows[0].figures;
    let (packets, irqs) = (figures.packets.expect("counted"), figures.interrupts.expect("counted"));
    assert!(packets > 0, "{figures:?}");
    assert!(irqs > 0 && irqs <= packets + packets / 10 + 10, "{figures:?}");
    assert!(!std::path::Path::new("/sys/class/net/bench0").exists(), "the device has gone");
}

#[test]
fn the_figures_are_of_the_poller_s_cpu_too_where_there_is_a_thread_that_polls() {
    // With fewer CPUs, the poller shares the queue's CPU.
    needs_cpus(3);
    let workload = TcpRr { flows: 4, threads: Some(2), ..TcpRr::default() };
    let placement = Options::default().placement();
    let separate = "socket-busy-poll-usecs=50,socket-poller=separate";
    let polled = [placement.queue, placement.poller];
    for (policy, mut expected) in [("base", vec![placement.queue]), (separate, polled.to_vec())] {
        let report = briefly(&workload, &[policy]);
        let covered = &report.rows[0].repetitions[0].figures.extra["serving_cpus"];
        expected.sort_unstable();
        assert_eq!(covered, &serde_json::json!(expected), "{policy}");
    }
}

#[test]
fn a_thousand_connections_are_answered_under_every_owner_of_a_poll() {
    let workload =
        TcpRr { bytes: vec![1, 5_000], flows: 1_000, threads: Some(2), ..TcpRr::default() };
    let policies = ["base", "threaded", "workqueue", "threaded-busy-poll", "suspend20"];
    let report = answered(1, &workload, &policies);
    assert_eq!(report.rows.len(), 10);
    for row in &report.rows {
        assert!(row.figures.packets.expect("counted") > 0, "{row:?}");
        assert_eq!(row.figures.due, None, "a closed loop");
        assert_eq!(row.figures.dropped(), 0, "nothing is lost on a cable: {row:?}");
        // Per connection, one packet may have been polled before the window and read within it.
        let polled = row.figures.polled_packets.expect("counted") + 1_000;
        assert!(polled >= row.figures.packets.expect("counted"), "{row:?}");
    }
    let polls = |row: usize, of: &str| extra(&report.rows[row], of);
    assert!(polls(0, "polls_softirq") > 0 && polls(0, "polls_thread") == 0);
    assert!(polls(1, "polls_thread") > 0 && polls(1, "polls_softirq") == 0);
    assert!(polls(2, "polls_worker") > 0, "{:?}", report.rows[2]);
}

#[test]
fn a_memcached_finds_every_record_and_answers_what_is_due() {
    let open = Load::Open { per_second: 2_000.0 };
    let workload =
        Memcached { loads: vec![open, Load::Closed], connections: 20, ..Memcached::default() };
    let report = answered(1, &workload, &["base", "fullbusy", "suspend20"]);
    let columns = workload.columns();
    assert!(columns.iter().any(|it| it.name == "p90"));
    for row in &report.rows {
        assert!(extra(row, "gets") > 0 && extra(row, "misses") == 0, "{row:?}");
        assert_eq!(row.figures.extra["client_errors"], serde_json::json!({}), "{row:?}");
        assert_eq!(row.figures.due.is_some(), row.load["requests_per_s"] != "max", "{row:?}");
    }
    for row in &report.rows {
        match row.name.as_str() {
            "base" => assert_eq!(extra(row, "polls_application"), 0, "{row:?}"),
            // If the host gives the application no CPU time, other contexts may have polled all packets.
            _ => assert!(
                extra(row, "polls_application") + extra(row, "empty_polls_application") > 0,
                "{row:?}"
            ),
        }
    }
}

#[test]
fn with_several_queues_each_has_its_connections_and_a_thread_for_them() {
    let policies = ["base", "threaded", "suspend20"];
    // A thread that received a segment of another thread's connection would answer with a reset, which ends the
    // client. Tested with one thread per queue, and with threads that share the connections of all queues.
    for threads in [Some(3), None] {
        let workload = TcpRr { bytes: vec![1], flows: 1_000, threads, ..TcpRr::default() };
        for row in answered(3, &workload, &policies[..2]).rows {
            assert!(row.figures.packets.expect("counted") > 0, "{row:?}");
            assert_eq!(by_queue(&row).len(), 3, "{row:?}");
            assert_eq!(extra(&row, "threads"), threads.unwrap_or(21) as u64);
        }
    }
    for wire in [Wire::Cable, Wire::Vhost] {
        let servers = Servers { servers: vec![Server::Napkin], wire };
        let memcached = Memcached { loads: vec![Load::Closed], connections: 100, servers };
        for row in answered(2, &memcached, &policies).rows {
            assert!(extra(&row, "gets") > 0 && extra(&row, "misses") == 0, "one store: {row:?}");
            // If the host gave the run enough CPU time, each queue has some of a hundred connections.
            let packets = by_queue(&row);
            let enough = packets.iter().sum::<u64>() > 1_000;
            assert!(packets.len() == 2 && (!enough || !packets.contains(&0)), "{row:?}");
        }
    }
}

#[test]
fn a_remote_disk_reads_and_writes_what_is_due_in_any_size() {
    let load = |text: &str| Operations::read(text).expect("a load");
    let loads = ["4K:500", "64K:200", "1M:20"].map(load);
    let workload = Ssd { loads: loads.to_vec(), connections: 16, wire: Wire::Cable };
    let policies = ["base", "threaded", "workqueue", "suspend20"];
    let small = Ssd { loads: vec![loads[0]], connections: 16, wire: Wire::Cable };
    for (queues, workload) in [(1, workload), (2, small)] {
        let report = answered(queues, &workload, &policies);
        assert_eq!(report.rows.len(), 4 * workload.loads.len());
        for row in &report.rows {
            let answered = row.figures.packets.expect("counted");
            assert_eq!(extra(row, "reads") + extra(row, "writes"), answered, "{row:?}");
            assert_eq!(row.figures.extra["client_errors"], serde_json::json!({}), "{row:?}");
            assert!(row.figures.due.is_some_and(|due| due > 0), "an open loop: {row:?}");
            // No modelled device answers sooner, whatever the host does.
            let least = row.figures.latency_ns.expect("some were answered").at.p50;
            assert!(least.is_none_or(|least| least > 100_000), "{row:?}");
        }
        let polls = |row: usize, of: &str| extra(&report.rows[row], of);
        assert!(polls(0, "polls_softirq") > 0 && polls(0, "polls_thread") == 0);
        assert!(polls(1, "polls_thread") > 0 && polls(2, "polls_worker") > 0);
        let application = polls(3, "polls_application") + polls(3, "empty_polls_application");
        assert!(application > 0, "{:?}", report.rows[3]);
    }
}

/// Ignores the test unless this process may create namespaces and TAP devices.
fn needs_a_wire() {
    for right in [Right::SysAdmin, Right::NetAdmin] {
        needs(right.held(), right);
    }
    needs(std::path::Path::new("/dev/net/tun").exists(), "/dev/net/tun");
}

#[test]
fn napkin_the_kernel_and_memcached_are_asked_by_the_same_client_in_one_run() {
    needs_a_wire();
    needs_program("memcached");
    let servers = vec![Server::Napkin, Server::Kernel, Server::Memcached];
    let workload = Memcached {
        loads: vec![Load::Closed],
        connections: 20,
        servers: Servers { servers, wire: Wire::Tap },
    };
    let report = answered(1, &workload, &["base", "suspend20"]);
    let names: Vec<_> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["napkin/base", "napkin/suspend20", "kernel/base", "memcached/base"]);
    for row in &report.rows {
        let (server, policy) = row.name.split_once('/').expect("both");
        assert_eq!((row.server.as_deref(), row.policy.as_str()), (Some(server), policy));
        assert!(extra(row, "gets") > 0 && extra(row, "misses") == 0, "{row:?}");
        assert_eq!(row.figures.extra["client_errors"], serde_json::json!({}), "{row:?}");
        // Only the engine knows what its CPU time was spent on.
        assert_eq!(row.figures.cpu.is_some(), server == "napkin", "{row:?}");
        let own_cpu = !Options::default().placement().shared();
        assert_eq!(extra(row, "cpu_ns_per_request") > 0, own_cpu, "{row:?}");
    }
    let json = serde_json::to_value(&report).expect("it is JSON");
    assert_eq!(json["rows"][3]["server"], "memcached");
}

#[test]
fn a_thousand_connections_are_answered_over_tap_and_by_threads_that_share_a_port() {
    needs_a_wire();
    let servers = Servers { servers: vec![Server::Napkin, Server::Kernel], wire: Wire::Tap };
    let workload = TcpRr { threads: Some(2), servers, ..TcpRr::default() };
    let report = answered(2, &workload, &["threaded"]);
    let names: Vec<_> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["napkin/threaded", "kernel/base"]);
    assert!(extra(&report.rows[0], "polls_thread") > 0, "{:?}", report.rows[0]);
}

/// The four configurations of the 2025 document.
const PUBLISHED: [&str; 4] = ["interrupts", "busypoll", "busypoll-separate", "threaded-busy-poll"];

/// A slow pace, which any host can keep.
fn over(wire: Wire) -> XskRr {
    let pace = Pace { name: 1_000, period: 1_000_000, delay: 0 };
    XskRr { paces: vec![pace], wire: Some(wire) }
}

#[test]
fn the_document_s_configurations_answer_over_virtio_rings_and_the_client_times_them() {
    // `SO_PREFER_BUSY_POLL` needs it.
    needs(Right::NetAdmin.held(), Right::NetAdmin);
    let workload = over(Wire::Vhost);
    let report = answered(1, &workload, &PUBLISHED);
    assert_eq!(report.rows.len(), PUBLISHED.len());
    for row in &report.rows {
        let latency = row.figures.latency_ns.expect("answers came");
        assert!(latency.count > 0 && extra(row, "offered") > 0, "{row:?}");
        assert_eq!(row.load["wire"], "vhost", "{row:?}");
    }
}

/// Runs a sink that is offered little, and then much more than it can receive, of which some is dropped.
fn sinks(wire: &Wire) {
    let offered = [0.04, 3.0].map(Offered::TimesPeak).to_vec();
    let sink = UdpSink { offered, wire: Some(wire.clone()), ..UdpSink::default() };
    let much_is_dropped = |report: &Report| {
        let received = report.rows.iter().all(|row| row.figures.packets > Some(0));
        received && report.rows.last().is_some_and(|much| much.figures.dropped() > 0)
    };
    let report = repeated(1, &sink, &["base"], much_is_dropped);
    let [little, much] = &report.rows[..] else { panic!("{report:?}") };
    for row in [little, much] {
        assert!(row.figures.packets > Some(0), "{row:?}");
        assert_eq!(row.load["wire"], wire.to_string(), "{row:?}");
    }
    assert!(much.figures.dropped() > 0, "three times the peak is too much: {much:?}");
}

/// The same, and a flood of napkin's own ping.
fn sinks_and_floods(wire: &Wire) {
    sinks(wire);
    let goes_round = |row: &Row| row.figures.packets > Some(10);
    let flood = FloodPing::over(wire.clone());
    let report = repeated(1, &flood, &["base", "hold1000"], |it| it.rows.iter().all(goes_round));
    for row in &report.rows {
        assert!(goes_round(row), "a closed loop goes round: {row:?}");
    }
}

#[test]
fn a_sink_and_a_flood_go_over_virtio_rings() {
    sinks_and_floods(&Wire::Vhost);
}

#[test]
fn tcp_is_asked_over_virtio_rings() {
    let servers = Servers { servers: vec![Server::Napkin], wire: Wire::Vhost };
    let workload = TcpRr { flows: 20, threads: Some(2), servers, ..TcpRr::default() };
    let report = answered(1, &workload, &["base", "suspend20", "threaded"]);
    assert!(report.rows.iter().all(|row| row.figures.packets > Some(0)), "{:?}", report.rows);
    let loads = vec![Operations { bytes: 4_096, per_second: 500.0 }];
    let workload = Ssd { loads, connections: 4, wire: Wire::Vhost };
    let report = answered(1, &workload, &["base"]);
    assert!(report.rows[0].figures.packets > Some(0), "{:?}", report.rows);
}

#[test]
fn interfaces_at_the_ends_of_a_cable_are_served_and_asked_over_af_xdp() {
    for right in [Right::SysAdmin, Right::NetAdmin, Right::NetRaw, Right::Bpf] {
        needs(right.held(), right);
    }
    // The devices vanish with this namespace, and the threads of the runs inherit it.
    let namespace = Namespace::new().expect("a namespace");
    namespace.enter_thread().expect("it is entered");
    let mut route = Route::open().expect("netlink");
    let veth =
        VethConfig { name: "nk-a", peer: "nk-b", peer_namespace: None, rx_queues: 1, tx_queues: 1 };
    let ifindex = match route.add_veth(&veth) {
        Ok(ifindex) => ifindex,
        Err(error) => ignore(error),
    };
    route.set_up(ifindex).expect("up");
    let other = route.link("nk-b").expect("the other end").ifindex;
    route.set_up(other).expect("up");
    let port = |text: &str| text.parse().expect(text);
    let wire = Wire::Ports { here: port("xdp:nk-a:0"), there: port("xdp:nk-b") };
    let servers = Servers { servers: vec![Server::Napkin], wire: wire.clone() };
    let workload = Memcached { loads: vec![Load::Closed], connections: 8, servers };
    let report = answered(1, &workload, &["base", "suspend20"]);
    for row in &report.rows {
        assert!(extra(row, "gets") > 0 && extra(row, "misses") == 0, "{row:?}");
    }
    let report = answered(1, &over(wire.clone()), &PUBLISHED[..1]);
    assert!(report.rows[0].figures.packets > Some(0), "{:?}", report.rows);
    sinks_and_floods(&wire);
    // And a veth that the workload creates itself.
    sinks(&Wire::Xdp);
    let report = answered(1, &over(Wire::Xdp), &PUBLISHED);
    assert!(report.rows.iter().all(|row| row.figures.packets > Some(0)), "{:?}", report.rows);
    if needs_ping() {
        let report = answered(1, &FloodPing::xdp(), &["base"]);
        assert!(report.rows[0].figures.packets > Some(0), "{:?}", report.rows);
    }
    let several = Options { queues: 2, ..Options::default() };
    let policies = NamedPolicy::read("base").expect("a policy");
    let refusal = run(&over(Wire::Vhost), &Options { policies, progress: false, ..several });
    assert!(refusal.expect_err("refused").to_string().contains("leave --queues out"));
}

/// Whether the operating system's ping is installed.
fn needs_ping() -> bool {
    std::process::Command::new("ping").arg("-V").output().is_ok()
}

napkin_testing::main!();
