//! Segmentation of TCP packets of up to 64 KiB that a driver leaves to its device (`VIRTIO_NET_F_HOST_TSO4` and
//! `_TSO6`), or a device to its driver (`VIRTIO_NET_F_GUEST_TSO4` and `_TSO6`). All receivers here, and all devices
//! to which a packet is forwarded, have frames of [`FRAME_CAPACITY`]; so it is segmented once, on receipt, and the
//! code after that need not know.
//!
//! Frames here are never longer than a wire's, so our device does not offer large ones to its driver. Nor is
//! segmentation of UDP offered (UFO, USO), which drivers do equally well themselves.
//!
//! The peer's description of a packet is not trusted: the offsets are parsed from the packet, and the virtio header
//! has to agree with them.

use super::header::{HEADER, NEEDS_CSUM, fold, sum};
use super::setup::RingFeatures;
use crate::FRAME_CAPACITY;

/// The longest packet in bytes: Ethernet, two VLAN tags, and the IPv6 maximum.
const LONGEST: usize = 14 + 8 + 40 + 65_535;

const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
/// Flag of either type: the packet has ECN's CWR, which only its first segment keeps.
const ECN: u8 = 0x80;

/// The least payload of a segment in bytes: the least TCP MSS of 48 less 40 for options, as in Linux. With less, one
/// packet would make tens of thousands of frames.
const LEAST: usize = 8;

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;
const TCP: u8 = 6;
const FIN: u8 = 1 << 0;
const PSH: u8 = 1 << 3;
const CWR: u8 = 1 << 7;

/// A packet that is being segmented.
#[derive(Debug)]
pub(super) struct Segments {
    packet: Box<[u8]>,
    cut: Option<Cut>,
}

/// The offsets of a packet's parts, and the progress of its segmentation.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Length of the packet in bytes.
    len: usize,
    /// Offsets of the IP header, the TCP header, and the payload.
    network: usize,
    transport: usize,
    payload: usize,
    six: bool,
    /// Payload of each segment in bytes.
    size: usize,
    /// Offset of the next segment's payload.
    at: usize,
}

impl Segments {
    pub(super) fn new() -> Segments {
        Segments { packet: vec![0; LONGEST].into_boxed_slice(), cut: None }
    }

    /// The buffer to put a packet into. Drops a packet that is being segmented.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.cut = None;
        &mut self.packet
    }

    /// Starts to segment the packet of `len` bytes in the buffer. `false` if it is invalid, disagrees with its
    /// virtio header, or was not negotiated.
    pub(super) fn begin(
        &mut self,
        header: &[u8; HEADER],
        len: usize,
        agreed: RingFeatures,
    ) -> bool {
        self.cut = self.packet.get(..len).and_then(|packet| read(header, packet, agreed));
        self.cut.is_some()
    }

    /// Whether there is another segment.
    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.cut.is_some()
    }

    /// Writes the next segment, and returns its length in bytes. `None` if there is none.
    pub(super) fn next(&mut self, into: &mut [u8]) -> Option<usize> {
        let cut = self.cut.as_mut()?;
        let Cut { network, transport, payload, .. } = *cut;
        let size = cut.size.min(cut.len - cut.at);
        let done = cut.at - payload;
        let frame = into.get_mut(..payload + size)?;
        let (headers, body) = frame.split_at_mut(payload);
        headers.copy_from_slice(&self.packet[..payload]);
        body.copy_from_slice(&self.packet[cut.at..cut.at + size]);
        let (first, last) = (done == 0, cut.at + size == cut.len);

        let ip = &mut frame[network..];
        let mut pseudo = u64::from(TCP) + (payload - transport + size) as u64;
        if cut.six {
            put16(ip, 4, (payload - network - 40 + size) as u16);
            pseudo += sum(&ip[8..40]);
        } else {
            let number = (done / cut.size) as u16;
            put16(ip, 2, (payload - network + size) as u16);
            put16(ip, 4, get16(ip, 4).wrapping_add(number));
            put16(ip, 10, 0);
            let header = sum(&ip[..transport - network]);
            put16(ip, 10, !fold(header));
            pseudo += sum(&ip[12..20]);
        }

        let tcp = &mut frame[transport..];
        let sequence = u32::from(get16(tcp, 4)) << 16 | u32::from(get16(tcp, 6));
        let sequence = sequence.wrapping_add(done as u32);
        put16(tcp, 4, (sequence >> 16) as u16);
        put16(tcp, 6, sequence as u16);
        tcp[13] &= if last { u8::MAX } else { !(FIN | PSH) };
        tcp[13] &= if first { u8::MAX } else { !CWR };
        put16(tcp, TCP_CHECKSUM, 0);
        let checksum = !fold(pseudo + sum(tcp));
        put16(tcp, TCP_CHECKSUM, checksum);

        cut.at += size;
        if last {
            self.cut = None;
        }
        Some(payload + size)
    }
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Parses a packet and checks it against its virtio header.
fn read(header: &[u8; HEADER], packet: &[u8], agreed: RingFeatures) -> Option<Cut> {
    let six = match header[1] & !ECN {
        TCPV4 if agreed.tso4 => false,
        TCPV6 if agreed.tso6 => true,
        _ => return None,
    };
    let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (size, start, offset) = (field(4), field(6), field(8));
    let kind = |at: usize| packet.get(at..at + 2).map(|it| get16(it, 0));
    let mut network = 14;
    for _ in 0..2 {
        if matches!(kind(network - 2)?, 0x8100 | 0x88a8) {
            network += 4;
        }
    }
    let (expected, least) = if six { (0x86dd, 40) } else { (0x0800, 20) };
    let ip = packet.get(network..).filter(|ip| ip.len() >= least)?;
    let (len, protocol, whole) = match six {
        true => (40, ip[6], ip[0] >> 4 == 6),
        // Must not be a fragment.
        false => {
            (usize::from(ip[0] & 15) * 4, ip[9], ip[0] >> 4 == 4 && get16(ip, 6) & 0x3fff == 0)
        }
    };
    let transport = network + len;
    let tcp = packet.get(transport..).filter(|tcp| tcp.len() >= 20)?;
    let payload = transport + usize::from(tcp[12] >> 4) * 4;
    let agrees = kind(network - 2) == Some(expected)
        && whole
        && len >= least
        && protocol == TCP
        && payload >= transport + 20
        && header[0] & NEEDS_CSUM != 0
        && (start, offset) == (transport, TCP_CHECKSUM);
    let fits = payload < packet.len() && size >= LEAST && payload + size <= FRAME_CAPACITY;
    (agrees && fits).then_some(Cut {
        len: packet.len(),
        network,
        transport,
        payload,
        six,
        size,
        at: payload,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BOTH: RingFeatures = RingFeatures {
        event: false,
        mergeable: false,
        checksums: true,
        indirect: false,
        tso4: true,
        tso6: true,
        in_order: false,
    };

    /// A packet with `payload` bytes of payload and `tags` VLAN tags, and the offsets of IP and TCP.
    fn packet(six: bool, tags: usize, payload: usize) -> (Vec<u8>, usize, usize) {
        let mut bytes = vec![2; 12];
        (0..tags).for_each(|_| bytes.extend([0x81, 0, 0, 7]));
        let network = bytes.len() + 2;
        if six {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            bytes.extend(1..=32);
        } else {
            // With an option of four bytes.
            bytes.extend([8, 0, 0x46, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0]);
            bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0]);
        }
        let transport = bytes.len();
        bytes.extend([0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x60, 0x99, 1, 0]);
        // The checksum field holds arbitrary bytes, as drivers may leave there.
        bytes.extend([0xab, 0xcd, 0, 0, 1, 1, 1, 0]);
        bytes.extend((0..payload).map(|it| (it % 251) as u8));
        (bytes, network, transport)
    }

    fn header(six: bool, size: u16, transport: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&[NEEDS_CSUM, if six { TCPV6 } else { TCPV4 | ECN }]);
        header[4..6].copy_from_slice(&size.to_le_bytes());
        header[6..8].copy_from_slice(&(transport as u16).to_le_bytes());
        header[8] = TCP_CHECKSUM as u8;
        header
    }

    fn begin(packet: &[u8], header: &[u8; HEADER], agreed: RingFeatures) -> Option<Segments> {
        let mut segments = Segments::new();
        segments.room()[..packet.len()].copy_from_slice(packet);
        segments.begin(header, packet.len(), agreed).then_some(segments)
    }

    /// Whether the sum over data including its checksum is all ones.
    fn whole(parts: &[&[u8]], rest: u64) -> bool {
        fold(parts.iter().map(|it| sum(it)).sum::<u64>() + rest) == 0xffff
    }

    #[test]
    fn segments_are_frames_as_a_wire_has_them() {
        for (six, tags, len) in [
            (false, 0, 60_000),
            (true, 1, 64_000),
            (false, 2, 1_448),
            (true, 0, 1_449),
            (false, 0, 1),
        ] {
            let (bytes, network, transport) = packet(six, tags, len);
            let mut segments =
                begin(&bytes, &header(six, 1_448, transport), BOTH).expect("it is one");
            let (mut payload, mut number, mut buffer) =
                (Vec::<u8>::new(), 0u16, [0; FRAME_CAPACITY]);
            while segments.pending() {
                let len = segments.next(&mut buffer).expect("there is room");
                let (frame, tcp) = (&buffer[..len], &buffer[transport..len]);
                let ip = &frame[network..];
                let rest = tcp.len() as u64 + 6;
                assert_eq!(frame[..network], bytes[..network]);
                if six {
                    assert_eq!(usize::from(get16(ip, 4)), ip.len() - 40);
                    assert!(whole(&[&ip[8..40], tcp], rest));
                } else {
                    assert_eq!(usize::from(get16(ip, 2)), ip.len());
                    assert_eq!(get16(ip, 4), number.wrapping_sub(1), "the identification");
                    assert!(whole(&[&ip[..24]], 0) && whole(&[&ip[12..20], tcp], rest));
                }
                let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
                assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(payload.len() as u32));
                payload.extend(&tcp[24..]);
                let (first, last) = (number == 0, !segments.pending());
                let flags = 0x10 | u8::from(first) << 7 | u8::from(last) << 3 | u8::from(last);
                assert_eq!(tcp[13], flags, "ACK, and of CWR, PSH and FIN what belongs there");
                assert!(last || tcp.len() == 24 + 1_448);
                number += 1;
            }
            assert_eq!(payload, bytes[transport + 24..]);
            assert_eq!(segments.next(&mut buffer), None);
        }
    }

    #[test]
    fn what_is_no_packet_or_not_as_it_is_said_to_be_is_refused() {
        for six in [false, true] {
            let (good, network, transport) = packet(six, 0, 3_000);
            let header_bytes = header(six, 1_000, transport);
            let refused = |packet: &[u8], header_bytes: &[u8; HEADER]| {
                begin(packet, header_bytes, BOTH).is_none()
            };
            assert!(!refused(&good, &header_bytes));
            for (at, byte, why) in [
                (0, 0, "no checksum is asked for"),
                (1, 0, "nothing is to be cut"),
                (1, if six { TCPV4 } else { TCPV6 }, "the other IP"),
                (1, 3, "UDP"),
                (1, 5, "UDP, newer"),
                (5, 0, "1000 - 768 = 232, and then none"),
                (5, 0xff, "longer than a frame"),
                (6, 0, "the checksum begins elsewhere"),
                (7, 0xff, "far outside"),
                (8, 6, "the checksum is elsewhere"),
                (9, 0xff, "far outside"),
            ] {
                let mut header_bytes = header_bytes;
                header_bytes[at] = byte;
                header_bytes[4] = if at == 5 && byte == 0 { 7 } else { header_bytes[4] };
                assert!(refused(&good, &header_bytes), "{why}");
            }
            for (at, byte) in [
                (12, 9),
                (network, 0x50),
                (network + if six { 6 } else { 9 }, 17),
                (transport + 12, 0x40),
            ] {
                let mut packet = good.clone();
                packet[at] = byte;
                assert!(refused(&packet, &header_bytes), "{at} {byte}");
            }
            if !six {
                for (at, byte) in [(0, 0x44), (0, 0x4f), (6, 0x20), (7, 1)] {
                    let mut packet = good.clone();
                    packet[network + at] = byte;
                    assert!(refused(&packet, &header_bytes), "{at} {byte}");
                }
            }
            (0..=transport + 24)
                .for_each(|len| assert!(refused(&good[..len], &header_bytes), "{len}"));
            let none = RingFeatures { tso4: six, tso6: !six, ..BOTH };
            assert!(begin(&good, &header_bytes, none).is_none(), "not agreed on");
            assert!(
                !Segments::new().begin(&header_bytes, LONGEST + 1, BOTH),
                "longer than there is room"
            );
        }
    }
}
