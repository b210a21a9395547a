//! Messages of several packets on a stream: how they are cut, acknowledged and copied.

use napkin_core::Ns;
use napkin_machine::{Kind, Machine, PAYLOAD, Packet};

/// Bytes of a stream that the host hands to its card at once (TSO), and the card to the host.
pub(crate) const BURST: u32 = 45 * PAYLOAD;

/// Calls `put` with each packet's bytes of a message, and how many follow it.
pub(crate) fn packets(bytes: u32, mut put: impl FnMut(u32, u64)) {
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BURST);
        left -= part;
        put(Packet::wire_bytes(part), u64::from(left.div_ceil(BURST)));
    }
}

/// Acknowledges what was read, at once if that is more than a segment.
pub(crate) fn acknowledge(machine: &mut Machine<'_>, packet: &Packet) {
    if packet.segments() > 1 {
        let queue = machine.queue_of(packet.flow);
        let bytes = Packet::wire_bytes(0);
        machine.transmit(queue, Packet::new(packet.flow, Kind::Ack, bytes, 0, 0));
    }
}

/// What copying so many bytes takes, at a cost a kibibyte.
pub(crate) fn copying(kibibyte: Ns, bytes: u32) -> Ns {
    kibibyte * Ns::from(bytes) / 1024
}
