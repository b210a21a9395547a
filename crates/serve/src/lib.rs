//! The implementation of `napkin serve`: runs an engine with real or synthetic devices and a service on each, or
//! the same service on the operating system's sockets, until a signal or a time limit.
//!
//! One application thread per device receives as the device's policy says: through an `Epoll` with the policy's
//! parameters, or with blocking receive calls that busy poll if the policy sets the socket options. memcached and
//! the remote disk have one thread per queue. All threads of a run, including those that poll, stay on the given
//! CPUs, so that the shares of CPU time add up. Output is left to the caller.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod application;
mod config;
mod device;
pub mod disk;
mod error;
mod network;
mod open_device;
mod server;
mod sockets;
mod status;
mod streams;
mod virtio;
mod xdp;
mod xdp_deferral;
mod xdp_spec;

use std::time::{Duration, Instant};

use napkin_os::signals::Signals;

use error::both;

pub use config::{
    Datagrams, DeviceKind, DeviceSpec, Export, Listen, ServeConfig, ServiceKind, Store,
};
pub use device::open;
pub use error::ServeError;
pub use napkin_nic::faulty::Faults;
pub use napkin_service::memcached::Limits;
pub use network::Network;
pub use open_device::OpenDevice;
pub use server::Server;
pub use status::{DeviceTotals, Status, Totals};
pub use virtio::{Side, Virtio};
pub use xdp_spec::XdpSpec;

/// Time between two status reports.
const PERIOD: Duration = Duration::from_secs(1);

/// An event of a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// All devices are open and all threads run.
    Started(&'a Server),
    /// Sent once a second.
    Status(Status),
    /// A device was removed from outside; the others continue.
    DeviceRemoved(&'a str),
    /// A problem, in a sentence: with the peer of a virtio device, which is waited for again; with the capture,
    /// which has ended; or with a driver that ignores busy polling.
    Problem(&'a str),
    /// The server has stopped; these are the totals. Also sent before an error is returned.
    Served(&'a Totals),
}

/// Serves until a signal arrives, or for `limit`. Returns the totals, which are also sent as an event.
///
/// # Errors
/// If it cannot start, a thread of the application ends early, the last device is removed, the capture cannot be
/// written, or the kernel's settings cannot be restored.
pub fn run(
    config: &ServeConfig,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Totals, ServeError> {
    // Before any other thread is created: threads inherit the mask, so that no signal interrupts packet processing.
    let signals = Signals::block_termination().map_err(ServeError::Signals)?;
    let mut server = Server::start(config)?;
    on_event(Event::Started(&server));
    let served = until_an_end(&mut server, &signals, limit, on_event);
    let (totals, stopped) = server.stop();
    on_event(Event::Served(&totals));
    // Until here a second signal could not interrupt the restoring (SIGQUIT can, should anything hang).
    signals.discard_pending();
    both(served, stopped.map(|()| totals))
}

fn until_an_end(
    server: &mut Server,
    signals: &Signals,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), ServeError> {
    let start = Instant::now();
    let mut next = PERIOD;
    loop {
        let elapsed = start.elapsed();
        if limit.is_some_and(|limit| elapsed >= limit) {
            return Ok(());
        }
        let until = limit.map_or(next, |limit| limit.min(next));
        if signals.wait(until.saturating_sub(elapsed)).is_some() {
            return Ok(());
        }
        for device in server.check()? {
            on_event(Event::DeviceRemoved(&device));
        }
        for trouble in server.troubles() {
            on_event(Event::Problem(&trouble));
        }
        if start.elapsed() >= next {
            // Not `+= PERIOD`: after a suspend of the machine, missed reports are not made up for.
            next = start.elapsed() + PERIOD;
            on_event(Event::Status(server.status()));
        }
    }
}
