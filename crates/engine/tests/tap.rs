//! Real packets: the operating system's sockets talk to an echo over a TAP device with two queues,
//! in every mode.
//!
//! Ignored without /dev/net/tun and CAP_NET_ADMIN. The device goes with the test.

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{HANGS, PORT, alone, policy, tap};
use napkin_core::CpuId;
use napkin_engine::{DeviceConfig, Engine, EngineConfig, Epoll, sched};
use napkin_nic::tap::TapConfig;
use napkin_stack::Address;
use napkin_testing::test;

const FLOWS: usize = 8;
const DATAGRAMS: u32 = 25;

fn echoes(name: &str) {
    let (kernel, own) = tap::addresses();
    let config = TapConfig { queues: 2, address: Some((kernel, 30)), ..TapConfig::default() };
    let tap = tap::open(&config);
    let policy = policy(name);
    let sys = format!("/sys/class/net/{}", tap.name);
    let cpus: Vec<usize> = sched::usable_cpus().into_iter().take(2).collect();
    let device = DeviceConfig {
        name: tap.name.clone(),
        addresses: Address { mac: [2, 0, 0, 0, 0, 0x42], ip: own.into(), prefix: 30 }.into(),
        queues: (0..)
            .zip(tap.queues)
            .map(|(at, queue)| (Box::new(queue) as _, at % cpus.len() as u16))
            .collect(),
        delivery_cost: 0,
        settings: policy.instance,
    };
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
    let engine = Engine::start(config).expect("the engine starts");
    let stack = engine.stack(&tap.name).expect("the device");
    let socket = stack.bind_udp(PORT, 512).expect("a port");
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    epoll.set_spin(policy.application.spin);
    epoll.add(&socket, 0).expect("room");
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let echo = std::thread::spawn(move || {
        let mut events = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            epoll.wait(&mut events, 64, Some(Duration::from_millis(20))).expect("a wait");
            while let Some(datagram) = socket.try_recv() {
                socket.echo(datagram, napkin_engine::now()).expect("the device is up");
            }
        }
    });
    let flows: Vec<UdpSocket> = (0..FLOWS)
        .map(|_| {
            let socket = UdpSocket::bind((kernel, 0)).expect("the address is there");
            socket.connect((own, PORT)).expect("a route");
            socket.set_read_timeout(Some(HANGS)).expect("it may");
            socket
        })
        .collect();
    for number in 0..DATAGRAMS {
        // All flows at once, so that both queues have work.
        for flow in &flows {
            flow.send(&number.to_be_bytes()).expect("room");
        }
        for flow in &flows {
            let mut buffer = [0; 8];
            let length = flow.recv(&mut buffer).expect(name);
            assert_eq!(buffer[..length], number.to_be_bytes(), "{name}");
        }
    }
    over.store(true, Ordering::Relaxed);
    echo.join().expect("it echoes");
    let counted = stack.counters();
    assert!(counted.delivered() >= u64::from(DATAGRAMS) * FLOWS as u64, "{name}: {counted:?}");
    let queues = engine.napis().iter().filter(|napi| napi.counts.packets > 0).count();
    eprintln!("{name}: {} frames over {queues} queues", counted.frames);
    engine.stop();
    drop(stack);
    common::eventually("the device's end", || !std::path::Path::new(&sys).exists());
}

#[test]
fn the_hosts_own_sockets_are_answered_in_every_mode() {
    let _alone = alone();
    for name in common::POLICIES {
        echoes(name);
    }
}

napkin_testing::main!();
