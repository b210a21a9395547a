//! Receive-side scaling: the Toeplitz hash, by which a NIC spreads flows over its queues.
//!
//! It reads the same fields as NICs do, with or without a VLAN tag: the addresses of IPv4 and IPv6, and the ports
//! of TCP and UDP unless the packet is a fragment or, for IPv6, has an extension header. The hash of any other
//! frame is 0.

use std::hash::{BuildHasher, RandomState};

/// Bytes of a key, as many as the addresses and ports of IPv6 need.
pub const KEY: usize = 40;

/// The longest input in bytes: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// A keyed hash of flows.
pub struct Toeplitz {
    /// The hash of each byte value at each position of the input.
    table: Box<[[u32; 256]; INPUT]>,
}

impl Toeplitz {
    /// Makes a hash with the given key.
    pub fn new(key: &[u8; KEY]) -> Toeplitz {
        let mut table = Box::new([[0; 256]; INPUT]);
        for (place, values) in table.iter_mut().enumerate() {
            // The 32 bits of the key that begin at each bit of this byte lie within five bytes.
            let window =
                key[place..place + 5].iter().fold(0, |bits, it| bits << 8 | u64::from(*it));
            for (value, hash) in values.iter_mut().enumerate() {
                let set = (0..8).filter(|bit| value & 0x80 >> bit != 0);
                *hash = set.fold(0, |hash, bit| hash ^ (window << bit >> 8) as u32);
            }
        }
        Toeplitz { table }
    }

    /// Makes a hash with a random key.
    pub fn random() -> Toeplitz {
        let state = RandomState::new();
        let mut key = [0; KEY];
        for (place, part) in key.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&state.hash_one(place).to_ne_bytes());
        }
        Toeplitz::new(&key)
    }

    /// The hash of up to 36 bytes; the rest is ignored.
    pub fn hash(&self, bytes: &[u8]) -> u32 {
        self.table
            .iter()
            .zip(bytes)
            .fold(0, |hash, (values, byte)| hash ^ values[usize::from(*byte)])
    }

    /// The hash of the flow that an Ethernet frame belongs to.
    pub fn of_frame(&self, frame: &[u8]) -> u32 {
        const TYPE: usize = 12;
        const TAG: usize = 4;
        let pair = |at: usize| frame.get(at..at + 2);
        let tagged = pair(TYPE) == Some(&[0x81, 0]);
        let ether_type = if tagged { TYPE + TAG } else { TYPE };
        let ip = ether_type + 2;
        let (addresses, ports, has_ports) = match pair(ether_type) {
            Some([8, 0]) => {
                // Neither more fragments nor a fragment offset.
                let whole = pair(ip + 6).is_some_and(|it| it[0] & 0x3f == 0 && it[1] == 0);
                let header = frame.get(ip).map_or(0, |it| 4 * usize::from(it & 0xf));
                let protocol = frame.get(ip + 9);
                (ip + 12..ip + 20, ip + header, whole && matches!(protocol, Some(6 | 17)))
            }
            Some([0x86, 0xdd]) => {
                (ip + 8..ip + 40, ip + 40, matches!(frame.get(ip + 6), Some(6 | 17)))
            }
            _ => return 0,
        };
        let Some(addresses) = frame.get(addresses) else { return 0 };
        let mut input = [0; INPUT];
        let mut length = addresses.len();
        input[..length].copy_from_slice(addresses);
        if has_ports && let Some(ports) = frame.get(ports..ports + 4) {
            input[length..length + 4].copy_from_slice(ports);
            length += 4;
        }
        self.hash(&input[..length])
    }

    /// Returns the queue, out of `queues`, for a frame's flow. `queues` must not be 0.
    ///
    /// The hash is linear: over consecutive ports only a few of its bits change, and with one key in a hundred the
    /// lowest bit is not among them. Half of the queues would then get no flow, so the bits are mixed first (the
    /// finalizer of MurmurHash3).
    pub fn queue_of(&self, frame: &[u8], queues: usize) -> usize {
        let mut bits = self.of_frame(frame);
        bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
        bits ^= bits >> 16;
        bits as usize % queues
    }
}

impl std::fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keeps the key secret.
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's "Verifying the RSS Hash Calculation"; the flows below are from there, too.
    const PUBLISHED: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Source, destination, the hash with ports, and the hash without.
    type Vector6 = (&'static str, u16, &'static str, u16, u32, u32);

    const VECTORS6: [Vector6; 3] = [
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x4020_7d3d, 0x2cc1_8cd5),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xdde5_1bbf, 0x0f0c_461c),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x02d1_feef,
            0x4b61_e985,
        ),
    ];

    fn frame6((from, from_port, to, to_port, _, _): Vector6, protocol: u8) -> Vec<u8> {
        let octets = |ip: &str| ip.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let mut frame = vec![0; 74];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[14] = 0x60;
        frame[20] = protocol;
        frame[22..38].copy_from_slice(&octets(from));
        frame[38..54].copy_from_slice(&octets(to));
        frame[54..56].copy_from_slice(&from_port.to_be_bytes());
        frame[56..58].copy_from_slice(&to_port.to_be_bytes());
        frame
    }

    /// Inserts a VLAN tag into the frame.
    fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
        frame.splice(12..12, [0x81, 0, 0x20, 100]);
        frame
    }

    /// Source, destination, the hash with ports, and the hash without.
    type Vector = ([u8; 4], u16, [u8; 4], u16, u32, u32);

    const VECTORS: [Vector; 5] = [
        ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x51cc_c178, 0x323e_8fc2),
        ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xc626_b0ea, 0xd718_262a),
        ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0x5c2b_394a, 0xd2d0_a5de),
        ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0xafc7_327f, 0x8298_9176),
        ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x10e8_28a2, 0x5d18_09c5),
    ];

    fn frame((from, from_port, to, to_port, _, _): Vector, protocol: u8, fragment: u16) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[20..22].copy_from_slice(&fragment.to_be_bytes());
        frame[23] = protocol;
        frame[26..30].copy_from_slice(&from);
        frame[30..34].copy_from_slice(&to);
        frame[34..36].copy_from_slice(&from_port.to_be_bytes());
        frame[36..38].copy_from_slice(&to_port.to_be_bytes());
        frame
    }

    #[test]
    fn the_published_flows_have_their_published_hashes() {
        let hash = Toeplitz::new(&PUBLISHED);
        for vector in VECTORS {
            let (_, _, _, _, with_ports, without) = vector;
            for protocol in [6, 17] {
                assert_eq!(hash.of_frame(&frame(vector, protocol, 0)), with_ports);
                // With the don't-fragment flag.
                assert_eq!(hash.of_frame(&frame(vector, protocol, 0x4000)), with_ports);
            }
            assert_eq!(hash.of_frame(&frame(vector, 1, 0)), without, "ICMP has no ports");
            for fragment in [0x2000, 1, 0x100] {
                assert_eq!(hash.of_frame(&frame(vector, 6, fragment)), without);
            }
            assert_eq!(hash.of_frame(&tagged(frame(vector, 6, 0))), with_ports);
        }
        for vector in VECTORS6 {
            let (_, _, _, _, with_ports, without) = vector;
            for protocol in [6, 17] {
                assert_eq!(hash.of_frame(&frame6(vector, protocol)), with_ports);
            }
            for other in [58, 44, 0] {
                assert_eq!(hash.of_frame(&frame6(vector, other)), without);
            }
            assert_eq!(hash.of_frame(&tagged(frame6(vector, 17))), with_ports);
        }
    }

    #[test]
    fn flows_are_spread_whatever_the_key() {
        // A key with which no bit of the source port (bits 64 to 79) affects the lowest bit of the hash.
        let mut key = PUBLISHED;
        key[11] &= 0xfe;
        (key[12], key[13]) = (0, 0);
        let hash = Toeplitz::new(&key);
        let of_port = |port| {
            let (from, _, to, to_port, _, _) = VECTORS[0];
            frame((from, port, to, to_port, 0, 0), 6, 0)
        };
        let lowest = hash.of_frame(&of_port(0)) & 1;
        for queues in 2..=8 {
            let mut flows = vec![0; queues];
            for port in 40_000..40_400 {
                assert_eq!(hash.of_frame(&of_port(port)) & 1, lowest, "such a key");
                flows[hash.queue_of(&of_port(port), queues)] += 1;
            }
            let fair = 400 / queues;
            assert!(flows.iter().all(|it| (fair / 2..2 * fair).contains(it)), "{flows:?}");
        }
    }

    #[test]
    fn whatever_the_bytes_there_is_a_hash() {
        let hash = Toeplitz::random();
        let whole = frame(VECTORS[0], 6, 0);
        for frame in [whole.clone(), frame6(VECTORS6[0], 6), tagged(frame6(VECTORS6[0], 6))] {
            for len in 0..frame.len() {
                hash.of_frame(&frame[..len]);
            }
        }
        for length in 0..16 {
            let mut odd = whole.clone();
            odd[14] = 0x40 | length;
            hash.of_frame(&odd);
        }
        let mut arp = whole;
        arp[13] = 6;
        assert_eq!(hash.of_frame(&arp), 0);
    }

    #[test]
    fn keys_that_nobody_knows_differ() {
        let frame = frame(VECTORS[0], 6, 0);
        assert_ne!(Toeplitz::random().of_frame(&frame), Toeplitz::random().of_frame(&frame));
    }
}
