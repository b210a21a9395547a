//! Messages of several packets on a stream: segmentation, acknowledgement and copying.

use napkin_core::Ns;
use napkin_machine::{Kind, Machine, PAYLOAD, Packet};

/// Upper limit of the bytes of a stream in one packet between the host and its card: TSO to the card, and the same
/// on receive.
pub(crate) const BURST: u32 = 45 * PAYLOAD;

/// Calls `put` for each packet of a message, with its bytes on the wire and the number of packets that follow it.
pub(crate) fn packets(bytes: u32, mut put: impl FnMut(u32, u64)) {
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BURST);
        left -= part;
        put(Packet::wire_bytes(part), u64::from(left.div_ceil(BURST)));
    }
}

/// Acknowledges a packet that was read, if it has more than one segment.
pub(crate) fn acknowledge(machine: &mut Machine<'_>, packet: &Packet) {
    if packet.segments() > 1 {
        let queue = machine.queue_of(packet.flow);
        let bytes = Packet::wire_bytes(0);
        machine.transmit(queue, Packet::new(packet.flow, Kind::Ack, bytes, 0, 0));
    }
}

/// Returns the time for copying these bytes, at a cost per KiB.
pub(crate) fn copying(kibibyte: Ns, bytes: u32) -> Ns {
    kibibyte * Ns::from(bytes) / 1024
}
