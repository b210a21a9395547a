//! The engine's TCP and the operating system's, over a TAP device that loses, repeats, reorders and
//! changes frames: connections that are used, half-closed, reset and abandoned, until nothing is left.
//!
//! Ignored without /dev/net/tun and CAP_NET_ADMIN. With `NAPKIN_LONG=1` thousands of connections, and up to
//! 10 % of loss.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{HANGS, PORT, alone, policy, tap};
use napkin_core::{CpuId, MILLISECOND};
use napkin_engine::{ApplicationWait, DeviceConfig, Engine, EngineConfig, sched};
use napkin_nic::faulty::FaultyQueue;
use napkin_nic::tap::{Tap, TapConfig};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::Policy;
use napkin_service::{EchoStream, Pump};
use napkin_stack::{Address, TcpLimits};
use napkin_testing::test;
use napkin_traffic::SplitMix;

const FRAMES: usize = 4_096;
const THREADS: usize = 64;
/// A peer that has gone silently is noticed after seconds, not minutes.
const LIMITS: TcpLimits = TcpLimits { keep_alive: 1_000 * MILLISECOND, ..TcpLimits::DEFAULT };

/// The outcomes of the connections.
#[derive(Debug, Default)]
struct Seen {
    whole: AtomicUsize,
    reset: AtomicUsize,
    abandoned: AtomicUsize,
    unread: AtomicUsize,
    idle: AtomicUsize,
    /// Bytes that came back.
    bytes: AtomicU64,
}

/// An echo server on the device, and its thread; it reports how many connections it has.
fn serve(engine: &Engine, device: &str, policy: &Policy) -> (JoinHandle<()>, Arc<AtomicUsize>) {
    let stack = engine.stack(device).expect("the device");
    let mut worker = stack.open_tcp(None, LIMITS).expect("the first");
    worker.listen(PORT).expect("a free port");
    let waits = ApplicationWait::new(engine, CpuId(0), &worker.segments(), policy);
    let (mut waits, mut pump) = (waits.expect("parameters"), Pump::new(EchoStream));
    let connections = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&connections);
    let serves = move || {
        // An error means that the engine has stopped.
        let _ = waits.serve(&mut worker, &mut pump, |worker, _| {
            count.store(worker.connections(), Relaxed);
            true
        });
    };
    (std::thread::spawn(serves), connections)
}

/// Makes a connection close silently, as on a host that loses its power.
fn abandon(stream: &TcpStream) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the value is a C integer of the size that is passed.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Sends bytes that encode their positions, and checks as many of them as come back before the end.
fn talk(stream: &mut TcpStream, bytes: &[u8], seen: &Seen) {
    stream.write_all(bytes).expect("it takes them");
    stream.shutdown(Shutdown::Write).expect("a half close");
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("an end");
    assert!(back == bytes, "{} of {} bytes came back", back.len(), bytes.len());
    seen.bytes.fetch_add(back.len() as u64, Relaxed);
}

/// One connection, and one of its possible ends.
fn connection(at: SocketAddr, rng: &mut SplitMix, seen: &Seen) {
    // All attempts of a handshake, or of the kernel's ARP, may be lost: connect again.
    let connect = || match TcpStream::connect_timeout(&at, HANGS) {
        Ok(stream) => Some(stream),
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable) => {
            None
        }
        Err(error) => panic!("{error}"),
    };
    let mut stream = std::iter::repeat_with(connect).flatten().next().expect("one in the end");
    stream.set_read_timeout(Some(2 * HANGS)).expect("a timeout");
    let length = 1 + rng.below(20_000) as usize;
    let salt = rng.below(256) as usize;
    let bytes: Vec<u8> = (0..length).map(|place| (place * 7 + place / 251 + salt) as u8).collect();
    let count = match rng.below(8) {
        0 => {
            stream.write_all(&bytes).expect("it takes them");
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("it may");
            &seen.reset
        }
        1 => {
            stream.write_all(&bytes).expect("it takes them");
            abandon(&stream);
            &seen.abandoned
        }
        2 => {
            // It closes with the answer unread, some of it arrived.
            stream.write_all(&bytes).expect("it takes them");
            let _ = stream.read(&mut [0; 1]);
            &seen.unread
        }
        3 => &seen.idle,
        _ => {
            talk(&mut stream, &bytes, seen);
            &seen.whole
        }
    };
    count.fetch_add(1, Relaxed);
}

/// Opens that many connections under a policy, over a wire with these faults in both directions.
fn storm(name: &str, faults: &str, connections: usize) {
    let policy = policy(name);
    let (kernel, own) = tap::addresses();
    let config = TapConfig { queues: 2, address: Some((kernel, 30)), ..TapConfig::default() };
    let pool = Pool::new(FRAMES);
    let Tap { name: device, queues, .. } = tap::open_with(&config, &pool);
    let cpus: Vec<usize> = sched::usable_cpus().into_iter().take(2).collect();
    let faulty = |(at, queue): (u64, _)| {
        let queue: Box<dyn PacketQueue> = Box::new(queue);
        if faults.is_empty() {
            return queue;
        }
        let faults = faults.parse().expect("sound faults");
        Box::new(FaultyQueue::new(queue, faults, 7 + at, pool.clone()).with_transmit(faults))
    };
    let queues = (0..).zip(queues).map(faulty).zip((0..cpus.len() as u16).cycle()).collect();
    let address = Address { mac: [2, 0, 0, 0, 0, 0x42], ip: own.into(), prefix: 30 };
    let config = DeviceConfig::new(&device, address, queues, policy.instance);
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![config]) };
    let engine = Engine::start(config).expect("the engine starts");
    let (server, open) = serve(&engine, &device, &policy);
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let seen = &seen;
            scope.spawn(move || {
                let mut rng = SplitMix::new(thread as u64);
                let at = SocketAddr::from((own, PORT));
                (0..connections / THREADS).for_each(|_| connection(at, &mut rng, seen));
            });
        }
    });
    eprintln!("{name}, {faults:?}: {seen:?}, {} left", open.load(Relaxed));
    // Retransmissions come ever more slowly; what is not acknowledged is given up at the latest then.
    let (asked, patience) = (Instant::now(), Duration::from_nanos(LIMITS.peer_timeout) + HANGS);
    while open.load(Relaxed) > 0 {
        assert!(asked.elapsed() < patience, "{name}, {faults}: {} are left", open.load(Relaxed));
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.stop();
    server.join().expect("it serves");
    assert_eq!(pool.available(), FRAMES, "{name}, {faults}: every frame is back");
}

#[test]
fn every_byte_comes_once_and_in_order_and_nothing_is_left_of_any_connection() {
    let _alone = alone();
    let long = std::env::var_os("NAPKIN_LONG").is_some_and(|it| it == "1");
    let (faulty, sound) = if long { (2_048, 4_096) } else { (192, 512) };
    for name in ["base", "suspend20", "fullbusy", "threaded-busy-poll"] {
        storm(name, "", sound);
    }
    let bad = "loss=2%,corruption=1%,duplication=2%,reordering=3%";
    for name in ["suspend20", "threaded"] {
        storm(name, bad, faulty);
    }
    if long {
        for loss in ["loss=5%", "loss=10%", "loss=10%,corruption=5%,duplication=10%,reordering=10%"]
        {
            storm("base", loss, faulty);
        }
    }
}

napkin_testing::main!();
