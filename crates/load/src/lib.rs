//! The load generator behind `napkin load`: sends requests through its own packet queue, bypassing kernel sockets.
//!
//! One thread polls the device and never sleeps, so that it adds as little as possible to what it measures.
//! Datagrams follow a schedule that waits for no answer, or are sent as fast as the device takes them. Connections
//! follow a schedule, or each sends its next request as soon as the previous one is answered. Requests that were
//! due and not sent are reported, and latency counts from the due time.
//!
//! It can also replay the frames of a capture file ([`replay()`]), as they are or with other addresses.
//!
//! Not supported: routers, several threads.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod config;
mod datagrams;
mod error;
mod figures;
mod pcap;
mod replay;
mod rewrite;
mod streams;
mod wire;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

pub use config::{HIGHEST_RATE, LEAST_BYTES, LoadConfig, MOST_DATAGRAM, MOST_FLOWS, Protocol};
pub use error::LoadError;
pub use figures::LoadFigures;
use napkin_client::Host;
use napkin_os::sched;
use napkin_os::signals::Signals;
use napkin_serve::{ServeConfig, open};
pub use pcap::PcapFileError;
pub use replay::{Pace, ReplayConfig, ReplayFigures};
pub use rewrite::{Mac, Rewrite};

use crate::datagrams::Progress;
use crate::replay::Replay;
use crate::wire::Wire;

/// Interval between progress events.
const PERIOD: Duration = Duration::from_secs(1);

/// Progress of a load or a replay.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The device is open; a description of it.
    Open(String),
    /// The counts of the last second.
    Second {
        /// Datagrams or frames that the device took.
        sent: u64,
        /// Answers, or frames received.
        answered: u64,
    },
}

/// Generates a load and returns its figures. A terminating signal ends it early, with the figures so far.
///
/// # Errors
/// An invalid value, a device that cannot be opened, a server that does not answer.
pub fn run(config: &LoadConfig, on_event: &mut dyn FnMut(Event)) -> Result<LoadFigures, LoadError> {
    config.check()?;
    // Before any thread is started, so that all of them inherit the mask.
    let signals = Signals::block_termination().map_err(LoadError::Signals)?;
    let mut signal = None;
    let mut sleep = |time: Duration| wait_for_signal(&signals, time, &mut signal);
    let open = || {
        open(&ServeConfig {
            devices: vec![config.device.clone()],
            networks: vec![config.network],
            ..ServeConfig::default()
        })
    };
    let device = open()?;
    on_event(Event::Open(device.note.clone()));
    let figures = match config.ask {
        Protocol::Udp => {
            let wire = Wire::new(device.addresses, device.queues);
            let progress = Arc::<Progress>::default();
            let (shared, load) = (Arc::clone(&progress), config.clone());
            let body = move || {
                sched::pin(None, load.cpu.as_slice())?;
                datagrams::run(&load, wire, &shared)
            };
            run_with_progress(body, &progress, &mut sleep, on_event)
        }
        Protocol::Tcp | Protocol::Memcached => {
            let mut first = Some(device);
            let host = || {
                // The second client opens the device again: the first one has consumed it.
                let device = first.take().map_or_else(open, Ok)?;
                match <[_; 1]>::try_from(device.queues) {
                    Ok([queue]) => {
                        let (addresses, first_port) = (device.addresses, Some(any_port()));
                        Ok(Host { queue, addresses, first_port })
                    }
                    Err(queues) => Err(LoadError::Usage(format!(
                        "connections are asked by a device of one queue, and this one has {}",
                        queues.len()
                    ))),
                }
            };
            streams::run(config, host, &mut sleep)
        }
    }?;
    signals.discard_pending();
    Ok(LoadFigures { signal, ..figures })
}

/// Replays a capture file and returns the figures. A terminating signal ends it early.
///
/// # Errors
/// A file that is not a capture or is incomplete, with the offset; a failure to send.
pub fn replay(
    config: &ReplayConfig,
    on_event: &mut dyn FnMut(Event),
) -> Result<ReplayFigures, LoadError> {
    config.check()?;
    let signals = Signals::block_termination().map_err(LoadError::Signals)?;
    // The file first, so that an invalid one changes nothing on this host.
    let begun = Replay::begin(config)?;
    let device = open(&ServeConfig {
        devices: vec![config.device.clone()],
        networks: vec![config.network],
        ..ServeConfig::default()
    })?;
    on_event(Event::Open(device.note));
    let progress = Arc::<Progress>::default();
    let (shared, config) = (Arc::clone(&progress), config.clone());
    let body = move || begun.run(&config, device.queues, &shared);
    let mut signal = None;
    let mut sleep = |time: Duration| wait_for_signal(&signals, time, &mut signal);
    let figures = run_with_progress(body, &progress, &mut sleep, on_event)?;
    signals.discard_pending();
    Ok(ReplayFigures { signal, ..figures })
}

/// Sleeps until a terminating signal arrives, at most for `time`. Keeps the first signal in `first`, and returns
/// whether there was one.
fn wait_for_signal(signals: &Signals, time: Duration, first: &mut Option<i32>) -> bool {
    let received = signals.wait(time).map(|received| received.signal);
    *first = first.or(received);
    first.is_some()
}

/// Runs `body` on a thread of its own and reports progress every second; `sleep` returns whether to stop.
fn run_with_progress<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
    progress: &Progress,
    sleep: &mut dyn FnMut(Duration) -> bool,
    on_event: &mut dyn FnMut(Event),
) -> Result<T, LoadError> {
    let thread = std::thread::Builder::new().name("load".into()).spawn(body);
    let thread = thread.map_err(LoadError::Thread)?;
    let mut before = (0, 0);
    while !thread.is_finished() {
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < PERIOD {
            if sleep(Duration::from_millis(20)) {
                progress.stop.store(true, Relaxed);
            }
        }
        let now = (progress.sent.load(Relaxed), progress.answered.load(Relaxed));
        if !thread.is_finished() && now.0 > 0 {
            on_event(Event::Second { sent: now.0 - before.0, answered: now.1 - before.1 });
        }
        before = now;
    }
    thread.join().unwrap_or(Err(LoadError::Panicked))
}

/// A random ephemeral port, so that a server's state left by a killed client is not in the way.
fn any_port() -> u16 {
    let any = RandomState::new().build_hasher().finish();
    0xc000 | (any as u16 & 0x3fff)
}
