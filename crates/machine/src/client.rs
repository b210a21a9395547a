//! The peer at the far end of the link.

use napkin_core::Ns;

use crate::machine::Machine;
use crate::net::packet::Packet;

/// The model of the peer: a load generator, a server that answers, or a sink.
///
/// It is called when a timer it set expires and for each frame that reaches it. It acts through
/// [`Machine::send_to_host`], [`Machine::client_timer`] and [`Machine::record`].
pub trait Client: core::fmt::Debug {
    /// Called first, at virtual time 0, before any event.
    fn start(&mut self, machine: &mut Machine<'_>);

    /// Called when a timer set with [`Machine::client_timer`] expires; `token` is the one given there.
    fn timer(&mut self, machine: &mut Machine<'_>, token: u64);

    /// Called when a frame from the host arrives.
    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet);

    /// Called when the window has ended at time `end`, with no event after it: requests still unanswered can be
    /// counted.
    fn end(&mut self, _end: Ns) {}
}

/// A client that sends nothing and discards what it receives.
#[derive(Debug, Clone, Copy, Default)]
pub struct SilentClient;

impl Client for SilentClient {
    fn start(&mut self, _: &mut Machine<'_>) {}
    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}
    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}
