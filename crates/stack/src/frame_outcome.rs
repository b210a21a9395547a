//! The outcome of each received frame, and the counters of outcomes.
//!
//! Every frame has exactly one [`FrameOutcome`], decided by one function and counted in one place, so frames received =
//! delivered + answered + learned + dropped by reason, and no frame can be lost between two counters. Each queue
//! writes its own counters, in cache lines that no other queue writes; a reader adds them up. Sums read while
//! traffic flows may be a few frames apart; they are exact once the queues are idle.

use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of one received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum FrameOutcome {
    /// Put into a socket's receive buffer.
    Delivered,
    /// Answered by the stack: an ARP request for one of our addresses.
    AnsweredArp,
    /// Answered by the stack: a neighbour solicitation, IPv6's counterpart of an ARP request, including one that
    /// probes for a duplicate address.
    AnsweredNdisc,
    /// Answered by the stack: an ICMP or ICMPv6 echo request (a ping).
    AnsweredPing,
    /// Consumed by the neighbour table: an ARP reply or announcement, or a neighbour advertisement. Its sender
    /// becomes a known neighbour if we had asked for it.
    Learned,
    /// Shorter than its headers, or than the length that they state.
    Truncated,
    /// A header's length field is inconsistent with itself or with the length of the data around it.
    BadLength,
    /// A header field has a value that no valid packet has: an IP version other than the EtherType's, an ARP sender
    /// that is no host, a neighbour solicitation that was forwarded (hop limit below 255).
    BadHeader,
    /// The IPv4, ICMP, UDP or TCP checksum is wrong, or missing from a UDP datagram over IPv6.
    BadChecksum,
    /// The source cannot be another host's address: a group, a loopback address, our own.
    BadSource,
    /// An IPv6 packet, and the stack has no IPv6 address. Operating systems send some as soon as a link is up.
    Ipv6,
    /// To an Ethernet multicast group of which the stack is no member. It is a member of IPv6's all-nodes group and
    /// the solicited-node groups of its addresses only.
    Multicast,
    /// To another Ethernet or IP address; or an IPv4 echo request to broadcast, which is not answered (RFC 1122,
    /// 3.2.2.6, permits either).
    NotForUs,
    /// A VLAN tag other than ours, two tags, or a provider tag (802.1ad).
    Vlan,
    /// No VLAN tag, and the stack is in a VLAN. A priority tag (VLAN 0) counts as none.
    Untagged,
    /// IPv4 options are present.
    IpOptions,
    /// An IPv6 extension header is present: hop-by-hop or destination options, routing, authentication or another;
    /// none is skipped. A fragment header counts as [`Fragment`](FrameOutcome::Fragment).
    ExtensionHeader,
    /// A fragment. There is no reassembly, so that peers cannot fill buffers with fragments.
    Fragment,
    /// An ICMPv6 "packet too big" message. It is ignored: TCP uses 1280-byte packets to peers beyond our own
    /// networks (RFC 8200, 5), and the size of a datagram is the service's choice.
    PacketTooBig,
    /// Neither ARP nor IP; or none of UDP, TCP, ICMP echo request, neighbour solicitation and neighbour
    /// advertisement.
    UnknownProtocol,
    /// No socket is bound to the UDP port, or no TCP worker is open. No ICMP error is sent for UDP, which would
    /// double the traffic of a flood.
    NoPort,
    /// The socket's receive buffer is full; also counted at that socket.
    SocketFull,
    /// The stack's answer was refused by the queue.
    AnswerFailed,
}

impl FrameOutcome {
    /// Every fate, in the order of the counters.
    pub const ALL: [FrameOutcome; 23] = [
        FrameOutcome::Delivered,
        FrameOutcome::AnsweredArp,
        FrameOutcome::AnsweredNdisc,
        FrameOutcome::AnsweredPing,
        FrameOutcome::Learned,
        FrameOutcome::Truncated,
        FrameOutcome::BadLength,
        FrameOutcome::BadHeader,
        FrameOutcome::BadChecksum,
        FrameOutcome::BadSource,
        FrameOutcome::Ipv6,
        FrameOutcome::Multicast,
        FrameOutcome::NotForUs,
        FrameOutcome::Vlan,
        FrameOutcome::Untagged,
        FrameOutcome::IpOptions,
        FrameOutcome::ExtensionHeader,
        FrameOutcome::Fragment,
        FrameOutcome::PacketTooBig,
        FrameOutcome::UnknownProtocol,
        FrameOutcome::NoPort,
        FrameOutcome::SocketFull,
        FrameOutcome::AnswerFailed,
    ];

    /// The counter's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            FrameOutcome::Delivered => "delivered",
            FrameOutcome::AnsweredArp => "answered_arp",
            FrameOutcome::AnsweredNdisc => "answered_ndisc",
            FrameOutcome::AnsweredPing => "answered_ping",
            FrameOutcome::Learned => "learned",
            FrameOutcome::Truncated => "truncated",
            FrameOutcome::BadLength => "bad_length",
            FrameOutcome::BadHeader => "bad_header",
            FrameOutcome::BadChecksum => "bad_checksum",
            FrameOutcome::BadSource => "bad_source",
            FrameOutcome::Ipv6 => "ipv6",
            FrameOutcome::Multicast => "multicast",
            FrameOutcome::NotForUs => "not_for_us",
            FrameOutcome::Vlan => "vlan",
            FrameOutcome::Untagged => "untagged",
            FrameOutcome::IpOptions => "ip_options",
            FrameOutcome::ExtensionHeader => "extension_header",
            FrameOutcome::Fragment => "fragment",
            FrameOutcome::PacketTooBig => "packet_too_big",
            FrameOutcome::UnknownProtocol => "unknown_protocol",
            FrameOutcome::NoPort => "no_port",
            FrameOutcome::SocketFull => "socket_full",
            FrameOutcome::AnswerFailed => "answer_failed",
        }
    }

    /// Whether the stack answered the frame itself.
    pub const fn is_answer(self) -> bool {
        matches!(
            self,
            FrameOutcome::AnsweredArp | FrameOutcome::AnsweredNdisc | FrameOutcome::AnsweredPing
        )
    }

    /// Whether the frame was dropped.
    pub const fn is_drop(self) -> bool {
        !matches!(self, FrameOutcome::Delivered | FrameOutcome::Learned) && !self.is_answer()
    }
}

/// One queue's counters. Written by the queue's owner only; any thread may read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    frames: AtomicU64,
    fates: [AtomicU64; FrameOutcome::ALL.len()],
}

impl Tally {
    /// Counts a received frame. Must be called by one thread at a time.
    pub(crate) fn frame(&self) {
        bump(&self.frames);
    }

    /// Counts the outcome of a frame. Must be called by one thread at a time.
    pub(crate) fn fate(&self, fate: FrameOutcome) {
        bump(&self.fates[fate as usize]);
    }
}

/// Adds one with a plain load and store: there is a single writer.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// A snapshot of the receive counters of a whole stack, summed over all queues since the stack was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Received frames.
    pub frames: u64,
    fates: [u64; FrameOutcome::ALL.len()],
}

impl Counters {
    /// Number of frames with this fate.
    pub const fn of(&self, fate: FrameOutcome) -> u64 {
        self.fates[fate as usize]
    }

    /// Frames put into sockets' receive buffers.
    pub const fn delivered(&self) -> u64 {
        self.of(FrameOutcome::Delivered)
    }

    /// Frames that the stack answered itself.
    pub const fn answered(&self) -> u64 {
        self.of(FrameOutcome::AnsweredArp)
            + self.of(FrameOutcome::AnsweredNdisc)
            + self.of(FrameOutcome::AnsweredPing)
    }

    /// The drop counters with their names, zeros included.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        FrameOutcome::ALL
            .into_iter()
            .filter(|fate| fate.is_drop())
            .map(|fate| (fate.name(), self.of(fate)))
    }

    /// Frames dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops().map(|(_, count)| count).sum()
    }

    /// Frames that could not be parsed: truncated, inconsistent or corrupted.
    pub const fn malformed(&self) -> u64 {
        self.of(FrameOutcome::Truncated)
            + self.of(FrameOutcome::BadLength)
            + self.of(FrameOutcome::BadHeader)
            + self.of(FrameOutcome::BadChecksum)
    }

    /// The sum over all fates; equals `frames` whenever the queues are idle (conservation).
    pub fn accounted(&self) -> u64 {
        self.fates.iter().sum()
    }

    /// Adds one queue's counts.
    pub(crate) fn add(&mut self, tally: &Tally) {
        for (sum, fate) in self.fates.iter_mut().zip(&tally.fates) {
            *sum = sum.wrapping_add(fate.load(Ordering::Relaxed));
        }
        self.frames = self.frames.wrapping_add(tally.frames.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fate_has_its_own_counter_and_name() {
        let tally = Tally::default();
        for (times, fate) in FrameOutcome::ALL.into_iter().enumerate() {
            assert_eq!(fate as usize, times);
            for _ in 0..times {
                tally.frame();
                tally.fate(fate);
            }
        }
        let mut counters = Counters::default();
        counters.add(&tally);
        for (times, fate) in FrameOutcome::ALL.into_iter().enumerate() {
            assert_eq!(counters.of(fate), times as u64, "{}", fate.name());
        }
        assert_eq!(counters.frames, counters.accounted());
        assert_eq!(counters.dropped(), counters.frames - (1 + 2 + 3 + 4));
        let mut names: Vec<_> = FrameOutcome::ALL.into_iter().map(FrameOutcome::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FrameOutcome::ALL.len());
    }
}
