//! The same services on the operating system's own sockets: threads that share a port, without an engine and
//! without devices.
//!
//! The kernel's delivery to these sockets is not configured here: `napkin run` can put this program under a policy,
//! like any other.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use napkin_service::memcached::MemcachedUdp;
use napkin_service::{Pump, StreamService};
use napkin_sockets::{OsTcp, OsUdp, Protocol, Waker, check_free};
use napkin_stack::TcpLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::application::{APPLICATION, Progress, Serving, UdpService, spawn};
use super::config::{Listen, ServeConfig, ServiceKind};
use super::error::ServeError;
use super::streams::{StartService, Started, Streams};

/// A handle that ends the threads when it is dropped.
#[derive(Debug)]
pub(super) struct Sockets {
    ends: Arc<AtomicBool>,
    wakers: Vec<Waker>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.wakers.iter().for_each(Waker::wake);
    }
}

/// Starts the threads, each with the name that errors use for it. They end when the returned `Sockets` is dropped.
pub(super) fn start(
    config: &ServeConfig,
    listen: Listen,
    cpus: &[usize],
    streams: Option<&Streams>,
) -> Result<(Sockets, Vec<(String, Started)>), ServeError> {
    let address = SocketAddr::new(listen.address, config.port);
    let free = |protocol| {
        check_free(protocol, address).map_err(|source| ServeError::Listen { address, source })
    };
    if streams.is_some() {
        free(Protocol::Tcp)?;
        allow_descriptors();
    }
    if streams.is_none() || config.udp {
        free(Protocol::Udp)?;
    }
    let sockets = Sockets { ends: Arc::default(), wakers: Vec::new() };
    let mut place = Place { address, cpus, number: 0, sockets };
    let mut started = Vec::new();
    for _ in 0..listen.threads {
        let one = match (&config.what, streams) {
            (_, Some(streams)) => streams.serve_in(&mut place)?,
            (ServiceKind::Datagrams(what), None) => {
                place.datagrams(|socket| UdpService::of(*what, socket))?
            }
            // `streams` is set for every service but those of datagrams.
            (_, None) => break,
        };
        started.push((format!("{address}"), one));
    }
    if let Some(Streams::Memcached(service)) = streams
        && config.udp
    {
        let service = service.clone();
        let one =
            place.datagrams(|socket| UdpService::Memcached(MemcachedUdp::new(socket, service)))?;
        started.push((format!("{address} (UDP)"), one));
    }
    Ok((place.sockets, started))
}

/// Raises the limit of open descriptors to the hard limit: each connection needs one.
fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // On failure, connections beyond the limit are refused and counted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The parameters of the next thread to start.
struct Place<'a> {
    address: SocketAddr,
    /// The CPUs of all threads together.
    cpus: &'a [usize],
    number: usize,
    sockets: Sockets,
}

impl Place<'_> {
    fn failed(&self, source: std::io::Error) -> ServeError {
        ServeError::Listen { address: self.address, source }
    }

    fn name(&self) -> String {
        format!("{APPLICATION}{}", self.number)
    }

    fn datagrams(
        &mut self,
        service: impl FnOnce(OsUdp) -> UdpService<OsUdp>,
    ) -> Result<Started, ServeError> {
        let socket = OsUdp::bind(self.address).map_err(|error| self.failed(error))?;
        self.sockets.wakers.push(socket.waker());
        let progress = Arc::<Progress>::default();
        let mut serving = Serving { service: service(socket), progress: Arc::clone(&progress) };
        let ends = Arc::clone(&self.sockets.ends);
        let thread = spawn(self.name(), self.cpus.to_vec(), move || {
            while !ends.load(Ordering::Acquire) {
                match serving.service.socket().wait(None) {
                    Ok(true) => serving.serve(),
                    Ok(false) => {}
                    Err(_) => break,
                }
            }
        })?;
        self.number += 1;
        Ok((thread, progress))
    }
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
        let tcp = OsTcp::listen(self.address, limits.connections);
        let mut tcp = tcp.map_err(|error| self.failed(error))?;
        self.sockets.wakers.push(tcp.waker());
        if let Some(event) = event {
            tcp.watch(event).map_err(|error| self.failed(error))?;
        }
        let mut pump = Pump::new(service);
        let progress = Arc::<Progress>::default();
        let (counted, ends) = (Arc::clone(&progress), Arc::clone(&self.sockets.ends));
        let thread = spawn(self.name(), self.cpus.to_vec(), move || {
            let goes_on = |tcp: &OsTcp<_>, pump: &Pump<S>| {
                counted.received.store(pump.served, Ordering::Relaxed);
                counted.replied.store(pump.replied(), Ordering::Relaxed);
                counted.no_place.store(tcp.counters().refused, Ordering::Relaxed);
                !ends.load(Ordering::Acquire)
            };
            // The server's check reports a thread that ended early.
            let _ = tcp.serve(&mut pump, napkin_engine::now, goes_on);
        })?;
        self.number += 1;
        Ok((thread, progress))
    }
}
