//! The other side of the link.

use napkin_core::Ns;

use crate::machine::Machine;
use crate::net::packet::Packet;

/// What sends to the host and measures: a load generator, a peer that answers, a sink.
///
/// It is asked at the times it asked for and for each frame that reaches it, and acts through the
/// machine: [`Machine::send_to_host`], [`Machine::client_timer`], [`Machine::record`].
pub trait Client: core::fmt::Debug {
    /// Virtual time begins, at 0: the first call, before anything has happened.
    fn start(&mut self, machine: &mut Machine<'_>);

    /// A time that it asked for has come.
    fn timer(&mut self, machine: &mut Machine<'_>, token: u64);

    /// A frame of the host has reached it.
    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet);

    /// The window ended at this time, and nothing follows: what is still owed can be counted.
    fn end(&mut self, _end: Ns) {}
}

/// A client that sends nothing and takes whatever reaches it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Client for Nobody {
    fn start(&mut self, _: &mut Machine<'_>) {}
    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}
    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}
