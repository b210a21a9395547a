//! What becomes of a received frame, and how often each thing happened.
//!
//! Every frame has exactly one [`Fate`], decided by one function and counted in one place, so that
//! frames in = delivered + answered + learned + the named drops, exactly: nothing can be lost
//! between two counters. Each queue counts for itself, on memory that no other queue writes; a
//! reader adds them up. Sums taken while traffic flows may be a few frames apart, and are exact once
//! the queues rest.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of one received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fate {
    /// It is in a socket's receive buffer.
    Delivered,
    /// The stack answered it: an ARP request for us.
    AnsweredArp,
    /// The stack answered it: a neighbour solicitation, which is IPv6's ARP request. Also one that asks
    /// whether an address of ours is free.
    AnsweredNdisc,
    /// The stack answered it: an ICMP or ICMPv6 echo request for us, that is, a ping.
    AnsweredPing,
    /// It was for the stack alone: an ARP reply or announcement, or a neighbour advertisement, whose sender is a known
    /// neighbour now if we asked for it.
    Learned,
    /// It ends before its headers do, or before the length they promise.
    Truncated,
    /// A header's length field contradicts itself or the length around it.
    BadLength,
    /// A header field has a value that no valid packet has: another IP version than the Ethernet header
    /// says, an ARP sender that is no host, a neighbour solicitation that was forwarded (hop limit below 255).
    BadHeader,
    /// The IPv4, ICMP, UDP or TCP checksum is wrong; or it is UDP over IPv6 and has none.
    BadChecksum,
    /// Its source is no host that can have sent it: a group, a loopback address, ourselves.
    BadSource,
    /// It is IPv6, and the stack has no IPv6 address. An operating system sends some as soon as a link is
    /// up.
    Ipv6,
    /// It is for a group of hosts (Ethernet multicast) that the stack is not in: it is in none but IPv6's
    /// group of all nodes and those in which its own addresses are asked for.
    Multicast,
    /// It is for another Ethernet or IP address, or an IPv4 echo request for everybody, which is not
    /// answered (RFC 1122, 3.2.2.6, leaves the choice).
    NotForUs,
    /// Its VLAN tag is not ours, or it has two of them, or one of providers (802.1ad).
    Vlan,
    /// It has no VLAN tag, and the stack is in a VLAN. A tag of VLAN 0, which only says a priority, is none.
    Untagged,
    /// It has IPv4 options.
    IpOptions,
    /// It has an IPv6 extension header: hop-by-hop or destination options, routing, authentication or
    /// another. None is skipped. (A fragment header counts as [`Fragment`](Fate::Fragment).)
    ExtensionHeader,
    /// It is a fragment. Nothing is reassembled: buffers for it would be a peer's to fill.
    Fragment,
    /// A router says that a packet of ours was too large for the path behind it (ICMPv6). It is not
    /// followed: TCP keeps to 1280 bytes beyond its own network (RFC 8200, 5), and a datagram's size is its
    /// service's.
    PacketTooBig,
    /// Neither ARP nor IP; or neither UDP nor TCP nor an ICMP echo request, nor a neighbour solicitation or
    /// advertisement.
    UnknownProtocol,
    /// No socket has its UDP port, where no ICMP error is sent, so that a flood is not doubled; or it is
    /// TCP, and no worker is open.
    NoPort,
    /// Its socket's receive buffer is full; counted at that socket as well.
    SocketFull,
    /// It deserved an answer and the queue did not take the answer.
    AnswerFailed,
}

impl Fate {
    /// Every fate, in the order of the counters.
    pub const ALL: [Fate; 23] = [
        Fate::Delivered,
        Fate::AnsweredArp,
        Fate::AnsweredNdisc,
        Fate::AnsweredPing,
        Fate::Learned,
        Fate::Truncated,
        Fate::BadLength,
        Fate::BadHeader,
        Fate::BadChecksum,
        Fate::BadSource,
        Fate::Ipv6,
        Fate::Multicast,
        Fate::NotForUs,
        Fate::Vlan,
        Fate::Untagged,
        Fate::IpOptions,
        Fate::ExtensionHeader,
        Fate::Fragment,
        Fate::PacketTooBig,
        Fate::UnknownProtocol,
        Fate::NoPort,
        Fate::SocketFull,
        Fate::AnswerFailed,
    ];

    /// The name under which reports show it.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Delivered => "delivered",
            Fate::AnsweredArp => "answered_arp",
            Fate::AnsweredNdisc => "answered_ndisc",
            Fate::AnsweredPing => "answered_ping",
            Fate::Learned => "learned",
            Fate::Truncated => "truncated",
            Fate::BadLength => "bad_length",
            Fate::BadHeader => "bad_header",
            Fate::BadChecksum => "bad_checksum",
            Fate::BadSource => "bad_source",
            Fate::Ipv6 => "ipv6",
            Fate::Multicast => "multicast",
            Fate::NotForUs => "not_for_us",
            Fate::Vlan => "vlan",
            Fate::Untagged => "untagged",
            Fate::IpOptions => "ip_options",
            Fate::ExtensionHeader => "extension_header",
            Fate::Fragment => "fragment",
            Fate::PacketTooBig => "packet_too_big",
            Fate::UnknownProtocol => "unknown_protocol",
            Fate::NoPort => "no_port",
            Fate::SocketFull => "socket_full",
            Fate::AnswerFailed => "answer_failed",
        }
    }

    /// Whether the stack answered it itself.
    pub const fn is_answer(self) -> bool {
        matches!(self, Fate::AnsweredArp | Fate::AnsweredNdisc | Fate::AnsweredPing)
    }

    /// Whether the frame was dropped, that is, did nobody any good.
    pub const fn is_drop(self) -> bool {
        !matches!(self, Fate::Delivered | Fate::Learned) && !self.is_answer()
    }
}

/// One queue's counters. Written by the queue's owner only, read by anyone.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    frames: AtomicU64,
    fates: [AtomicU64; Fate::ALL.len()],
}

impl Tally {
    /// Counts a frame that came in. Must be called by one thread at a time.
    pub(crate) fn frame(&self) {
        bump(&self.frames);
    }

    /// Counts what became of it. Must be called by one thread at a time.
    pub(crate) fn fate(&self, fate: Fate) {
        bump(&self.fates[fate as usize]);
    }
}

/// Adds one without a locked instruction: there is a single writer.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// A reading of the receive counters of a whole stack, all queues together, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames that came in.
    pub frames: u64,
    fates: [u64; Fate::ALL.len()],
}

impl Counters {
    /// How many frames had this fate.
    pub const fn of(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }

    /// Frames put into sockets' receive buffers.
    pub const fn delivered(&self) -> u64 {
        self.of(Fate::Delivered)
    }

    /// Frames that the stack answered itself.
    pub const fn answered(&self) -> u64 {
        self.of(Fate::AnsweredArp) + self.of(Fate::AnsweredNdisc) + self.of(Fate::AnsweredPing)
    }

    /// The drop counters by name, each with its count, zeros included.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Fate::ALL.into_iter().filter(|fate| fate.is_drop()).map(|fate| (fate.name(), self.of(fate)))
    }

    /// Frames dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops().map(|(_, count)| count).sum()
    }

    /// Frames that could not be understood: cut short, contradictory or corrupted.
    pub const fn malformed(&self) -> u64 {
        self.of(Fate::Truncated)
            + self.of(Fate::BadLength)
            + self.of(Fate::BadHeader)
            + self.of(Fate::BadChecksum)
    }

    /// The sum over all fates. Equal to `frames` whenever the queues rest (conservation).
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
        for (times, fate) in Fate::ALL.into_iter().enumerate() {
            assert_eq!(fate as usize, times);
            for _ in 0..times {
                tally.frame();
                tally.fate(fate);
            }
        }
        let mut counters = Counters::default();
        counters.add(&tally);
        for (times, fate) in Fate::ALL.into_iter().enumerate() {
            assert_eq!(counters.of(fate), times as u64, "{}", fate.name());
        }
        assert_eq!(counters.frames, counters.accounted());
        assert_eq!(counters.dropped(), counters.frames - (1 + 2 + 3 + 4));
        let mut names: Vec<_> = Fate::ALL.into_iter().map(Fate::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Fate::ALL.len());
    }
}
