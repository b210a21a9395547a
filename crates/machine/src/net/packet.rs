//! A frame, without its bytes.

use napkin_core::Ns;

/// The treatment of a frame by the receiving stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// For a socket: a request, a datagram, a reply.
    Data,
    /// A bare acknowledgement: the stack consumes it and no socket sees it.
    Ack,
}

/// One frame, or a burst of segments that the NIC or the stack merges into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The flow, as an index into the machine's flows.
    pub flow: u32,
    /// The treatment by the stack.
    pub kind: Kind,
    /// Length on the wire in bytes, framing included.
    pub bytes: u32,
    /// A value of the sender's, which an answer carries back: a sequence number, a connection.
    pub tag: u64,
    /// Virtual time at which it was sent according to the sender: the start of its latency.
    pub stamp: Ns,
    /// Value of the delivering CPU's frame counter at delivery (see `Locality`).
    pub(super) delivered: u64,
    /// The CPU that delivered it.
    pub(super) cpu: u16,
}

impl Packet {
    /// Creates a frame of a flow.
    pub fn new(flow: u32, kind: Kind, bytes: u32, tag: u64, stamp: Ns) -> Self {
        Packet { flow, kind, bytes, tag, stamp, delivered: 0, cpu: 0 }
    }

    /// Returns the number of segments on the wire.
    pub fn segments(&self) -> u32 {
        if self.bytes <= SEGMENT { 1 } else { self.bytes.div_ceil(SEGMENT) }
    }

    /// Returns the length on the wire of `payload` bytes of a TCP stream that are sent together.
    pub fn wire_bytes(payload: u32) -> u32 {
        payload + payload.div_ceil(PAYLOAD).max(1) * (SEGMENT - PAYLOAD)
    }
}

/// Bytes of a full segment on the wire: an MTU of 1500, Ethernet header and checksum, preamble and gap.
const SEGMENT: u32 = 1_538;

/// TCP payload of a full segment in bytes: the MTU less the headers of IP and of TCP with timestamps.
pub const PAYLOAD: u32 = 1_448;
