//! What travels: a frame as the machine sees it, without its bytes.

use napkin_core::Ns;

/// What the receiving side makes of a frame.
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
    /// Which flow it belongs to: an index into the machine's flows.
    pub flow: u32,
    /// What the stack makes of it.
    pub kind: Kind,
    /// Its length on the wire in bytes, framing included.
    pub bytes: u32,
    /// Whatever the sender wants to find again in the answer: a sequence number, a connection.
    pub tag: u64,
    /// When the sender says that it was sent: the start of a latency.
    pub stamp: Ns,
    /// Frames delivered on the CPU that delivered this one, at that moment (see `Locality`).
    pub(super) delivered: u64,
    /// The CPU that delivered it.
    pub(super) cpu: u16,
}

impl Packet {
    /// A frame of a flow.
    pub fn new(flow: u32, kind: Kind, bytes: u32, tag: u64, stamp: Ns) -> Self {
        Packet { flow, kind, bytes, tag, stamp, delivered: 0, cpu: 0 }
    }

    /// Segments that it was on the wire.
    pub fn segments(&self) -> u32 {
        if self.bytes <= SEGMENT { 1 } else { self.bytes.div_ceil(SEGMENT) }
    }

    /// The length on the wire of so many bytes of a TCP stream that travel together.
    pub fn wire_bytes(payload: u32) -> u32 {
        payload + payload.div_ceil(PAYLOAD).max(1) * (SEGMENT - PAYLOAD)
    }
}

/// Bytes of a full segment on the wire: 1500, Ethernet's header and checksum, preamble and gap.
const SEGMENT: u32 = 1_538;

/// Bytes of a full segment that are the stream's: headers of IP and of TCP with time stamps go off.
pub const PAYLOAD: u32 = 1_448;
