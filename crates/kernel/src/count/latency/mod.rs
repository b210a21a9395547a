//! How long a request is within this host, told from the server's side: with no client's help and no
//! change to the program.
//!
//! Of each request three parts, and the whole of them ([`Part`]):
//! - in the **ring**: to the request's delivery from when the interrupt came, if it was on; otherwise from a time that
//!   is drawn evenly from those since its instance's ring was last looked into, for it came then, nobody knows when;
//! - in the **socket**: from delivery, when the kernel says that the socket has data, to the read
//!   that takes it;
//! - in **service**: from that read to the next send on the same connection.
//!
//! Programs (`program`) stand where sockets get data, are read and are written to, at `napi_poll`, and
//! where softirqs and instances' threads are asked for. Only a share of the connections is looked at, chosen by the address
//! of the socket, and another share after each [`Probe::rotate`]; of all others a program sees the
//! address and ends. Even that costs a saturated server some percent, so that whoever watches one takes
//! the programs away for most of the time ([`Probe::pause`]). Times go into histograms ([`Histogram`]), a set for each instance. Nothing is
//! pinned: all of it goes with the process.
//!
//! What it does not see: what the network card waits before it writes a frame or raises its
//! interrupt; on loopback the ring, for there is none; with RPS ([`Probe::handed_over`]) part of what waits at
//! the other CPU; of instances whose ids have the same lower 8 bits, which one it was, but for the one that has their
//! place; splice and kernel TLS, which pass by `recvmsg`; an answer of several sends beyond its first; on some kernels
//! (seen on a provider's 6.18.44, not on Debian's) the ring of what came in softirqs that interrupted process 1, in
//! which tracing programs do not run there. Several requests that one read takes, or one send answers, are one.

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
    /// In the receive ring; where nobody was woken for it, drawn evenly from what it can have been.
    Ring,
    /// In the socket: from delivery to the read.
    Socket,
    /// From the read to the send that answers.
    Service,
    /// From the beginning of the first to the end of the last.
    Whole,
}

impl Part {
    /// All, in the order in which a request goes through them.
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
