//! The other end of a ping: a host that answers every echo request after a fixed time.

use napkin_core::Ns;
use napkin_machine::{Client, Kind, Machine, Packet};

/// The answering host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// Time from a request's last bit to its answer's first bit.
    pub delay: Ns,
}

impl Client for Peer {
    fn start(&mut self, _: &mut Machine<'_>) {}

    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}

    fn receive(&mut self, machine: &mut Machine<'_>, request: Packet) {
        let answer =
            Packet::new(request.flow, Kind::Data, request.bytes, request.tag, request.stamp);
        machine.send_to_host_at(machine.now() + self.delay, answer);
    }
}
