//! The two ends of a connection, and the headers of its segments.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::TcpPacket;

use crate::wire::Layout;

/// The two ends of a connection, which identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The stack's own address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
}

impl Flow {
    /// A flow between our end and a peer's.
    pub const fn new(local: SocketAddr, peer: SocketAddr) -> Flow {
        Flow { local, peer }
    }
}

impl Hash for Flow {
    /// Feeds the hasher as few words as identify the flow.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u32::from(self.local.port()) << 16 | u32::from(self.peer.port());
        match (self.local.ip(), self.peer.ip()) {
            (IpAddr::V4(local), IpAddr::V4(peer)) => {
                state.write_u64(u64::from(local.to_bits()) << 32 | u64::from(peer.to_bits()));
            }
            (local, peer) => [local, peer].iter().for_each(|ip| match ip {
                IpAddr::V4(ip) => state.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => state.write_u128(ip.to_bits()),
            }),
        }
        state.write_u32(ports);
    }
}

/// The header fields of a segment that are needed before smoltcp processes it. The stack has verified its lengths
/// and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flow: Flow,
    /// The Ethernet address of the sender or of a router, to which answers go.
    pub(crate) mac: [u8; 6],
    /// Whether it requests a connection: SYN without ACK.
    pub(crate) opens: bool,
    /// Whether it may carry the MSS option: SYN without RST.
    pub(crate) syn: bool,
    /// Offsets of the IP packet and of the segment in the frame.
    pub(crate) ip: usize,
    pub(crate) tcp: usize,
}

impl Segment {
    /// Parses the headers of a frame; `None` if it is not TCP.
    pub(crate) fn read(frame: &[u8]) -> Option<Segment> {
        let mac = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
        let layout = Layout::of(frame)?;
        let (peer, local) = layout.ends(frame)?;
        let tcp = TcpPacket::new_checked(frame.get(layout.transport()..)?).ok()?;
        let flow = Flow {
            local: SocketAddr::new(local, tcp.dst_port()),
            peer: SocketAddr::new(peer, tcp.src_port()),
        };
        let syn = tcp.syn() && !tcp.rst();
        let opens = syn && !tcp.ack();
        Some(Segment { flow, mac, opens, syn, ip: layout.ip(), tcp: layout.transport() })
    }
}

/// A keyed hash of the flow of a TCP frame, to distribute flows over workers. Without the key a peer cannot direct
/// all its flows to one worker. Frames that are not TCP hash to 0.
pub(crate) fn flow_hash(key: &RandomState, frame: &[u8]) -> u64 {
    Segment::read(frame).map_or(0, |segment| key.hash_one(segment.flow))
}

/// Reduces the MSS option of the SYN at byte `tcp` of a frame to at most `most`. The checksum is not updated,
/// because it has been verified already.
pub(super) fn clamp_segments(frame: &mut [u8], tcp: usize, most: u16) {
    /// Bytes of a TCP header without options, and the kind of the MSS option.
    const HEADER: usize = 20;
    const MAXIMUM_SEGMENT: u8 = 2;
    let Some(end) = frame.get(tcp + 12).map(|it| tcp + usize::from(it >> 4) * 4) else { return };
    let Some(mut options) = frame.get_mut(tcp + HEADER..end) else { return };
    loop {
        let length = match options {
            [1, ..] => 1,
            [MAXIMUM_SEGMENT, 4, high, low, ..] => {
                let given = u16::from_be_bytes([*high, *low]);
                [*high, *low] = given.min(most).to_be_bytes();
                return;
            }
            // Every other option has a length of at least 2; kind 0 ends the list.
            [kind, length, ..] if *kind > 1 && *length > 1 => usize::from(*length),
            _ => return,
        };
        options = match options.get_mut(length..) {
            Some(rest) => rest,
            None => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longest_segment_is_found_among_options_and_shortened() {
        let segment = |options: &[u8]| {
            let mut bytes = vec![0xee; 7 + 20];
            bytes[7 + 12] = (((20 + options.len()) / 4) << 4) as u8;
            bytes.extend(options);
            clamp_segments(&mut bytes, 7, 1_220);
            bytes.split_off(7 + 20)
        };
        // 1440, clamped to 1220.
        assert_eq!(segment(&[2, 4, 5, 160]), [2, 4, 4, 196]);
        assert_eq!(segment(&[1, 1, 4, 2, 2, 4, 5, 160]), [1, 1, 4, 2, 2, 4, 4, 196]);
        assert_eq!(segment(&[2, 4, 2, 0]), [2, 4, 2, 0], "shorter already");
        for odd in [[0, 2, 4, 5], [2, 0, 5, 160], [3, 1, 2, 4], [3, 60, 2, 4], [1, 1, 2, 4]] {
            assert_eq!(segment(&odd), odd);
        }
        clamp_segments(&mut [], 0, 1_220);
        clamp_segments(&mut [0xff; 20], 0, 1_220);
    }

    #[test]
    fn flows_that_differ_in_anything_have_other_hashes() {
        let key = RandomState::new();
        let flow =
            |local: &str, peer: &str| Flow::new(local.parse().unwrap(), peer.parse().unwrap());
        let flows = [
            flow("10.0.0.1:7", "10.0.0.2:9"),
            flow("10.0.0.1:9", "10.0.0.2:7"),
            flow("10.0.0.2:7", "10.0.0.1:9"),
            flow("10.0.0.3:7", "10.0.0.2:9"),
            flow("[fd00::1]:7", "[fd00::2]:9"),
            flow("[fe80::1]:7", "[fd00::2]:9"),
            flow("[fd00::1]:7", "[fd00::3]:9"),
        ];
        let hashes: std::collections::HashSet<u64> =
            flows.iter().map(|it| key.hash_one(it)).collect();
        assert_eq!(hashes.len(), flows.len());
    }
}
