//! The shortest server: a UDP echo on port 7 that also answers ARP and ping.
//!
//! ```text
//! cargo run --release -p napkin-engine --example echo                  # a synthetic source, 2 s
//! sudo target/release/examples/echo nk0 suspend20                      # a TAP device, until killed
//!     ping 10.99.0.1;  echo hello | nc -u -w1 10.99.0.1 7
//! ```

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use napkin_core::CpuId;
use napkin_engine::{DeviceConfig, Engine, EngineConfig, Epoll, now, sched};
use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};
use napkin_nic::tap::{Tap, TapConfig};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::Policy;
use napkin_service::{Echo, Service};
use napkin_stack::{Address, FrameBuilder};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (tap, policy) = (args.next(), args.next().unwrap_or_else(|| "base".into()));
    let policy: Policy = policy.parse()?;
    let us = Address { mac: [2, 0, 0, 0, 0, 1], ipv4: Ipv4Addr::new(10, 99, 0, 1), prefix: 24 };
    let peer = Address { mac: [2, 0, 0, 0, 0, 2], ipv4: Ipv4Addr::new(10, 99, 0, 2), prefix: 24 };

    // A queue: where frames come from.
    let pool = Pool::new(1_024);
    let queue: Box<dyn PacketQueue> = if let Some(name) = &tap {
        let address = Some((peer.ipv4, peer.prefix));
        let config = TapConfig { name: name.clone(), address, ..TapConfig::default() };
        Box::new(Tap::open(&config, &pool)?.queues.remove(0))
    } else {
        let arrivals = Arrivals::Fixed { per_second: 10_000.0 };
        let config = SyntheticConfig { arrivals, start: now(), ..SyntheticConfig::default() };
        let frame = move |_flow: u32, seq: u64, buffer: &mut [u8]| {
            let build = FrameBuilder::new(peer, us);
            build.udp(buffer, 4_000, 7, &seq.to_be_bytes()).unwrap_or(0)
        };
        Box::new(SyntheticQueue::new(&config, Box::new(frame), pool, None)?)
    };

    // An engine: one CPU serves it, as the policy says.
    let name = tap.clone().unwrap_or_else(|| "syn0".into());
    let (address, settings) = (us, policy.instance);
    let device = DeviceConfig {
        name: name.clone(),
        address,
        queues: vec![(queue, 0)],
        delivery_cost: 0,
        settings,
    };
    let cpus = sched::usable_cpus().into_iter().take(1).collect();
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
    let engine = Engine::start(config)?;
    for warning in engine.warnings() {
        eprintln!("warning: {warning}");
    }

    // An application: it waits in an epoll as the policy says, and sends back what has come. (What a
    // policy asks of the socket itself, as `busypoll` does, takes a `Blocking` instead.)
    let mut echo = Echo::new(engine.stack(&name)?.bind_udp(7, 512)?);
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll)?;
    epoll.set_spin(policy.application.spin);
    epoll.add(echo.socket(), 0)?;
    let (start, mut events) = (Instant::now(), Vec::new());
    while tap.is_some() || start.elapsed() < Duration::from_secs(2) {
        epoll.wait(&mut events, 1, Some(Duration::from_millis(100)))?;
        // A batch, then another wait: in between, the policy decides who polls.
        echo.serve_ready(now(), 64);
    }
    let counts = engine.napi(1)?.counts;
    println!(
        "{policy}: {} echoes ({} failed), {} interrupts, {} polls",
        echo.answered(),
        echo.failed(),
        counts.interrupts,
        counts.all_polls()
    );
    Ok(())
}
