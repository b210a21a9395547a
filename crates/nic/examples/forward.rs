//! Forwards frames between two interfaces over AF_XDP, as DPDK's `testpmd` does in mode `io`, on one CPU and
//! without an engine: measures the device alone. Prints each second how many frames came over each interface.
//!
//! ```text
//! forward A B [--seconds N] [--first FRAMES] [--generic]
//! ```
//!
//! With `--first`, sends that many frames of 60 bytes over each interface at the start: between the two ends of one
//! veth pair they circulate for ever. The figures in docs/performance.md are from this program.

use std::time::{Duration, Instant};

use napkin_nic::xdp::{Mode, Xdp, XdpConfig};
use napkin_nic::{PacketQueue, Pool};

/// Frames per poll, as in testpmd.
const BURST: u16 = 32;

/// CPU time of this thread: on a busy host a better measure than the time of day.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| match arguments.iter().position(|it| it == name) {
        Some(at) => {
            arguments.get(at + 1).ok_or("a value is missing")?.parse().map_err(|_| "give a number")
        }
        None => Ok(default),
    };
    let (seconds, first) = (value("--seconds", 5)?, value("--first", 0)?);
    let [a, b, ..] = &arguments[..] else { return Err("give two interfaces".into()) };
    let mode =
        if arguments.iter().any(|it| it == "--generic") { Mode::Generic } else { Mode::Auto };
    let mut queues = Vec::new();
    // One pool for both, so that frames are forwarded in place.
    let pool = Pool::new(2 * XdpConfig::new(a).buffers_of_a_queue() + 2048);
    for interface in [a, b] {
        let config = XdpConfig { mode, queues: vec![0], ..XdpConfig::new(interface) };
        let xdp = Xdp::open(&config, &pool)?;
        println!(
            "{interface}: {}, {}",
            if xdp.native { "native" } else { "generic" },
            if xdp.zero_copy { "zero-copy" } else { "copied by the kernel" }
        );
        queues.extend(xdp.queues);
    }
    // This loop polls without interrupts.
    queues.iter_mut().for_each(PacketQueue::mask);
    let wires: Vec<_> = queues.iter().map(|queue| queue.transmitter()).collect();
    let counters: Vec<_> = queues.iter().map(|queue| queue.counters()).collect();
    for wire in &wires {
        for _ in 0..first {
            wire.post(&[0x55; 60], 0)?;
        }
        wire.flush();
    }
    let mut frames = Vec::with_capacity(BURST.into());
    let mut before: Vec<_> = counters.iter().map(|it| it.read()).collect();
    let (start, mut reported_at, mut busy_before) = (Instant::now(), Instant::now(), cpu_time());
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..1024 {
            for (queue, wire) in queues.iter_mut().zip(wires.iter().rev()) {
                if queue.poll(BURST, 0, &mut frames).rx > 0 {
                    wire.send_owned(&mut frames, 0);
                    frames.clear();
                }
            }
        }
        let took = reported_at.elapsed();
        if took >= Duration::from_secs(1) {
            reported_at = Instant::now();
            let mut all = 0;
            for ((name, counters), before) in [a, b].into_iter().zip(&counters).zip(&mut before) {
                let now = counters.read();
                let since = now.since(before);
                *before = now;
                print!(
                    "{name}: {:.3} M/s in, {:.3} M/s out, {} dropped  ",
                    since.rx_packets as f64 / took.as_secs_f64() / 1e6,
                    since.tx_packets as f64 / took.as_secs_f64() / 1e6,
                    since.rx_dropped() + since.tx_dropped
                );
                all += since.rx_packets;
            }
            let now = cpu_time();
            let busy = now - std::mem::replace(&mut busy_before, now);
            println!("{:.3} M in all per second of CPU", all as f64 / busy.as_secs_f64() / 1e6);
        }
    }
    Ok(())
}
