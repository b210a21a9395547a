//! Frames made to order, for tests, benchmarks and the templates of a synthetic device.
//!
//! Each function writes one whole, valid frame into the caller's buffer and returns its length; it
//! allocates nothing and cares for no queue. Short frames are not padded to Ethernet's 60 bytes:
//! devices in memory have no minimum, and others pad for themselves.

use crate::emit::{self, Way};
use crate::{Address, SendError};

/// Builds frames from one host to another, over IPv4 or IPv6 as their addresses have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBuilder {
    /// The sender's addresses.
    pub from: Address,
    /// Who is to receive.
    pub to: Address,
    /// The VLAN in whose tag the frames are, 1 to 4094, or 0 for a tag without one; `None` for no tag.
    /// Bits above the low 12 are the tag's priority.
    pub tag: Option<u16>,
}

impl FrameBuilder {
    /// A builder of frames from `from` to `to`, without a tag.
    pub const fn new(from: Address, to: Address) -> FrameBuilder {
        FrameBuilder { from, to, tag: None }
    }

    /// The same with an 802.1Q tag.
    pub const fn tagged(self, tag: u16) -> FrameBuilder {
        FrameBuilder { tag: Some(tag), ..self }
    }

    /// Bytes of a frame with a payload of this many bytes, UDP and ICMP echo alike.
    pub const fn length(&self, payload: usize) -> usize {
        self.way().shape().payload() + payload
    }

    const fn way(&self) -> Way {
        Way { from: self.from, to: self.to, tag: self.tag }
    }

    /// A UDP datagram.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if `buffer`, or an IP packet, is too small for it; the same for all that
    /// follow. [`SendError::Families`] if one end is IPv4 and the other IPv6.
    pub fn udp(
        &self,
        buffer: &mut [u8],
        from_port: u16,
        to_port: u16,
        payload: &[u8],
    ) -> Result<usize, SendError> {
        emit::put(buffer, self.way().shape(), payload)?;
        emit::write_udp(buffer, &self.way(), (from_port, to_port), payload.len())
    }

    /// An ICMP or ICMPv6 echo request ("ping").
    ///
    /// # Errors
    /// See [`udp`](Self::udp).
    pub fn echo_request(
        &self,
        buffer: &mut [u8],
        ident: u16,
        sequence: u16,
        payload: &[u8],
    ) -> Result<usize, SendError> {
        emit::put(buffer, self.way().shape(), payload)?;
        emit::write_echo(buffer, &self.way(), (ident, sequence), payload.len())
    }

    /// Who has `to.ip`? An ARP request to everybody, or a neighbour solicitation to its group.
    ///
    /// # Errors
    /// See [`udp`](Self::udp).
    pub fn request(&self, buffer: &mut [u8]) -> Result<usize, SendError> {
        emit::write_request(buffer, &self.way())
    }

    /// `from.ip` is at `from.mac`: an ARP reply, or a neighbour advertisement.
    ///
    /// # Errors
    /// See [`udp`](Self::udp).
    pub fn reply(&self, buffer: &mut [u8]) -> Result<usize, SendError> {
        emit::write_reply(buffer, &self.way())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addresses;
    use crate::wire::{Seen, classify};

    const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
    const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
    const US6: Address = Address::v6(US.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 1], 64);
    const PEER6: Address = Address::v6(PEER.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 2], 64);

    #[test]
    fn what_is_built_is_understood() {
        for (us, peer) in [(US, PEER), (US6, PEER6)] {
            for tag in [None, Some(7)] {
                let host = |address: Address| match tag {
                    Some(vlan) => Addresses::from(address).in_vlan(vlan).unwrap(),
                    None => address.into(),
                };
                let (us_all, peer_all) = (host(us), host(peer));
                let build = FrameBuilder { tag, ..FrameBuilder::new(peer, us) };
                let mut buffer = [0xee; 128];
                let length = build.udp(&mut buffer, 1, 2, b"abc").unwrap();
                assert_eq!(length, build.length(3));
                let seen = classify(&buffer[..length], &us_all);
                assert_eq!(seen, Ok(Seen::Udp { port: 2, end: length }));
                let length = build.echo_request(&mut buffer, 5, 6, b"").unwrap();
                assert_eq!(classify(&buffer[..length], &us_all), Ok(Seen::Echo { end: length }));
                let length = build.request(&mut buffer).unwrap();
                let asked = Seen::Asked { mac: peer.mac, ip: peer.ip, target: us.ip, told: true };
                assert_eq!(classify(&buffer[..length], &us_all), Ok(asked));
                let answer = FrameBuilder { tag, ..FrameBuilder::new(us, peer) };
                let length = answer.reply(&mut buffer).unwrap();
                let asked = us.ip.is_ipv6();
                let told = Seen::Told { mac: us.mac, ip: us.ip, overrides: true, asked };
                assert_eq!(classify(&buffer[..length], &peer_all), Ok(told));
            }
        }
    }

    #[test]
    fn a_buffer_too_small_is_refused_whatever_its_size() {
        for (build, arp) in
            [(FrameBuilder::new(PEER, US), 42), (FrameBuilder::new(PEER6, US6).tagged(1), 90)]
        {
            for size in 0..build.length(3) {
                let buffer = &mut [0; 128][..size];
                assert!(build.udp(buffer, 1, 2, b"abc").is_err());
                assert!(build.echo_request(buffer, 1, 2, b"abc").is_err());
            }
            for size in 0..128 {
                assert_eq!(build.request(&mut [0; 128][..size]).is_ok(), size >= arp);
                assert_eq!(build.reply(&mut [0; 128][..size]).is_ok(), size >= arp);
            }
        }
        let (mut large, payload) = (vec![0; 70_000], vec![0; 65_528]);
        for (build, most) in
            [(FrameBuilder::new(PEER, US), 65_507), (FrameBuilder::new(PEER6, US6), 65_527)]
        {
            assert!(build.udp(&mut large, 1, 2, &payload[..most]).is_ok());
            assert!(build.udp(&mut large, 1, 2, &payload[..=most]).is_err());
        }
    }
}
