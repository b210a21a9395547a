//! The wire between the two hosts of `xsk_rr`, both of which are part of the one machine.
//!
//! The document ran the same program in the same configuration at both ends. So the other end is not a client with
//! a known answering time, but a full host. A frame that leaves one host arrives at the other after the link's
//! delay.

use napkin_machine::{Client, Machine, Packet};

/// The wire; a frame's flow determines its destination.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct XskPeer;

impl Client for XskPeer {
    fn start(&mut self, _: &mut Machine<'_>) {}

    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}

    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        machine.send_to_host(packet);
    }
}
