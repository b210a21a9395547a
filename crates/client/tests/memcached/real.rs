//! The client against an unmodified memcached.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use napkin_client::*;
use napkin_os::sched::{CpuList, usable_cpus};
use napkin_testing::{needs, needs_program, test};

use super::{Behaviour, Fake, descriptors};

/// A real memcached, on a port of its own.
struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    /// Skips the test if memcached is not installed.
    fn start(arguments: &[&str]) -> Memcached {
        needs_program("memcached");
        // Another process may take the port in between: memcached then ends, and the next attempt follows.
        for _ in 0..5 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let address = listener.local_addr().expect("bound");
            drop(listener);
            let port = address.port().to_string();
            let mut child = Command::new("memcached")
                .args(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-u", "nobody"])
                .args(arguments)
                .stderr(Stdio::null())
                .spawn()
                .expect("memcached");
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) {
                if child.try_wait().expect("our child").is_some() {
                    break;
                }
                if TcpStream::connect(address).is_ok() {
                    return Memcached { child, address };
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("memcached does not start");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The figures of one second.
fn second_of(config: &Config) -> ClientFigures {
    let mut client = Client::start(config).expect("it connects");
    std::thread::sleep(Duration::from_millis(100));
    client.begin_window().expect("it runs");
    std::thread::sleep(Duration::from_secs(1));
    let figures = client.end_window().expect("it runs");
    client.stop().expect("nothing failed");
    let latency = figures.latency_ns.expect("answers");
    eprintln!(
        "{:?} {:?}: {} requests, {:.0}/s, p50 {} us, p99 {} us, {} late, send delay {:?}",
        config.load,
        config.wait,
        figures.requests,
        figures.achieved_per_s,
        latency.at.p50.unwrap_or(0) / 1000,
        latency.at.p99.unwrap_or(0) / 1000,
        figures.late,
        figures.send_delay_ns
    );
    assert_eq!(figures.hits, figures.gets, "all records are there: {figures:?}");
    assert_eq!((figures.misses, figures.reconnects), (0, 0));
    assert!(figures.errors.is_empty(), "{figures:?}");
    assert!(figures.sets > 0 && figures.gets > 10 * figures.sets, "{figures:?}");
    assert_eq!(figures.gets + figures.sets, figures.requests);
    figures
}

#[test]
fn the_real_memcached_is_filled_and_finds_every_record() {
    let memcached = Memcached::start(&["-t", "2", "-m", "256"]);
    let config = Config {
        connections: 50,
        threads: 2,
        cpus: CpuList(usable_cpus()),
        ..Config::new(memcached.address)
    };
    let mut steps = Vec::new();
    let filled = populate_with_progress(&config, |done, total| steps.push((done, total)));
    let filled = filled.expect("it has room");
    assert_eq!((filled.records, steps.last()), (10_000, Some(&(20_000, 20_000))));
    assert!(steps.is_sorted(), "{steps:?}");
    // 36.2 + 194 bytes each on average.
    assert!((2_200_000..2_400_000).contains(&filled.bytes), "{filled:?}");

    for wait in [ClientWait::Sleep, ClientWait::Spin] {
        let load = Load::Open { per_second: 2_000.0 };
        let open = second_of(&Config { load, wait, ..config.clone() });
        assert_eq!(open.asked_per_s, Some(2_000.0));
        assert_eq!(open.abandoned, 0);
        let offered = open.offered_per_s.expect("a schedule");
        assert!((1_700.0..2_300.0).contains(&offered), "{open:?}");
        let closed = second_of(&Config { wait, ..config.clone() });
        assert_eq!((closed.late, closed.due, closed.asked_per_s), (0, 0, None));
    }
}

#[test]
fn every_request_that_fell_due_is_accounted_for() {
    let memcached = Memcached::start(&[]);
    let fake = Fake::new(Behaviour::Silent);
    for (address, per_second) in [
        (memcached.address, 500.0),
        (memcached.address, 20_000.0),
        // More than the backlog holds, and more than any server could answer.
        (memcached.address, 3_000_000.0),
        (fake.address, 1_000_000.0),
    ] {
        let load = Load::Open { per_second };
        let config =
            Config { load, connections: 3, threads: 2, records: 100, ..Config::new(address) };
        let mut client = Client::start(&config).expect("it connects");
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            // No window was begun, so these are the counts since the start.
            let figures = client.end_window().expect("it runs");
            let known =
                figures.requests + figures.abandoned + figures.backlog + figures.outstanding;
            assert_eq!(figures.due, known, "{figures:?}");
            assert!(figures.late >= figures.backlog + figures.abandoned, "{figures:?}");
        }
        client.stop().expect("nothing failed");
    }
}

#[test]
fn a_memcached_that_is_killed_ends_the_client_with_its_name() {
    let mut memcached = Memcached::start(&[]);
    let config = Config { connections: 20, ..Config::new(memcached.address) };
    let mut client = Client::start(&config).expect("it connects");
    client.begin_window().expect("it runs");
    memcached.kill();
    let begun = Instant::now();
    while client.is_running() {
        std::thread::sleep(Duration::from_millis(5));
        assert!(begun.elapsed() < Duration::from_secs(60), "it runs for ever");
    }
    let error = client.end_window().expect_err("the server is dead");
    assert!(matches!(error, ClientError::Dead { .. }), "{error}");
    assert!(error.to_string().contains(&memcached.address.to_string()), "{error}");
}

#[test]
fn a_store_that_is_too_small_is_not_taken_for_filled() {
    let memcached = Memcached::start(&["-m", "8"]);
    let config = Config { records: 100_000, ..Config::new(memcached.address) };
    let error = populate(&config).expect_err("23 MB do not fit 8 MB");
    let ClientError::NotKept { kept, records: 100_000, .. } = error else { panic!("{error}") };
    assert!(kept < 100_000);
}

#[test]
fn thousands_of_connections_are_served_by_one_thread() {
    // 2000 here; memcached inherits the limit and needs some more than 4096.
    needs(descriptors().is_none_or(|it| it >= 5_000), "5000 file descriptors (ulimit -n)");
    let memcached = Memcached::start(&["-c", "4096"]);
    let config = Config {
        connections: 2_000,
        records: 1_000,
        load: Load::Open { per_second: 4_000.0 },
        ..Config::new(memcached.address)
    };
    populate(&config).expect("it has room");
    let figures = second_of(&config);
    let offered = figures.offered_per_s.expect("a schedule");
    assert!((3_400.0..4_600.0).contains(&offered), "from its beginning on: {figures:?}");
}
