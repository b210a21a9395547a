//! A frame builder for tests, benchmarks and the templates of a synthetic device.
//!
//! Each function writes one whole, valid frame into the caller's buffer and returns its length. It does not
//! allocate and involves no queue. Short frames are not padded to Ethernet's 60 bytes: in-memory devices have no
//! minimum, and other devices pad themselves.

use crate::emit::{self, Addressing};
use crate::{Address, SendError};

/// Builds frames from one host to another, over IPv4 or IPv6 depending on the addresses. Its errors are this crate's
/// [`SendError`], not that of a packet queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBuilder {
    /// The sender's addresses.
    pub from: Address,
    /// The receiver's addresses.
    pub to: Address,
    /// The VLAN tag: the low 12 bits are the VLAN, 1 to 4094, or 0 for a priority tag; the bits above are the
    /// priority. `None` for untagged frames.
    pub tag: Option<u16>,
}

impl FrameBuilder {
    /// A builder of frames from `from` to `to`, without a tag.
    pub const fn new(from: Address, to: Address) -> FrameBuilder {
        FrameBuilder { from, to, tag: None }
    }

    /// Adds an 802.1Q tag.
    pub const fn tagged(self, tag: u16) -> FrameBuilder {
        FrameBuilder { tag: Some(tag), ..self }
    }

    /// Length in bytes of a frame with a payload of this many bytes; the same for UDP and ICMP echo.
    pub const fn length(&self, payload: usize) -> usize {
        self.addressing().layout().payload() + payload
    }

    const fn addressing(&self) -> Addressing {
        Addressing { from: self.from, to: self.to, tag: self.tag }
    }

    /// Writes a UDP datagram.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if the frame does not fit `buffer`, or the payload an IP packet;
    /// [`SendError::Families`] if one end is IPv4 and the other IPv6. The other functions return the same errors.
    pub fn udp(
        &self,
        buffer: &mut [u8],
        from_port: u16,
        to_port: u16,
        payload: &[u8],
    ) -> Result<usize, SendError> {
        emit::put(buffer, self.addressing().layout(), payload)?;
        emit::write_udp(buffer, &self.addressing(), (from_port, to_port), payload.len())
    }

    /// Writes an ICMP or ICMPv6 echo request ("ping").
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
        emit::put(buffer, self.addressing().layout(), payload)?;
        emit::write_echo(buffer, &self.addressing(), (ident, sequence), payload.len())
    }

    /// Writes an ARP request (to broadcast) or a neighbour solicitation (to the solicited-node group) for `to.ip`.
    ///
    /// # Errors
    /// See [`udp`](Self::udp).
    pub fn request(&self, buffer: &mut [u8]) -> Result<usize, SendError> {
        emit::write_request(buffer, &self.addressing())
    }

    /// Writes an ARP reply or a neighbour advertisement: `from.ip` is at `from.mac`.
    ///
    /// # Errors
    /// See [`udp`](Self::udp).
    pub fn reply(&self, buffer: &mut [u8]) -> Result<usize, SendError> {
        emit::write_reply(buffer, &self.addressing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addresses;
    use crate::wire::{Received, classify};

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
                assert_eq!(seen, Ok(Received::Udp { port: 2, end: length }));
                let length = build.echo_request(&mut buffer, 5, 6, b"").unwrap();
                assert_eq!(
                    classify(&buffer[..length], &us_all),
                    Ok(Received::Echo { end: length })
                );
                let length = build.request(&mut buffer).unwrap();
                let query = Received::AddressQuery {
                    mac: peer.mac,
                    ip: peer.ip,
                    target: us.ip,
                    states_source: true,
                };
                assert_eq!(classify(&buffer[..length], &us_all), Ok(query));
                let answer = FrameBuilder { tag, ..FrameBuilder::new(us, peer) };
                let length = answer.reply(&mut buffer).unwrap();
                let update_only = us.ip.is_ipv6();
                let claim =
                    Received::AddressClaim { mac: us.mac, ip: us.ip, overrides: true, update_only };
                assert_eq!(classify(&buffer[..length], &peer_all), Ok(claim));
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
