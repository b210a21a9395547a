//! The application: one thread per device that waits as the device's policy says, and serves one UDP socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Engine, Poller, sched};
use napkin_policy::Policy;
use napkin_service::memcached::MemcachedUdp;
use napkin_service::{Echo, Service, Sink, discard};
use napkin_stack::{UdpExchange, UdpSocket};

use super::config::Datagrams;
use super::error::ServeError;

/// Receive buffer of a socket, in frames.
const RECEIVE_BUFFER: usize = 1_024;

/// Datagrams served before the next wait.
const BATCH: usize = 64;

/// Prefix of the names of the application's threads.
pub(super) const APPLICATION: &str = "app/";

/// Counters of one application thread.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) received: AtomicU64,
    pub(super) replied: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Not answered, because they came from a service's port.
    pub(super) refused: AtomicU64,
    /// Not answered, because they were not valid requests.
    pub(super) no_request: AtomicU64,
    /// TCP segments that belong to no connection and to no listening port.
    pub(super) no_listener: AtomicU64,
    /// TCP connections that were refused, or evicted while half-open, for lack of space.
    pub(super) no_place: AtomicU64,
}

/// A service, and the counters that it publishes.
pub(super) struct Serving<S: UdpExchange> {
    pub(super) service: UdpService<S>,
    pub(super) progress: Arc<Progress>,
}

/// A service on one UDP socket, of the stack or of the operating system.
pub(super) enum UdpService<S: UdpExchange> {
    Echo(Echo<S>),
    Sink(Sink<S, fn(&S::Message)>),
    Memcached(MemcachedUdp<S>),
}

impl<S: UdpExchange> UdpService<S> {
    pub(super) fn of(what: Datagrams, socket: S) -> UdpService<S> {
        match what {
            Datagrams::Echo => UdpService::Echo(Echo::new(socket)),
            Datagrams::Sink => UdpService::Sink(Sink::new(socket, discard)),
        }
    }

    pub(super) fn socket(&self) -> &S {
        match self {
            UdpService::Echo(echo) => echo.socket(),
            UdpService::Sink(sink) => sink.socket(),
            UdpService::Memcached(memcached) => memcached.socket(),
        }
    }
}

impl<S: UdpExchange> Serving<S> {
    pub(super) fn serve(&mut self) {
        let now = napkin_engine::now();
        // There is one writer, so that a store is enough.
        let progress = &self.progress;
        match &mut self.service {
            UdpService::Echo(echo) => {
                echo.serve_ready(now, BATCH);
                let (answered, failed, refused) = (echo.answered(), echo.failed(), echo.refused());
                progress.received.store(answered + failed + refused, Ordering::Relaxed);
                progress.replied.store(answered, Ordering::Relaxed);
                progress.failed.store(failed, Ordering::Relaxed);
                progress.refused.store(refused, Ordering::Relaxed);
            }
            UdpService::Sink(sink) => {
                sink.serve_ready(now, BATCH);
                progress.received.store(sink.messages(), Ordering::Relaxed);
            }
            UdpService::Memcached(memcached) => {
                memcached.serve_ready(now, BATCH);
                let (served, failed) = (memcached.served(), memcached.failed());
                let replied = served.saturating_sub(failed + memcached.silent());
                progress.received.store(served, Ordering::Relaxed);
                progress.replied.store(replied, Ordering::Relaxed);
                progress.failed.store(failed, Ordering::Relaxed);
                progress.refused.store(memcached.refused(), Ordering::Relaxed);
                progress.no_request.store(memcached.no_request(), Ordering::Relaxed);
            }
        }
    }
}

/// Starts the threads that serve `port` of `device`, on one CPU (an index into the engine's CPUs). They end when
/// the engine stops.
pub(super) fn start(
    engine: &Engine,
    device: &str,
    (service, port): (impl FnOnce(UdpSocket) -> UdpService<UdpSocket>, u16),
    policy: &Policy,
    cpu: CpuId,
    progress: &Arc<Progress>,
) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let socket = engine.stack(device)?.bind_udp(port, RECEIVE_BUFFER)?;
    let mut waits = ApplicationWait::new(engine, cpu, &socket, policy)?;
    let poller = waits.poller(cpu);
    let mut serving = Serving { service: service(socket), progress: Arc::clone(progress) };
    let cpus = engine.cpus();
    let own = cpus.get(usize::from(cpu.0)).copied();
    let mut threads =
        vec![spawn(format!("{APPLICATION}{device}"), own.into_iter().collect(), move || {
            // An error means that the engine has stopped.
            while let Ok(ready) = waits.wait(None) {
                if ready {
                    serving.serve();
                }
            }
        })?];
    if let Some(poller) = poller {
        // It never sleeps, so it may run on any of the engine's CPUs.
        threads.push(spawn(format!("poll/{device}"), cpus, move || poll(&poller))?);
    }
    Ok(threads)
}

/// The body of a thread that does nothing but busy poll.
fn poll(poller: &Poller) {
    while poller.poll().is_ok() {
        std::hint::spin_loop();
    }
}

pub(super) fn spawn(
    mut name: String,
    cpus: Vec<usize>,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    // The length in bytes to which Linux truncates thread names.
    name.truncate(name.floor_char_boundary(15));
    let body = move || {
        // Expected to succeed: the engine has pinned its threads to these CPUs, or it was tried before.
        let _ = sched::pin(None, &cpus);
        body();
    };
    std::thread::Builder::new().name(name).spawn(body).map_err(ServeError::Thread)
}
