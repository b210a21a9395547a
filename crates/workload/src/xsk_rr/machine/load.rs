//! The wire between the two hosts of `xsk_rr`, which are both of the one machine.
//!
//! The document ran the same program in the same configuration at both ends, so the other end is no
//! client that knows how long an answer takes, but a host of its own. What leaves one of them arrives
//! at the other, after the link.

use napkin_machine::{Client, Machine, Packet};

/// The wire: a frame's flow says where it arrives.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct XskPeer;

impl Client for XskPeer {
    fn start(&mut self, _: &mut Machine<'_>) {}

    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}

    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        machine.send_to_host(packet);
    }
}
