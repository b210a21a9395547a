//! An engine stops at any moment, in every mode, idle and at saturation, while threads of the
//! application wait: they get an error, every thread ends, and no device remains.
//!
//! That nothing is owned afterwards, and that every frame is accounted for, the engine checks itself
//! in debug builds. The last test needs /dev/net/tun and CAP_NET_ADMIN, and says so where it skips.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::app::App;
use common::{HANGS, PORT, Setup, alone, eventually, policy, start};
use napkin_core::{CpuId, Policy};
use napkin_engine::{DeviceConfig, Engine, EngineConfig, Epoll, sched};
use napkin_nic::Pool;
use napkin_nic::rng::Rng;
use napkin_nic::tap::{Tap, TapConfig};

const TIMES: usize = 50;

fn stops(name: &str, setup: &Setup, seed: u64) {
    let policy = policy(name);
    let mut rng = Rng::new(seed);
    for _ in 0..TIMES {
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

#[test]
fn under_traffic_in_every_mode() {
    let _alone = alone();
    let setup = Setup { per_second: 50_000.0, ports: 2, start: 0, ..Setup::default() };
    for (seed, name) in common::POLICIES.into_iter().enumerate() {
        stops(name, &setup, seed as u64);
    }
    stops("busypoll", &setup, 98);
}

#[test]
fn at_saturation_in_every_mode() {
    let _alone = alone();
    let setup =
        Setup { per_second: 1e8, ports: 2, start: 0, queues: 2, cpus: 2, ..Setup::default() };
    for (seed, name) in common::POLICIES.into_iter().enumerate() {
        stops(name, &setup, seed as u64);
    }
    stops("busypoll", &setup, 99);
}

#[test]
fn without_a_packet_while_the_application_busy_polls_for_half_an_hour() {
    let _alone = alone();
    // Only the instance that feeds a socket is polled, so a frame has to come first.
    let setup = Setup { count: 2, ..Setup::default() };
    for name in
        ["fullbusy,epoll-busy-poll-usecs=2147483647", "busypoll,socket-busy-poll-usecs=2147483647"]
    {
        let policy = policy(name);
        let (engine, _source) = start(&policy, &setup);
        let app = App::start(&engine, PORT, &policy, None);
        eventually("the frame", || app.received() > 0);
        std::thread::sleep(Duration::from_millis(20));
        engine.stop();
        assert!(app.join(), "its wait was to fail");
    }
}

const CHILD: &str = "NAPKIN_TEST_TAP_CHILD";

/// What the killed process does: it serves a TAP device, and says its name.
fn serve_tap(policy: &Policy) {
    let tap = match Tap::open(&TapConfig { queues: 2, ..TapConfig::default() }, &Pool::new(512)) {
        Ok(tap) => tap,
        Err(error) => {
            println!("\nskipped: {error}");
            return;
        }
    };
    let device = DeviceConfig {
        name: tap.name.clone(),
        address: common::US,
        queues: tap.queues.into_iter().map(|queue| (Box::new(queue) as _, 0)).collect(),
        delivery_cost: 0,
        settings: policy.instance,
    };
    let config = EngineConfig::new(vec![sched::usable_cpus()[0]], vec![device]);
    let engine = Engine::start(config).expect("the engine starts");
    let epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    println!("\ndevice {}", tap.name);
    let mut events = Vec::new();
    // Should nobody kill it, it ends.
    let _ = epoll.wait(&mut events, 1, Some(HANGS));
}

#[test]
fn by_kill_and_no_device_remains() {
    if let Ok(name) = std::env::var(CHILD) {
        return serve_tap(&policy(&name));
    }
    let _alone = alone();
    for name in ["base", "threaded-busy-poll", "suspend20"] {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["by_kill_and_no_device_remains", "--exact", "--nocapture"])
            .env(CHILD, name)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let said = output.lines().map_while(Result::ok).find_map(|line| {
            let skipped = line.starts_with("skipped").then(|| Err(line.clone()));
            skipped.or_else(|| line.strip_prefix("device ").map(|name| Ok(name.to_owned())))
        });
        let device = match said {
            Some(Ok(device)) => device,
            Some(Err(why)) => {
                child.wait().expect("it ends");
                eprintln!("{why}");
                return;
            }
            None => panic!("{name}: the process said nothing: {:?}", child.wait()),
        };
        let path = format!("/sys/class/net/{device}");
        assert!(std::path::Path::new(&path).exists(), "{path}");
        child.kill().expect("kill -9");
        child.wait().expect("it has ended");
        eventually("the device's end", || !std::path::Path::new(&path).exists());
    }
}
