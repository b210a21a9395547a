//! The time that requests spend within this host, measured on the server: without the client's help and without
//! changes to the program.
//!
//! Each request has three parts, and the whole of them ([`Part`]):
//! - in the **ring**: until the request's delivery. It starts at the interrupt, if that was enabled. Otherwise the
//!   arrival is unknown, and is drawn evenly from the time since the instance's ring was last polled;
//! - in the **socket**: from delivery, when the kernel signals that the socket has data, to the read
//!   that takes it;
//! - in **service**: from that read to the next send on the same connection.
//!
//! The programs (`program`) are attached where sockets receive data, are read and are written to, at `napi_poll`,
//! and where softirqs and instances' threads are woken. They sample a share of the connections, chosen by the
//! address of the socket; each [`Probe::rotate`] picks another share. For all others a program computes the address
//! and ends. Even that costs a saturated server some percent, so a monitor should detach the programs for most of
//! the time ([`Probe::pause`]). Times go into histograms ([`Histogram`]), one set for each instance. Nothing is
//! pinned: everything ends with the process.
//!
//! Not measured: the time before the network card writes a frame or raises its interrupt; the ring on loopback,
//! which has none; with RPS ([`Probe::set_steered`]), part of the wait at the other CPU; the instance of a request,
//! if another instance with the same lower 8 bits of its id holds their place in the table; splice and kernel TLS,
//! which bypass `recvmsg`; sends of an answer after its first; on some kernels (seen on a provider's 6.18.44, not
//! on Debian's) the ring time of frames received in softirqs that interrupted process 1, where tracing programs do
//! not run. Several requests that are read at once, or answered at once, count as one.

mod histogram;
mod layout;
mod owners;
mod probe;
mod program;
mod tables;

pub use histogram::{Histogram, Parts, Percentiles};
pub use probe::{Options, Probe, Reading};

/// A part of a request's time within the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// In the receive ring. If no wake-up marks the arrival, it is drawn evenly from the possible times.
    Ring,
    /// In the socket: from delivery to the read.
    Socket,
    /// In service: from the read to the send of the answer.
    Service,
    /// From the start of the first part to the end of the last.
    Whole,
}

impl Part {
    /// All parts, in the order in which a request passes through them.
    pub const ALL: [Part; 4] = [Part::Ring, Part::Socket, Part::Service, Part::Whole];

    /// Its name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Ring => "ring",
            Part::Socket => "socket",
            Part::Service => "service",
            Part::Whole => "whole",
        }
    }
}
