//! The application: one thread a device that waits as its policy says, and serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use napkin_core::CpuId;
use napkin_engine::{Blocking, Engine, Epoll, Poller, sched};
use napkin_policy::Ns;
use napkin_policy::Policy;
use napkin_policy::SocketPoller;
use napkin_service::{Echo, Service, Sink, discard};
use napkin_stack::{Datagram, Exchange, Receiver, SendError, Socket, UdpSocket};

use super::config::What;
use super::error::ServeError;

/// Frames that wait in a socket at most.
const RECEIVE_BUFFER: usize = 1_024;

/// Datagrams that are served before the next wait.
const BATCH: usize = 64;

/// What one application has done.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) received: AtomicU64,
    pub(super) replied: AtomicU64,
    pub(super) failed: AtomicU64,
    /// From the port of a service, and so not answered.
    pub(super) refused: AtomicU64,
}

/// A socket that is both waited for and served: the two want to own it.
#[derive(Debug, Clone)]
struct Shared(Arc<UdpSocket>);

impl Socket for Shared {
    fn receiver(&self) -> &Arc<Receiver> {
        self.0.receiver()
    }
}

impl Exchange for Shared {
    type Message = Datagram;
    type Error = SendError;

    fn try_recv(&self) -> Option<Datagram> {
        self.0.try_recv()
    }

    fn echo(&self, message: Datagram, now: Ns) -> Result<(), SendError> {
        self.0.echo(message, now)
    }

    fn reply(&self, message: Datagram, payload: &[u8], now: Ns) -> Result<(), SendError> {
        self.0.reply(message, payload, now)
    }
}

/// The service, and the counts that it makes public.
struct Serving {
    service: Kind,
    progress: Arc<Progress>,
}

enum Kind {
    Echo(Echo<Shared>),
    Sink(Sink<Shared, fn(&Datagram)>),
}

impl Serving {
    fn new(what: What, socket: Shared, progress: Arc<Progress>) -> Serving {
        let service = match what {
            What::Echo => Kind::Echo(Echo::new(socket)),
            What::Sink => Kind::Sink(Sink::new(socket, discard)),
        };
        Serving { service, progress }
    }

    fn serve(&mut self) {
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
        }
    }
}

/// How a thread waits.
enum Wait {
    Epoll(Epoll),
    Blocking(Blocking<Shared>),
}

impl Wait {
    /// Waits until there is something to serve; `None` once the engine has stopped.
    fn wait(&self, events: &mut Vec<napkin_engine::Event>) -> Option<bool> {
        match self {
            Wait::Epoll(epoll) => {
                epoll.wait(events, 1, None).ok()?;
                Some(!events.is_empty())
            }
            Wait::Blocking(blocking) => blocking.wait(None).ok(),
        }
    }
}

/// Starts the threads that serve `port` of `device` on one CPU (the engine's own number). They end
/// when the engine stops.
pub(super) fn start(
    engine: &Engine,
    device: &str,
    (what, port): (What, u16),
    policy: &Policy,
    cpu: CpuId,
    progress: &Arc<Progress>,
) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let socket = engine.stack(device)?.bind_udp(port, RECEIVE_BUFFER)?;
    let socket = Shared(Arc::new(socket));
    let mut poller = None;
    let wait = if policy.application.socket_busy_polls() {
        let blocking = Blocking::new(engine, cpu, socket.clone(), policy.application)?;
        if policy.application.socket_poller == SocketPoller::Separate {
            poller = Some(blocking.poller(cpu));
        }
        Wait::Blocking(blocking)
    } else {
        let mut epoll = Epoll::new(engine, cpu, policy.epoll)?;
        epoll.set_spin(policy.application.spin);
        epoll.add(&socket, 0)?;
        Wait::Epoll(epoll)
    };
    let mut serving = Serving::new(what, socket, Arc::clone(progress));
    let cpus = engine.cpus();
    let own = cpus.get(usize::from(cpu.0)).copied();
    let mut threads = vec![spawn(format!("app/{device}"), own.into_iter().collect(), move || {
        let mut events = Vec::with_capacity(1);
        while let Some(ready) = wait.wait(&mut events) {
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

fn spawn(
    mut name: String,
    cpus: Vec<usize>,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ServeError> {
    // As many bytes as the operating system shows.
    name.truncate(name.floor_char_boundary(15));
    let body = move || {
        // The engine has its threads there, so this one may be there, too.
        let _ = sched::pin(None, &cpus);
        body();
    };
    std::thread::Builder::new().name(name).spawn(body).map_err(ServeError::Thread)
}
