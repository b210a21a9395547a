//! Rewrites the addresses of captured frames, and updates the checksums that cover them.
//!
//! A checksum is updated by the difference of the addresses (RFC 1624), so a wrong one stays wrong. In frames that
//! are not IP only the Ethernet addresses are changed.

use std::net::IpAddr;
use std::str::FromStr;

/// An Ethernet address, as in `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        // `from_str_radix` accepts a sign, which is not a digit.
        let digits = |part: &&str| part.len() == 2 && part.bytes().all(|it| it.is_ascii_hexdigit());
        let byte = |part: &str| u8::from_str_radix(Some(part).filter(digits)?, 16).ok();
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Mac)
            .ok_or_else(|| format!("{text} is no Ethernet address, as in 02:00:00:00:00:01"))
    }
}

/// The new addresses; `None` keeps the frame's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewrite {
    /// Ethernet destination.
    pub to_mac: Option<Mac>,
    /// Ethernet source.
    pub from_mac: Option<Mac>,
    /// IP destination, for packets of the same family.
    pub to_ip: Option<IpAddr>,
    /// IP source, for packets of the same family.
    pub from_ip: Option<IpAddr>,
}

const ETHERNET: usize = 14;

impl Rewrite {
    /// Rewrites a frame in place.
    pub(crate) fn apply(&self, frame: &mut [u8]) {
        for (mac, at) in [(self.to_mac, 0), (self.from_mac, 6)] {
            if let (Some(Mac(mac)), Some(place)) = (mac, frame.get_mut(at..at + 6)) {
                place.copy_from_slice(&mac);
            }
        }
        if self.to_ip.is_some() || self.from_ip.is_some() {
            // A frame shorter than its headers stays as it was captured.
            let _ = self.packet(frame);
        }
    }

    fn packet(&self, frame: &mut [u8]) -> Option<()> {
        let mut at = ETHERNET;
        // Skips all VLAN tags.
        while matches!(frame.get(at - 2..at)?, [0x81, 0] | [0x88, 0xa8]) {
            at += 4;
        }
        let kind = (frame[at - 2], frame[at - 1]);
        let packet = frame.get_mut(at..)?;
        let first = *packet.first()?;
        match kind {
            (8, 0) if first >> 4 == 4 => {
                let header = usize::from(first & 15) * 4;
                let later = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff != 0;
                let protocol = *packet.get(9)?;
                let change = self.addresses(packet, 12, 4)?;
                adjust(packet, 10, change);
                if !later {
                    transport(packet.get_mut(header..)?, protocol, change);
                }
            }
            (0x86, 0xdd) if first >> 4 == 6 => {
                let change = self.addresses(packet, 8, 16)?;
                let (protocol, start) = behind_headers(packet)?;
                transport(packet.get_mut(start..)?, protocol, change);
            }
            _ => {}
        }
        Some(())
    }

    /// Replaces the addresses, source first. Returns the change of the checksum sum over them.
    fn addresses(&self, packet: &mut [u8], at: usize, bytes: usize) -> Option<u32> {
        let mut change = 0;
        for (ip, at) in [(self.from_ip, at), (self.to_ip, at + bytes)] {
            let place = packet.get_mut(at..at + bytes)?;
            let new = match ip {
                Some(IpAddr::V4(ip)) if bytes == 4 => ip.octets().to_vec(),
                Some(IpAddr::V6(ip)) if bytes == 16 => ip.octets().to_vec(),
                _ => continue,
            };
            change = folded(change + sum(&new) + u32::from(!(folded(sum(place)) as u16)));
            place.copy_from_slice(&new);
        }
        Some(change)
    }
}

/// The protocol and the offset of an IPv6 packet's payload behind its extension headers. `None` for a later
/// fragment, which has no transport header. A header that is not skipped counts as the payload: behind a routing
/// header (43) the checksum covers another destination than the one changed here.
fn behind_headers(packet: &[u8]) -> Option<(u8, usize)> {
    let (mut protocol, mut at) = (*packet.get(6)?, 40);
    loop {
        let length = match protocol {
            // Hop-by-hop or destination options: the length is in units of 8 bytes, without the first.
            0 | 60 => 8 + 8 * usize::from(*packet.get(at + 1)?),
            44 => {
                let place = u16::from_be_bytes([*packet.get(at + 2)?, *packet.get(at + 3)?]);
                // The low three bits are no part of the offset.
                if place >> 3 != 0 {
                    return None;
                }
                8
            }
            _ => return Some((protocol, at)),
        };
        protocol = *packet.get(at)?;
        at += length;
    }
}

fn sum(bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks::<2>();
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

fn folded(mut sum: u32) -> u32 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Updates the checksum at `at` by a change of the data; does nothing if it is beyond the end.
fn adjust(bytes: &mut [u8], at: usize, change: u32) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        let old = u16::from_be_bytes([place[0], place[1]]);
        let new = !(folded(u32::from(!old) + change) as u16);
        place.copy_from_slice(&new.to_be_bytes());
    }
}

/// Updates the checksum of a transport whose pseudo-header includes the addresses.
fn transport(bytes: &mut [u8], protocol: u8, change: u32) {
    match protocol {
        6 => adjust(bytes, 16, change),
        // A UDP checksum of 0 means none.
        17 if bytes.get(6..8).is_some_and(|sum| sum != [0, 0]) => {
            adjust(bytes, 6, change);
            if bytes[6..8] == [0, 0] {
                bytes[6..8].fill(0xff);
            }
        }
        58 => adjust(bytes, 2, change),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use napkin_stack::{Address, FrameBuilder};

    use super::*;

    fn address(last: u8, ip: &str) -> Address {
        Address { mac: [2, 0, 0, 0, 0, last], ip: ip.parse().expect(ip), prefix: 24 }
    }

    fn datagram(from: Address, to: Address, tag: bool) -> Vec<u8> {
        let mut bytes = [0; 256];
        let length =
            FrameBuilder::new(from, to).udp(&mut bytes, 5, 7, b"hello there").expect("it fits");
        let mut frame = bytes[..length].to_vec();
        if tag {
            frame.splice(12..12, [0x81, 0, 0, 9]);
        }
        frame
    }

    #[test]
    fn a_frame_becomes_what_it_would_have_been_between_others() {
        for (ips, others) in [
            (["10.1.0.1", "10.1.0.2"], ["192.168.77.3", "10.255.0.9"]),
            (["fd00::1", "fd00::2"], ["fd00:ffff::abcd", "fe80::1"]),
        ] {
            for tag in [false, true] {
                let mut frame = datagram(address(1, ips[0]), address(2, ips[1]), tag);
                let rewrite = Rewrite {
                    to_mac: Some("02:00:00:00:00:04".parse().expect("an address")),
                    from_mac: Some(Mac([2, 0, 0, 0, 0, 3])),
                    to_ip: Some(others[1].parse().expect("an address")),
                    from_ip: Some(others[0].parse().expect("an address")),
                };
                rewrite.apply(&mut frame);
                assert_eq!(frame, datagram(address(3, others[0]), address(4, others[1]), tag));
                // A single address, changed back.
                let one = Rewrite {
                    from_ip: Some(ips[0].parse().expect("an address")),
                    ..Rewrite::default()
                };
                one.apply(&mut frame);
                let expected = datagram(address(3, ips[0]), address(4, others[1]), tag);
                assert_eq!(frame, expected);
            }
        }
    }

    #[test]
    fn behind_ipv6_extension_headers_the_checksum_follows_the_addresses_if_there_is_one() {
        // Inserts extension headers between the IPv6 header and the datagram; `kind` is the first one's.
        let with = |from: u8, to: u8, kind: u8, headers: &[u8]| {
            let ip = |last: u8| address(last, &format!("fd00::{last}"));
            let mut frame = datagram(ip(from), ip(to), false);
            // Ethernet addresses are not part of this test.
            frame[..12].fill(2);
            frame[14 + 6] = kind;
            frame.splice(54..54, headers.iter().copied());
            frame
        };
        let rewrite = Rewrite {
            from_ip: Some("fd00::3".parse().expect("an address")),
            to_ip: Some("fd00::4".parse().expect("an address")),
            ..Rewrite::default()
        };
        let hops: [u8; 8] = [44, 0, 1, 4, 0, 0, 0, 0];
        let first: [u8; 8] = [60, 0, 0, 1, 9, 9, 9, 9];
        // 16 bytes of options.
        let options: [u8; 16] = [17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (kind, headers) in
            [(17, vec![]), (60, options.to_vec()), (0, [&hops[..], &first, &options].concat())]
        {
            let mut frame = with(1, 2, kind, &headers);
            rewrite.apply(&mut frame);
            assert_eq!(frame, with(3, 4, kind, &headers), "{kind}");
        }
        // A later fragment, and a routing header.
        for (kind, headers) in [(44, [17, 0, 0, 9, 9, 9, 9, 9]), (43, [17, 0, 4, 0, 0, 0, 0, 0])] {
            let frame = with(1, 2, kind, &headers);
            let mut other = frame.clone();
            rewrite.apply(&mut other);
            assert_eq!(other[54..], frame[54..], "{kind}");
            assert_eq!(other[..54], with(3, 4, kind, &headers)[..54], "{kind}");
        }
        let whole = with(1, 2, 0, &[&hops[..], &first, &options].concat());
        for length in 0..whole.len() {
            rewrite.apply(&mut whole[..length].to_vec());
        }
    }

    #[test]
    fn what_is_not_asked_for_or_is_another_family_stays_and_cut_frames_harm_nobody() {
        let frame = datagram(address(1, "10.1.0.1"), address(2, "10.1.0.2"), false);
        let six =
            Rewrite { to_ip: Some("fd00::9".parse().expect("an address")), ..Rewrite::default() };
        for rewrite in [Rewrite::default(), six] {
            let mut same = frame.clone();
            rewrite.apply(&mut same);
            assert_eq!(same, frame);
        }
        let all = Rewrite { to_ip: Some("10.9.9.9".parse().expect("an address")), ..six };
        for length in 0..frame.len() {
            all.apply(&mut frame[..length].to_vec());
        }
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:0g",
            "02:00:00:00:00:+5",
            "2:0:0:0:0:1",
            "02:00:00:00:00:01:02",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
