//! The memcached client against servers that misbehave, and against a real one (`real`).

mod real;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use napkin_client::{Client, ClientError, ClientFigures, ClientWait, Config, Load, populate};
use napkin_os::rights::Right;
use napkin_os::sched::CpuList;
use napkin_testing::{ignore, needs, needs_program, test};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// The behaviour of a fake server after it has read a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Answers,
    /// It reads requests and never answers.
    Silent,
    /// It closes every connection after this many requests.
    Closes(u64),
    /// It answers every request with these bytes.
    Says(&'static [u8]),
}

/// A fake server: sets are discarded, and gets miss.
struct Fake {
    address: SocketAddr,
    heard: Arc<AtomicU64>,
    stall: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

/// The delay of one answer.
const STALL: Duration = Duration::from_millis(50);

impl Fake {
    fn new(behaviour: Behaviour) -> Fake {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let fake = Fake {
            address: listener.local_addr().expect("bound"),
            heard: Arc::default(),
            stall: Arc::default(),
            gone: Arc::default(),
        };
        let (heard, stall, gone) =
            (Arc::clone(&fake.heard), Arc::clone(&fake.stall), Arc::clone(&fake.gone));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if gone.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { return };
                let (heard, stall) = (Arc::clone(&heard), Arc::clone(&stall));
                std::thread::spawn(move || serve(&stream, behaviour, &heard, &stall));
            }
        });
        fake
    }

    fn config(&self) -> Config {
        Config { connections: 1, records: 100, update: 0.1, ..Config::new(self.address) }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, behaviour: Behaviour, heard: &AtomicU64, stall: &AtomicBool) {
    let _ = stream.set_nodelay(true);
    let mut input = BufReader::new(stream);
    let mut output = stream;
    let mut line = String::new();
    for request in 1.. {
        line.clear();
        if input.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        if words.first() == Some(&"set") {
            let size: usize = words[4].parse().expect("a size");
            let mut value = vec![0; size + 2];
            if input.read_exact(&mut value).is_err() {
                return;
            }
        }
        heard.fetch_add(1, Ordering::SeqCst);
        if stall.swap(false, Ordering::SeqCst) {
            std::thread::sleep(STALL);
        }
        let answer = match behaviour {
            Behaviour::Silent => continue,
            Behaviour::Closes(after) if request > after => return,
            Behaviour::Says(text) => text,
            _ if words.first() == Some(&"set") => b"STORED\r\n",
            _ => b"END\r\n",
        };
        if output.write_all(answer).is_err() {
            return;
        }
    }
}

/// A window in which one answer is delayed.
fn with_one_stall(load: Load) -> ClientFigures {
    let fake = Fake::new(Behaviour::Answers);
    let config = Config { load, ..fake.config() };
    let mut client = Client::start(&config).expect("it connects");
    std::thread::sleep(Duration::from_millis(100));
    fake.stall.store(true, Ordering::SeqCst);
    while fake.stall.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(STALL + Duration::from_millis(250));
    // Without a schedule this takes a moment only.
    while load == Load::Closed && fake.heard.load(Ordering::SeqCst) < 3_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let figures = client.end_window().expect("it runs");
    client.stop().expect("nothing failed");
    figures
}

/// A window of an open loop and one of a closed loop, in each of which only the one answer was late. A busy host
/// delays others too, which shows in both.
fn with_one_stall_alone() -> (ClientFigures, ClientFigures) {
    for _ in 0..5 {
        let open = with_one_stall(Load::Open { per_second: 1_000.0 });
        let closed = with_one_stall(Load::Closed);
        let p99 = closed.latency_ns.as_ref().and_then(|it| it.at.p99);
        if p99.is_some_and(|p99| Duration::from_nanos(p99) < STALL / 2) {
            return (open, closed);
        }
        eprintln!("once more: this host has held up more than one answer: {closed:?}");
    }
    panic!("five times more than one answer of a hundred came late in a closed loop")
}

#[test]
fn a_schedule_charges_all_that_was_due_during_a_stall_and_a_closed_loop_one_request() {
    let stall = STALL.as_nanos() as u64;
    let (open, closed) = with_one_stall_alone();

    let latency = open.latency_ns.expect("answers");
    assert!(latency.max >= stall, "{open:?}");
    // On average 50 requests are due in 50 ms; the exact number follows from the seed.
    assert!(open.late >= 20, "{open:?}");
    assert_eq!((open.abandoned, open.reconnects), (0, 0), "{open:?}");
    assert!(open.errors.is_empty(), "{open:?}");
    assert_eq!((open.gets, open.hits), (open.misses, 0), "the fake has no records");
    assert_eq!(open.gets + open.sets, open.requests);

    // A tool that counts from the actual sending omits the time that requests waited for their turn.
    let published = open.published_ns.expect("answers");
    assert!(Some(published.mean) < latency.mean, "{open:?}");
    assert!(published.p99 < latency.at.p99.map_or(0.0, |it| it as f64), "{open:?}");

    let blind = closed.latency_ns.expect("answers");
    assert!(blind.max >= stall, "{closed:?}");
    assert_eq!((closed.late, closed.offered_per_s, closed.send_delay_ns), (0, None, None));
    assert!(closed.requests > 1_000, "{closed:?}");
    eprintln!(
        "one answer of {} delayed by 50 ms: open loop p99 {} us ({} late), closed loop p99 {} us",
        open.requests,
        latency.at.p99.unwrap_or(0) / 1000,
        open.late,
        blind.at.p99.unwrap_or(0) / 1000
    );
    // One answer of thousands is beyond the 99th percentile; all those that were delayed by it are not.
    assert!(latency.at.p99 > blind.at.p99, "{latency:?}, {blind:?}");
    assert!(latency.at.p95 > blind.at.p95, "{latency:?}, {blind:?}");
}

#[test]
fn a_server_that_is_too_slow_owes_more_and_more_and_it_is_said() {
    let fake = Fake::new(Behaviour::Silent);
    // The backlog of one connection holds 65536 requests.
    let load = Load::Open { per_second: 1_000_000.0 };
    let mut client = Client::start(&Config { load, ..fake.config() }).expect("it connects");
    client.begin_window().expect("it runs");
    let begun = Instant::now();
    let figures = loop {
        std::thread::sleep(Duration::from_millis(50));
        let figures = client.end_window().expect("it runs");
        if figures.abandoned != 0 {
            break figures;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{figures:?}");
    };
    assert_eq!((figures.requests, figures.latency_ns), (0, None));
    assert_eq!((figures.backlog, figures.outstanding), (65_536, 1), "it is bounded");
    let noted = |word: &str| figures.notes.iter().any(|note| note.contains(word));
    assert!(noted("never sent") && noted("no answer at the window's end"), "{figures:?}");
    client.stop().expect("it was slow, not dead");
}

#[test]
fn a_client_needs_no_time_to_stop_while_its_server_is_silent() {
    let fake = Fake::new(Behaviour::Silent);
    for load in [Load::Closed, Load::Open { per_second: 10.0 }] {
        let client = Client::start(&Config { load, ..fake.config() }).expect("it connects");
        // A pending answer has a timeout of 10 s; that this returns at once is the proof.
        client.stop().expect("nothing failed yet");
    }
}

/// The error that ends a client of a server with this behaviour.
fn end_of(behaviour: Behaviour, change: impl FnOnce(&mut Config)) -> ClientError {
    let fake = Fake::new(behaviour);
    let mut config = Config { connections: 4, ..fake.config() };
    change(&mut config);
    let mut client = Client::start(&config).expect("it connects");
    let begun = Instant::now();
    while client.is_running() {
        std::thread::sleep(Duration::from_millis(5));
        assert!(begun.elapsed() < Duration::from_secs(60), "it runs for ever");
    }
    let error = client.end_window().expect_err("a thread has ended");
    assert!(matches!(client.end_window(), Err(ClientError::Ended)), "it says why once");
    assert!(client.stop().is_ok(), "and has nothing left to stop");
    error
}

#[test]
fn a_server_that_falls_silent_is_dead_after_a_while() {
    let timeout = Duration::from_millis(200);
    for wait in [ClientWait::Sleep, ClientWait::Spin] {
        let error = end_of(Behaviour::Silent, |config| {
            config.answer_timeout = timeout;
            config.wait = wait;
        });
        assert!(matches!(error, ClientError::Silent { outstanding: 4, .. }), "{error}");
        assert!(error.to_string().contains("200ms"), "{error}");
    }
}

#[test]
fn a_server_that_talks_nonsense_is_given_up_by_the_name_of_it() {
    for (text, name) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "unknown-line"),
        (b"VALUE somebody-elses 0 3\r\nabc\r\nEND\r\n", "other-key"),
        (b"END\r\nEND\r\n", "not-asked"),
        (&[b'x'; 4096], "long-line"),
    ] {
        let error = end_of(Behaviour::Says(text), |config| config.update = 0.0);
        let ClientError::Unstable { last, times, .. } = &error else { panic!("{error}") };
        assert_eq!((*last, *times), (name, 33), "{error}");
    }
    let error = end_of(Behaviour::Closes(1), |_| {});
    assert!(matches!(error, ClientError::Unstable { last: "closed" | "failed", .. }), "{error}");
}

#[test]
fn refusals_are_counted_and_the_connection_goes_on() {
    let fake = Fake::new(Behaviour::Says(b"SERVER_ERROR out of memory\r\n"));
    let mut client = Client::start(&fake.config()).expect("it connects");
    while fake.heard.load(Ordering::SeqCst) < 500 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let figures = client.end_window().expect("refusals are answers");
    assert!(figures.requests >= 499, "{figures:?}");
    assert_eq!(figures.errors.get("server-error"), Some(&figures.requests), "{figures:?}");
    assert_eq!((figures.hits, figures.misses, figures.reconnects), (0, 0, 0));
}

#[test]
fn lost_connections_are_made_again_and_counted() {
    let fake = Fake::new(Behaviour::Closes(5_000));
    let mut client = Client::start(&fake.config()).expect("it connects");
    while fake.heard.load(Ordering::SeqCst) < 20_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let figures = client.end_window().expect("it runs");
    assert!(figures.reconnects >= 3, "{figures:?}");
    let lost: u64 = figures.errors.values().sum();
    assert!(lost >= figures.reconnects && lost <= figures.reconnects + 1, "{figures:?}");
    // 5000 on each connection, less at most one that was lost with each.
    assert!(figures.requests >= 19_990, "{figures:?}");
}

#[test]
fn a_client_and_its_new_connections_are_in_the_namespace_of_who_started_it() {
    needs(Right::SysAdmin.held(), Right::SysAdmin);
    needs_program("ip");
    let host = std::fs::File::open("/proc/thread-self/ns/net").expect("it is its own");
    // SAFETY: only this thread, which is the test's own and ends with it, moves to a network namespace of its own,
    // and none of its descriptors is used elsewhere.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "the namespace's loopback");
    let fake = Fake::new(Behaviour::Closes(10));
    let load = Load::Open { per_second: 5_000.0 };
    let config = Config { load, connections: 200, threads: 2, ..fake.config() };
    let outside = std::thread::scope(|scope| {
        let connect = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(host.as_fd(), kind).expect("root may");
            Client::start(&config).map(drop)
        };
        scope.spawn(connect).join().expect("no panic")
    });
    assert!(matches!(outside, Err(ClientError::Connect { .. })), "{outside:?}");
    let mut client = Client::start(&config).expect("it connects in here");
    while fake.heard.load(Ordering::SeqCst) < 2_500 && client.is_running() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let figures = client.end_window().expect("its new connections are in here as well");
    assert!(figures.reconnects >= 40, "{figures:?}");
}

#[test]
fn no_server_is_said_at_once() {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a port");
    let config = Config { connections: 8, threads: 2, ..Config::new(address) };
    for error in [
        Client::start(&config).map(drop).expect_err("nobody is there"),
        populate(&config).map(drop).expect_err("nobody is there"),
    ] {
        let text = error.to_string();
        assert!(text.contains(&address.to_string()) && text.contains("refused"), "{text}");
        assert!(text.contains("does the service listen there"), "{text}");
    }
    let cpus = CpuList(vec![1_000]);
    let error = Client::start(&Config { cpus, ..config }).map(drop).expect_err("no such CPU");
    assert!(error.to_string().contains("CPU 1000"), "{error}");
}

#[test]
fn a_fake_store_does_not_pass_for_a_filled_one() {
    let fake = Fake::new(Behaviour::Says(b"VERSION 0\r\n"));
    let error = populate(&fake.config()).expect_err("it did not store").to_string();
    assert!(error.contains("no answer"), "{error}");
    let fake = Fake::new(Behaviour::Says(b"SERVER_ERROR object too large for cache\r\n"));
    let error = populate(&fake.config()).expect_err("it did not store").to_string();
    assert!(error.contains("ServerError"), "{error}");
    let fake = Fake::new(Behaviour::Silent);
    let config = Config { answer_timeout: Duration::from_millis(100), ..fake.config() };
    let error = populate(&config).expect_err("it says nothing").to_string();
    assert!(error.contains("has not answered for 100ms"), "{error}");
}

/// The limit on open files of this process.
fn descriptors() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[test]
fn too_few_descriptors_are_said_before_anything_is_opened() {
    let Some(limit) = descriptors().filter(|limit| *limit < 28_000) else {
        ignore("needs a limit below 28000 file descriptors, a client's most connections")
    };
    let fake = Fake::new(Behaviour::Answers);
    let connections = usize::try_from(limit).expect("less than 28000");
    let error = Client::start(&Config { connections, ..fake.config() }).map(drop);
    let error = error.expect_err("too many").to_string();
    assert!(error.contains("ulimit -n") && error.contains(&limit.to_string()), "{error}");
}

napkin_testing::main!();
