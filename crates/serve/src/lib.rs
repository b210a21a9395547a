//! What `napkin serve` does: an engine with real or synthetic devices and a service on each, or the same
//! service on the operating system's sockets, until a signal or the time ends it.
//!
//! One application thread a device receives as the device's policy says: through an `Epoll` with the
//! policy's parameters, or with blocking receive calls that busy poll where the policy sets the
//! sockets' options; memcached and the remote disk have a thread a queue. Everything of one run, threads
//! that poll included, stays on the CPUs that were given, so that the parts of their time add up. What
//! is printed, and where to, is the caller's.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod application;
mod below;
mod config;
mod device;
pub mod disk;
mod error;
mod made;
mod network;
mod server;
mod sockets;
mod status;
mod streams;
mod virtio;
mod xdp;
mod xdp_spec;

use std::time::{Duration, Instant};

use napkin_os::signals::Signals;

use error::both;

pub use config::{Datagrams, DeviceKind, DeviceSpec, Export, Listen, ServeConfig, Store, What};
pub use device::open;
pub use error::ServeError;
pub use made::Made;
pub use napkin_nic::faulty::Faults;
pub use napkin_service::memcached::Limits;
pub use network::Network;
pub use server::Server;
pub use status::{DeviceTotals, Status, Totals};
pub use virtio::{Side, Virtio};
pub use xdp_spec::XdpSpec;

/// From one status to the next.
const PERIOD: Duration = Duration::from_secs(1);

/// What happens in a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// Every thread runs, every device is open.
    Started(&'a Server),
    /// A second has passed.
    Status(Status),
    /// A device was removed from outside; the others go on.
    Gone(&'a str),
    /// Something was wrong with the other side of a virtio device, which is waited for again; the capture has ended; or
    /// a driver ignores busy polling: in a sentence.
    Trouble(&'a str),
    /// It has stopped, and this is what has happened in all: also where it ends with an error, which comes after it.
    Served(&'a Totals),
}

/// Serves until a signal comes, or for `limit`; returns the totals, which are told before as well.
///
/// # Errors
/// If it cannot start, a thread of the application ends before its time, the last device goes, the capture
/// cannot be written, or what was set of the kernel's cannot be put back.
pub fn run(
    config: &ServeConfig,
    limit: Option<Duration>,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Totals, ServeError> {
    // Before any other thread is made: they inherit it, and no packet's thread is interrupted.
    let signals = Signals::block_ends().map_err(ServeError::Signals)?;
    let mut server = Server::start(config)?;
    tell(Event::Started(&server));
    let served = until_an_end(&mut server, &signals, limit, tell);
    let (totals, stopped) = server.stop();
    tell(Event::Served(&totals));
    // Another signal did not end it before everything was put back (SIGQUIT does, should anything hang).
    signals.forget();
    both(served, stopped.map(|()| totals))
}

fn until_an_end(
    server: &mut Server,
    signals: &Signals,
    limit: Option<Duration>,
    tell: &mut dyn FnMut(Event<'_>),
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
            tell(Event::Gone(&device));
        }
        for trouble in server.troubles() {
            tell(Event::Trouble(&trouble));
        }
        if start.elapsed() >= next {
            // Not `+= PERIOD`: after a pause of the whole machine the missed ones are not made up.
            next = start.elapsed() + PERIOD;
            tell(Event::Status(server.status()));
        }
    }
}
