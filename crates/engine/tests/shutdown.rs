//! An engine stops at any moment, in every mode, idle and at saturation, while threads of the
//! application wait: they get an error, every thread ends, and no device remains.
//!
//! That nothing is owned afterwards, and that every frame is accounted for, the engine checks itself
//! in debug builds. `NAPKIN_LONG=1` stops more often, and kills ten times as often.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::app::App;
use common::{HANGS, PORT, Setup, alone, eventually, policy, start, tap};
use napkin_core::CpuId;
use napkin_engine::{DeviceConfig, Engine, EngineConfig, Epoll, sched};
use napkin_nic::tap::TapConfig;
use napkin_os::rights::Right;
use napkin_policy::Policy;
use napkin_stack::Address;
use napkin_testing::{needs, test};
use napkin_traffic::SplitMix as Rng;

fn long() -> bool {
    std::env::var_os("NAPKIN_LONG").is_some_and(|it| it == "1")
}

fn stops(name: &str, setup: &Setup, seed: u64) {
    let policy = policy(name);
    let mut rng = Rng::new(seed);
    for _ in 0..if long() { 50 } else { 20 } {
        let (engine, source) = start(&policy, setup);
        let apps = [None, Some(HANGS)].into_iter().zip(PORT..);
        let apps: Vec<App> =
            apps.map(|(timeout, port)| App::start(&engine, port, &policy, timeout)).collect();
        std::thread::sleep(Duration::from_micros(rng.below(4_000)));
        let stack = engine.stack("syn0").expect("the device");
        let counters: Vec<_> = engine.napis();
        engine.stop();
        for app in apps {
            assert!(app.join(), "{name}: its wait was to fail");
        }
        let counted = stack.counters();
        assert_eq!(counted.frames, counted.accounted(), "{name}");
        assert!(source.offered() >= counted.frames, "{name}: {counters:?}");
    }
}

fn traffic() -> Setup {
    Setup { per_second: 50_000.0, ports: 2, start: 0, ..Setup::default() }
}

fn saturation() -> Setup {
    Setup { per_second: 1e8, queues: 2, cpus: 2, ..traffic() }
}

/// Stops while the application busy polls for half an hour, and no packet comes.
fn stops_without_a_packet(name: &str) {
    let policy = policy(name);
    // Only the instance that feeds a socket is polled, so a frame has to come first.
    let (engine, _source) = start(&policy, &Setup { count: 2, ..Setup::default() });
    let app = App::start(&engine, PORT, &policy, None);
    eventually("the frame", || app.received() > 0);
    std::thread::sleep(Duration::from_millis(20));
    engine.stop();
    assert!(app.join(), "its wait was to fail");
}

#[test]
fn under_traffic_in_every_mode() {
    let _alone = alone();
    for (seed, name) in common::POLICIES.into_iter().enumerate() {
        stops(name, &traffic(), seed as u64);
    }
}

#[test]
fn at_saturation_in_every_mode() {
    let _alone = alone();
    for (seed, name) in common::POLICIES.into_iter().enumerate() {
        stops(name, &saturation(), seed as u64);
    }
}

#[test]
fn without_a_packet_while_an_epoll_busy_polls() {
    let _alone = alone();
    stops_without_a_packet("fullbusy,epoll-busy-poll-usecs=2147483647");
}

#[test]
fn while_a_socket_busy_polls() {
    needs(Right::NetAdmin.held(), "CAP_NET_ADMIN");
    let _alone = alone();
    stops("busypoll", &traffic(), 98);
    stops("busypoll", &saturation(), 99);
    stops_without_a_packet("busypoll,socket-busy-poll-usecs=2147483647");
}

const CHILD: &str = "NAPKIN_TEST_TAP_CHILD";

/// The process that is killed: it echoes over a TAP device, and prints the device's name and both addresses.
fn serve_tap(policy: &Policy) {
    let (host, own) = tap::addresses();
    let config = TapConfig { queues: 2, address: Some((host, 30)), ..TapConfig::default() };
    let tap = tap::open(&config);
    let device = DeviceConfig {
        name: tap.name.clone(),
        addresses: Address { mac: [2, 0, 0, 0, 0, 0x43], ip: own.into(), prefix: 30 }.into(),
        queues: tap.queues.into_iter().map(|queue| (Box::new(queue) as _, 0)).collect(),
        delivery_cost: 0,
        settings: policy.instance,
    };
    let config = EngineConfig::new(vec![sched::usable_cpus()[0]], vec![device]);
    let config = EngineConfig { cpu_policy: policy.cpu, ..config };
    let engine = Engine::start(config).expect("the engine starts");
    let socket = engine.stack(&tap.name).expect("the device").bind_udp(PORT, 512).expect("a port");
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    epoll.set_spin(policy.application.spin);
    epoll.add(&socket, 0).expect("room");
    println!("\ndevice {} {host} {own}", tap.name);
    // If it is not killed, it ends by itself.
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < HANGS {
        epoll.wait(&mut events, 64, Some(HANGS)).expect("a wait");
        while let Some(datagram) = socket.try_recv() {
            let _ = socket.echo(datagram, napkin_engine::now());
        }
    }
}

/// Datagrams to a server from the host's own sockets, as fast as they go.
struct Flood {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Returns once the server has answered.
    fn start(host: Ipv4Addr, to: Ipv4Addr) -> Flood {
        let socket = || {
            let socket = UdpSocket::bind((host, 0)).expect("the host's address is there");
            socket.connect((to, PORT)).expect("a route");
            socket
        };
        let asks = socket();
        asks.set_read_timeout(Some(Duration::from_millis(20))).expect("it may");
        eventually("an echo", || {
            let _ = asks.send(b"first");
            asks.recv(&mut [0; 8]).is_ok()
        });
        let flows = [(); 8].map(|()| socket());
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for flow in &flows {
                    // Once the device has gone there is no route.
                    let _ = flow.send(&[0; 64]);
                }
            }
        });
        Flood { over, thread }
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sends");
    }
}

/// Starts a server, floods it and kills it after `delay`.
fn killed(name: &str, delay: Duration) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["by_kill_under_traffic_and_no_device_remains", "--exact", "--nocapture"])
        .env(CHILD, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let line = output
        .lines()
        .map_while(Result::ok)
        .find(|line| line.starts_with("device "))
        .unwrap_or_else(|| panic!("{name}: the process said nothing: {:?}", child.wait()));
    let words: Vec<&str> = line.split(' ').collect();
    let [_, device, host, own] = words[..] else { panic!("{name}: {line}") };
    let path = format!("/sys/class/net/{device}");
    assert!(std::path::Path::new(&path).exists(), "{path}");
    let flood = Flood::start(host.parse().expect("an address"), own.parse().expect("an address"));
    std::thread::sleep(delay);
    child.kill().expect("kill -9");
    child.wait().expect("it has ended");
    eventually(&format!("{name}, killed after {delay:?}: the device's end"), || {
        !std::path::Path::new(&path).exists()
    });
    flood.stop();
}

#[test]
fn by_kill_under_traffic_and_no_device_remains() {
    if let Ok(name) = std::env::var(CHILD) {
        return serve_tap(&policy(&name));
    }
    drop(tap::open(&TapConfig::default()));
    let _alone = alone();
    let mut rng = Rng::new(9);
    for _ in 0..if long() { 10 } else { 1 } {
        for name in common::POLICIES {
            killed(name, Duration::from_micros(1_000 + rng.below(59_000)));
        }
    }
}

napkin_testing::main!();
