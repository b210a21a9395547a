//! The application: one thread a device that waits as its policy says, and serves.

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

/// Frames that wait in a socket at most.
const RECEIVE_BUFFER: usize = 1_024;

/// Datagrams that are served before the next wait.
const BATCH: usize = 64;

/// What the names of its threads begin with.
pub(super) const APPLICATION: &str = "app/";

/// What one application has done.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) received: AtomicU64,
    pub(super) replied: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Not answered: from the port of a service.
    pub(super) refused: AtomicU64,
    /// Not answered, for it was none.
    pub(super) no_request: AtomicU64,
    /// Segments of no connection, to a TCP port that is not served.
    pub(super) no_listener: AtomicU64,
    /// TCP connections that were not begun, or pushed out half-open, for want of room.
    pub(super) no_place: AtomicU64,
}

/// The service, and the counts that it makes public.
pub(super) struct Serving<S: UdpExchange> {
    pub(super) service: Kind<S>,
    pub(super) progress: Arc<Progress>,
}

/// A service on one UDP socket, of the stack's or of the operating system's.
pub(super) enum Kind<S: UdpExchange> {
    Echo(Echo<S>),
    Sink(Sink<S, fn(&S::Message)>),
    Memcached(MemcachedUdp<S>),
}

impl<S: UdpExchange> Kind<S> {
    pub(super) fn of(what: Datagrams, socket: S) -> Kind<S> {
        match what {
            Datagrams::Echo => Kind::Echo(Echo::new(socket)),
            Datagrams::Sink => Kind::Sink(Sink::new(socket, discard)),
        }
    }

    pub(super) fn socket(&self) -> &S {
        match self {
            Kind::Echo(echo) => echo.socket(),
            Kind::Sink(sink) => sink.socket(),
            Kind::Memcached(memcached) => memcached.socket(),
        }
    }
}

impl<S: UdpExchange> Serving<S> {
    pub(super) fn serve(&mut self) {
        let now = napkin_engine::now();
        // One writer: a store will do.
        let progress = &self.progress;
        match &mut self.service {
            Kind::Echo(echo) => {
                echo.serve_ready(now, BATCH);
                let (answered, failed, refused) = (echo.answered(), echo.failed(), echo.refused());
                progress.received.store(answered + failed + refused, Ordering::Relaxed);
                progress.replied.store(answered, Ordering::Relaxed);
                progress.failed.store(failed, Ordering::Relaxed);
                progress.refused.store(refused, Ordering::Relaxed);
            }
            Kind::Sink(sink) => {
                sink.serve_ready(now, BATCH);
                progress.received.store(sink.messages(), Ordering::Relaxed);
            }
            Kind::Memcached(memcached) => {
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

/// Starts the threads that serve `port` of `device` on one CPU (the engine's own number). They end
/// when the engine stops.
pub(super) fn start(
    engine: &Engine,
    device: &str,
    (service, port): (impl FnOnce(UdpSocket) -> Kind<UdpSocket>, u16),
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
            // An error is the engine's end.
            while let Ok(ready) = waits.wait(None) {
                if ready {
                    serving.serve();
                }
            }
        })?];
    if let Some(poller) = poller {
        // It never sleeps, so it may go wherever there is room.
        threads.push(spawn(format!("poll/{device}"), cpus, move || poll(&poller))?);
    }
    Ok(threads)
}

/// A thread that does nothing but calls which poll.
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
    // As many bytes as the operating system shows.
    name.truncate(name.floor_char_boundary(15));
    let body = move || {
        // The engine has its threads there, or it was tried: this one may be there, too.
        let _ = sched::pin(None, &cpus);
        body();
    };
    std::thread::Builder::new().name(name).spawn(body).map_err(ServeError::Thread)
}
