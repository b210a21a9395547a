//! TCP services on an engine: one thread per queue, which serves the connections whose segments arrive there.
//!
//! As with `SO_REUSEPORT` and one socket per queue, a connection stays with the thread of the queue that its flow
//! hashes to, and no TCP state is shared.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Engine, Placement, Relay};
use napkin_policy::Policy;
use napkin_service::memcached::{Limits, Memcached};
use napkin_service::nbd::{MemoryStore, TCP_LIMITS};
use napkin_service::{Nbd, Pump, StreamService};
use napkin_stack::TcpLimits;

use super::application::{APPLICATION, Progress, spawn};
use super::config::{Export, ServiceKind, Store};
use super::disk::Disk;
use super::error::ServeError;

/// A thread and its counters.
pub(super) type Started = (JoinHandle<()>, Arc<Progress>);

/// The state of a service that the threads of all devices share.
pub(super) enum Streams {
    Memcached(Memcached),
    Memory(Export, MemoryStore),
    Disk(Export, Disk),
}

impl Streams {
    /// Creates the state of a service; `None` for services of datagrams.
    ///
    /// # Errors
    /// Those of [`Streams::memcached`] and [`Streams::disk`].
    pub(super) fn of(what: &ServiceKind) -> Result<Option<Streams>, ServeError> {
        Ok(match what {
            ServiceKind::Datagrams(_) => None,
            ServiceKind::Memcached(limits) => Some(Streams::memcached(*limits)?),
            ServiceKind::Disk(export) => Some(Streams::disk(export)?),
        })
    }

    /// Creates an empty memcached.
    ///
    /// # Errors
    /// Invalid limits.
    fn memcached(limits: Limits) -> Result<Streams, ServeError> {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, seconds);
        let epoch = unix - seconds(Duration::from_nanos(napkin_engine::now()));
        let service = Memcached::new(limits, epoch)?.started_at(napkin_engine::now());
        Ok(Streams::Memcached(service))
    }

    /// Opens or creates a remote disk.
    ///
    /// # Errors
    /// The reason why the file, or memory of that size, cannot be served.
    fn disk(export: &Export) -> Result<Streams, ServeError> {
        let streams = match &export.store {
            Store::Memory(size) => {
                let store = MemoryStore::new(*size)?;
                // Check size and name before any device is opened.
                Nbd::new(&export.name, export.read_only, store.clone())?;
                Streams::Memory(export.clone(), store)
            }
            Store::File(path) => {
                let disk = Disk::open(path, export.read_only)?;
                Nbd::new(&export.name, export.read_only, disk.handle()?)?;
                Streams::Disk(export.clone(), disk)
            }
        };
        Ok(streams)
    }

    /// A warning for the user, in a sentence.
    pub(super) fn warning(&self) -> Option<&str> {
        match self {
            Streams::Disk(_, disk) => disk.warning(),
            Streams::Memcached(_) | Streams::Memory(..) => None,
        }
    }

    /// Starts the threads that serve `port` of `device`: one per queue, on the given CPUs (indices into the
    /// engine's CPUs). They end when the engine stops.
    pub(super) fn start(
        &self,
        engine: &Engine,
        device: &str,
        port: u16,
        policy: &Policy,
        cpus: &[CpuId],
    ) -> Result<Vec<Started>, ServeError> {
        let napis = engine.napis().into_iter().filter(|napi| napi.device == device);
        let mut started = Vec::new();
        for (napi, cpu) in napis.zip(cpus) {
            let mut place = Place { engine, device, port, policy, napi_id: napi.id, cpu: *cpu };
            started.push(self.serve_in(&mut place)?);
        }
        Ok(started)
    }

    /// Starts a thread of the service at `place`.
    pub(super) fn serve_in(&self, place: &mut impl StartService) -> Result<Started, ServeError> {
        match self {
            Streams::Memcached(service) => place.start(service.clone(), TcpLimits::DEFAULT, None),
            Streams::Memory(export, store) => {
                let service = Nbd::new(&export.name, export.read_only, store.clone())?;
                place.start(service, TCP_LIMITS, None)
            }
            Streams::Disk(export, disk) => {
                let store = disk.handle()?;
                let event = Arc::clone(store.event());
                let service = Nbd::new(&export.name, export.read_only, store)?;
                place.start(service, TCP_LIMITS, Some(event))
            }
        }
    }
}

/// Signals an event descriptor.
fn signal(event: &OwnedFd) {
    // The counter cannot be full, because a reader drains it.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Starts threads for byte-stream services, on an engine or on the operating system's sockets.
pub(super) trait StartService {
    /// Starts a thread. `event` is signalled when the service's asynchronous operations complete.
    fn start<S>(
        &mut self,
        service: S,
        limits: TcpLimits,
        event: Option<Arc<OwnedFd>>,
    ) -> Result<Started, ServeError>
    where
        S: StreamService + Send + 'static,
        S::Connection: Send;
}

/// The queue and the CPU of one thread.
struct Place<'a> {
    engine: &'a Engine,
    device: &'a str,
    port: u16,
    policy: &'a Policy,
    napi_id: u32,
    cpu: CpuId,
}

impl StartService for Place<'_> {
    fn start<S>(
        &mut self,
        service: S,
        limits: TcpLimits,
        event: Option<Arc<OwnedFd>>,
    ) -> Result<Started, ServeError>
    where
        S: StreamService + Send + 'static,
        S::Connection: Send,
    {
        let Place { engine, device, port, policy, napi_id, cpu } = *self;
        let mut worker = engine.stack(device)?.open_tcp(Some(napi_id), limits)?;
        worker.listen(port)?;
        let mut waits = ApplicationWait::new(engine, cpu, &worker.segments(), policy)?;
        let relay = |event| {
            let anywhere = Placement { cpus: engine.cpus(), ..Placement::default() };
            let name = format!("io/{device}-{napi_id}");
            Relay::start(name, anywhere, event, signal, waits.waker()).map_err(ServeError::Thread)
        };
        let relay = event.map(relay).transpose()?;
        let mut pump = Pump::new(service);
        let progress = Arc::<Progress>::default();
        let counted = Arc::clone(&progress);
        let own = engine.cpus().get(usize::from(cpu.0)).copied();
        let body = move || {
            let _relay = relay;
            // An error means that the engine has stopped.
            let _ = waits.serve(&mut worker, &mut pump, |worker, pump| {
                let counters = worker.counters();
                counted.received.store(pump.served, Ordering::Relaxed);
                counted.replied.store(pump.replied(), Ordering::Relaxed);
                counted.failed.store(counters.send_failures, Ordering::Relaxed);
                counted.no_listener.store(counters.unknown, Ordering::Relaxed);
                counted.no_place.store(counters.refused + counters.evicted, Ordering::Relaxed);
                true
            });
        };
        let thread =
            spawn(format!("{APPLICATION}{device}-{napi_id}"), own.into_iter().collect(), body)?;
        Ok((thread, progress))
    }
}
