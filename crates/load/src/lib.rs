//! What `napkin load` does: asks a service by a packet queue of its own, without the kernel's sockets.
//!
//! One thread polls the device and never sleeps: it is to be no part of what it measures. Datagrams go by
//! a schedule that waits for no answer, or as fast as the device takes them; connections ask by a schedule
//! or each as soon as it was answered. What is asked for and not sent is told, and a latency begins when a
//! request was due.
//!
//! Or it sends the frames of a captured file again ([`replay`]), as they are or between other addresses.
//!
//! Not here: routers, several threads.
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

pub use config::{Ask, HIGHEST_RATE, LEAST_BYTES, LoadConfig, MOST_DATAGRAM, MOST_FLOWS};
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

/// How often it is told how it goes.
const PERIOD: Duration = Duration::from_secs(1);

/// What is told while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The device is open: what it is.
    Open(String),
    /// So many datagrams were sent and answered in the last second.
    Second {
        /// Datagrams that the device took.
        sent: u64,
        /// Datagrams that came back.
        answered: u64,
    },
}

/// Asks, and says what was seen. A signal that ends programs ends it early, with what there is.
///
/// # Errors
/// What keeps it from asking: values that make no sense, a device that cannot be had, nobody there.
pub fn run(config: &LoadConfig, tell: &mut dyn FnMut(Event)) -> Result<LoadFigures, LoadError> {
    config.check()?;
    // Before any other thread is made: none of them is interrupted.
    let signals = Signals::block_ends().map_err(LoadError::Signals)?;
    let mut signal = None;
    let mut sleep = |time: Duration| has_come(&signals, time, &mut signal);
    let open = || {
        open(&ServeConfig {
            devices: vec![config.device.clone()],
            networks: vec![config.network],
            ..ServeConfig::default()
        })
    };
    let device = open()?;
    tell(Event::Open(device.note.clone()));
    let figures = match config.ask {
        Ask::Udp => {
            let wire = Wire::new(device.addresses, device.queues);
            let progress = Arc::<Progress>::default();
            let (theirs, load) = (Arc::clone(&progress), config.clone());
            let body = move || {
                sched::pin(None, load.cpu.as_slice())?;
                datagrams::run(&load, wire, &theirs)
            };
            watched(body, &progress, &mut sleep, tell)
        }
        Ask::Tcp | Ask::Memcached => {
            let mut first = Some(device);
            let host = || {
                // A second client opens it anew: the first took it along.
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
    signals.forget();
    Ok(LoadFigures { signal, ..figures })
}

/// Sends a captured file's frames again, and says what became of them. A signal that ends programs ends it early.
///
/// # Errors
/// A file that is none, or that is not whole: with the byte; what keeps it from sending.
pub fn replay(
    config: &ReplayConfig,
    tell: &mut dyn FnMut(Event),
) -> Result<ReplayFigures, LoadError> {
    config.check()?;
    let signals = Signals::block_ends().map_err(LoadError::Signals)?;
    // First the file: what is no capture changes nothing on this host.
    let begun = Replay::begin(config)?;
    let device = open(&ServeConfig {
        devices: vec![config.device.clone()],
        networks: vec![config.network],
        ..ServeConfig::default()
    })?;
    tell(Event::Open(device.note));
    let progress = Arc::<Progress>::default();
    let (theirs, config) = (Arc::clone(&progress), config.clone());
    let body = move || begun.run(&config, device.queues, &theirs);
    let mut signal = None;
    let mut sleep = |time: Duration| has_come(&signals, time, &mut signal);
    let figures = watched(body, &progress, &mut sleep, tell)?;
    signals.forget();
    Ok(ReplayFigures { signal, ..figures })
}

/// Sleeps until a signal that ends programs comes, so long at most. Whether one has come by now: the first.
fn has_come(signals: &Signals, time: Duration, first: &mut Option<i32>) -> bool {
    let came = signals.wait(time).map(|came| came.signal);
    *first = first.or(came);
    first.is_some()
}

/// Does the work on a thread of its own and tells every second how it goes; `sleep` says whether to stop.
fn watched<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
    progress: &Progress,
    sleep: &mut dyn FnMut(Duration) -> bool,
    tell: &mut dyn FnMut(Event),
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
            tell(Event::Second { sent: now.0 - before.0, answered: now.1 - before.1 });
        }
        before = now;
    }
    thread.join().unwrap_or(Err(LoadError::Panicked))
}

/// Any ephemeral port: what a client that was killed has left at a server is then not in the way.
fn any_port() -> u16 {
    let any = RandomState::new().build_hasher().finish();
    0xc000 | (any as u16 & 0x3fff)
}
