//! Frames made to order, for tests, benchmarks and the templates of a synthetic device.
//!
//! Each function writes one whole, valid frame into the caller's buffer and returns its length; it
//! allocates nothing and cares for no queue. Short frames are not padded to Ethernet's 60 bytes:
//! devices in memory have no minimum, and others pad for themselves.

use crate::emit::{self, Way};
use crate::wire::UDP_PAYLOAD;
use crate::{Address, SendError};

/// Builds frames from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBuilder {
    /// The sender's addresses.
    pub from: Address,
    /// Who is to receive.
    pub to: Address,
}

impl FrameBuilder {
    /// A builder of frames from `from` to `to`.
    pub const fn new(from: Address, to: Address) -> FrameBuilder {
        FrameBuilder { from, to }
    }

    /// The same for the other direction.
    pub const fn reversed(&self) -> FrameBuilder {
        FrameBuilder { from: self.to, to: self.from }
    }

    /// Bytes of a frame with a payload of this many bytes, UDP and ICMP echo alike.
    pub const fn length(payload: usize) -> usize {
        UDP_PAYLOAD + payload
    }

    /// A UDP datagram.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if `buffer`, or an IPv4 packet, is too small for it.
    pub fn udp(
        &self,
        buffer: &mut [u8],
        from_port: u16,
        to_port: u16,
        payload: &[u8],
    ) -> Result<usize, SendError> {
        put(buffer, payload)?;
        let way = Way { from: self.from, to: self.to, ports: (from_port, to_port) };
        emit::write_udp(buffer, &way, payload.len())
    }

    /// An ICMP echo request ("ping").
    ///
    /// # Errors
    /// [`SendError::TooLong`] if `buffer`, or an IPv4 packet, is too small for it.
    pub fn echo_request(
        &self,
        buffer: &mut [u8],
        ident: u16,
        sequence: u16,
        payload: &[u8],
    ) -> Result<usize, SendError> {
        put(buffer, payload)?;
        emit::write_echo(buffer, &self.from, &self.to, (ident, sequence), payload.len())
    }

    /// An ARP request to everybody: who has `to.ipv4`?
    ///
    /// # Errors
    /// [`SendError::TooLong`] if `buffer` is too small for it.
    pub fn arp_request(&self, buffer: &mut [u8]) -> Result<usize, SendError> {
        emit::write_arp(buffer, &self.from, &self.to, false)
    }

    /// An ARP reply: `from.ipv4` is at `from.mac`.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if `buffer` is too small for it.
    pub fn arp_reply(&self, buffer: &mut [u8]) -> Result<usize, SendError> {
        emit::write_arp(buffer, &self.from, &self.to, true)
    }
}

/// Copies a payload to where it belongs in a frame.
pub(crate) fn put(buffer: &mut [u8], payload: &[u8]) -> Result<(), SendError> {
    let length = UDP_PAYLOAD.saturating_add(payload.len());
    emit::room(buffer, length)?[UDP_PAYLOAD..].copy_from_slice(payload);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wire::{Seen, classify};

    const US: Address =
        Address { mac: [2, 0, 0, 0, 0, 1], ipv4: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 };
    const PEER: Address =
        Address { mac: [2, 0, 0, 0, 0, 2], ipv4: Ipv4Addr::new(10, 0, 0, 2), prefix: 24 };

    #[test]
    fn what_is_built_is_understood() {
        let build = FrameBuilder::new(PEER, US);
        let mut buffer = [0xee; 128];
        let length = build.udp(&mut buffer, 1, 2, b"abc").unwrap();
        assert_eq!(length, FrameBuilder::length(3));
        assert_eq!(classify(&buffer[..length], &US), Ok(Seen::Udp { port: 2, end: 45 }));
        let length = build.echo_request(&mut buffer, 5, 6, b"").unwrap();
        assert_eq!(classify(&buffer[..length], &US), Ok(Seen::Echo { end: 42 }));
        let length = build.arp_request(&mut buffer).unwrap();
        let asked = Seen::ArpRequest { mac: PEER.mac, ipv4: PEER.ipv4 };
        assert_eq!(classify(&buffer[..length], &US), Ok(asked));
        let length = build.reversed().arp_reply(&mut buffer).unwrap();
        let told = Seen::ArpReply { mac: US.mac, ipv4: US.ipv4 };
        assert_eq!(classify(&buffer[..length], &PEER), Ok(told));
    }

    #[test]
    fn a_buffer_too_small_is_refused_whatever_its_size() {
        let build = FrameBuilder::new(PEER, US);
        for size in 0..45 {
            let buffer = &mut [0; 64][..size];
            assert!(build.udp(buffer, 1, 2, b"abc").is_err());
            assert!(build.echo_request(buffer, 1, 2, b"abc").is_err());
            assert_eq!(build.arp_request(buffer).is_ok(), size >= 42);
        }
        let (mut large, payload) = (vec![0; 70_000], vec![0; 65_508]);
        assert!(build.udp(&mut large, 1, 2, &payload).is_err());
        assert!(build.udp(&mut large, 1, 2, &payload[1..]).is_ok());
    }
}
