//! Datagrams in an open loop, by a schedule that waits for no answer, or as many as the device takes.
//!
//! Each datagram carries its due time, which an echo returns: a request that was sent late has that delay in its
//! latency. Without a schedule it carries the time of its sending.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use napkin_measure::Latency;
use napkin_nic::{Frame, Pool, Transmitter};
use napkin_os::clock;
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{Address, FrameBuilder, UdpSocket};

use crate::config::LoadConfig;
use crate::error::LoadError;
use crate::figures::{LoadFigures, known_percentiles};
use crate::wire::Wire;

/// Maximum number of frames that are handed over at once.
const BATCH: u64 = 32;
/// Capacity of a socket's receive buffer for answers, in datagrams.
const WAITING: usize = 8_192;
/// How long to wait for answers at the end.
const LATE: Ns = 100 * MILLISECOND;

/// The counts that the sending thread publishes while it runs.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: AtomicU64,
    pub(crate) answered: AtomicU64,
    /// Whether the thread is to stop.
    pub(crate) stop: AtomicBool,
}

/// A flow: its socket, with the local port, and the frames for its datagrams.
struct Flow {
    socket: UdpSocket,
    transmitter: Arc<dyn Transmitter>,
    frames: Vec<Frame>,
}

/// Sends until the time is over or `progress.stop` is set.
pub(crate) fn run(
    config: &LoadConfig,
    mut wire: Wire,
    progress: &Progress,
) -> Result<LoadFigures, LoadError> {
    let Some(mac) = wire.resolve(config.to.ip(), &progress.stop)? else {
        return Ok(LoadFigures::default());
    };
    let us = wire.stack.addresses().mac();
    let to = Address { mac, ip: config.to.ip(), prefix: config.network.prefix };
    let from = Address { mac: us, ip: config.network.ip, prefix: config.network.prefix };
    let builder =
        FrameBuilder { tag: wire.stack.addresses().vlan(), ..FrameBuilder::new(from, to) };
    let transmitters = wire.transmitters();
    let pool = Pool::new(usize::from(config.flows) * BATCH as usize);
    let flow = |number: usize| {
        let socket = wire.stack.bind_udp(0, WAITING)?;
        let frames = (0..BATCH).filter_map(|_| pool.take()).collect();
        Ok(Flow {
            socket,
            transmitter: Arc::clone(&transmitters[number % transmitters.len()]),
            frames,
        })
    };
    let mut flows = (0..config.flows.into()).map(flow).collect::<Result<Vec<_>, LoadError>>()?;
    let mut payload = vec![0; config.bytes as usize];
    let mut latency = Latency::new();
    let (mut sent, mut answered, mut turn) = (0u64, 0u64, 0);
    let start = clock::now();
    let time = Ns::try_from(config.time.as_nanos()).unwrap_or(Ns::MAX);
    let gap = config.per_second.map(|rate| 1e9 / rate as f64);
    let (end, last) = (start.saturating_add(time), start.saturating_add(time).saturating_add(LATE));
    loop {
        let now = clock::now();
        if now >= last || (now >= end && answered >= sent) || progress.stop.load(Relaxed) {
            break;
        }
        if now < end {
            let due = match gap {
                Some(gap) => ((now - start) as f64 / gap) as u64 + 1,
                None => sent + BATCH,
            };
            let count = (due - sent.min(due)).min(BATCH);
            if count > 0 {
                let Flow { socket, transmitter, frames } = &mut flows[turn];
                turn = (turn + 1) % usize::from(config.flows);
                for (place, frame) in (sent..).zip(&mut frames[..count as usize]) {
                    let was_due = gap.map_or(now, |gap| start + (place as f64 * gap) as Ns);
                    payload[..8].copy_from_slice(&was_due.to_le_bytes());
                    let ports = (socket.port(), config.to.port());
                    let length = builder.udp(frame.buffer(), ports.0, ports.1, &payload)?;
                    frame.set_len(length);
                }
                sent += transmitter.send_all(&frames[..count as usize], now) as u64;
                transmitter.flush();
                progress.sent.store(sent, Relaxed);
            }
        }
        if wire.poll(now)? {
            let now = clock::now();
            for Flow { socket, .. } in &flows {
                while let Some(datagram) = socket.try_recv() {
                    let stamp = datagram.payload().first_chunk().map(|it| Ns::from_le_bytes(*it));
                    // Other datagrams to our port are not answers.
                    if let Some(stamp) = stamp.filter(|stamp| (start..=now).contains(stamp)) {
                        latency.record(now - stamp);
                        answered += 1;
                    }
                }
            }
            progress.answered.store(answered, Relaxed);
        }
    }
    let ran = clock::now().min(end).saturating_sub(start);
    let behind = gap.map_or(0, |gap| ((ran as f64 / gap).ceil() as u64).saturating_sub(sent));
    let due = sent + behind;
    let unanswered = due.saturating_sub(answered);
    Ok(LoadFigures {
        signal: None,
        seconds: ran as f64 / 1e9,
        asked_per_s: config.per_second.map(|rate| rate as f64),
        sent,
        answered,
        behind,
        waiting: 0,
        misses: 0,
        errors: BTreeMap::new(),
        // A request without an answer may be waiting or lost; which is unknown.
        latency_ns: known_percentiles(latency.summary(unanswered), due, unanswered, behind),
        send_delay_ns: None,
    })
}
