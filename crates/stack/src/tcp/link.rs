//! The smoltcp device of a worker: presents one received packet at a time, and posts what smoltcp sends to the
//! queue, which is flushed at the end of the worker's step.
//!
//! smoltcp handles IP packets. This module writes the Ethernet header, addressed to where the connection's segments
//! come from, so that a server can answer without ARP or neighbour discovery.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use napkin_nic::FRAME_CAPACITY;
use napkin_policy::Ns;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::EthernetProtocol;

use crate::wire::{ETHERNET_HEADER, VLAN_TAG};
use crate::{Stack, emit};

/// Largest IP packet that is sent, in bytes.
pub(super) const MTU: usize = 1_500;

/// The link of one worker.
pub(super) struct Link {
    stack: Arc<Stack>,
    /// Buffer for the frame to send; holds the Ethernet header of the previous frame until it is rewritten.
    out: Box<[u8; FRAME_CAPACITY]>,
    /// Destination Ethernet address of the next frame.
    pub(super) mac: [u8; 6],
    /// Whether the peer is an IPv4 host behind a router: a hop may have a smaller MTU, and ICMP
    /// "fragmentation needed" is not read here, so its segments are sent without DF.
    pub(super) off_link_ipv4: bool,
    /// IPv4 identification of the last segment sent without DF.
    identification: u16,
    /// The queue to send on.
    pub(super) napi_id: u32,
    /// The queue of frames that were posted and not flushed.
    posted: Option<u32>,
    pub(super) now: Ns,
    pub(super) sent: u64,
    /// Frames refused by the queue; TCP retransmits them.
    pub(super) refused: u64,
}

impl Link {
    pub(super) fn new(stack: Arc<Stack>) -> Link {
        Link {
            stack,
            out: Box::new([0; FRAME_CAPACITY]),
            mac: [0; 6],
            off_link_ipv4: false,
            // Random, because other workers may send to the same peer with counters of their own.
            identification: RandomState::new().hash_one(0) as u16,
            napi_id: 0,
            posted: None,
            now: 0,
            sent: 0,
            refused: 0,
        }
    }

    /// A device with one received packet.
    pub(super) fn with<'a>(&'a mut self, packet: &'a [u8]) -> LinkDevice<'a> {
        LinkDevice { link: self, packet: Some(packet) }
    }

    /// Sends the posted frames.
    pub(super) fn flush(&mut self) {
        if let Some(napi_id) = self.posted.take() {
            self.stack.flush(napi_id);
        }
    }

    /// A device with nothing to receive.
    pub(super) fn idle(&mut self) -> LinkDevice<'_> {
        LinkDevice { link: self, packet: None }
    }
}

/// The device for one call into smoltcp.
pub(super) struct LinkDevice<'a> {
    link: &'a mut Link,
    packet: Option<&'a [u8]>,
}

pub(super) struct ReceivedPacket<'a>(&'a [u8]);

impl RxToken for ReceivedPacket<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct OutgoingPacket<'a>(&'a mut Link);

impl TxToken for OutgoingPacket<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let link = self.0;
        let us = link.stack.addresses();
        let (tag, macs) = (us.vlan(), (us.mac(), link.mac));
        let start = ETHERNET_HEADER + if tag.is_some() { VLAN_TAG } else { 0 };
        let end = (start + len).min(FRAME_CAPACITY);
        let written = f(&mut link.out[start..end]);
        if link.off_link_ipv4 {
            link.identification = link.identification.wrapping_add(1);
            emit::allow_fragmentation(&mut link.out[start..end], link.identification);
        }
        let protocol = match link.out[start] >> 4 {
            6 => EthernetProtocol::Ipv6,
            _ => EthernetProtocol::Ipv4,
        };
        emit::write_ethernet(&mut link.out[..end], macs, tag, protocol);
        // A frame that the queue refuses counts as lost on the wire: TCP retransmits it.
        if link.posted != Some(link.napi_id) {
            link.flush();
            link.posted = Some(link.napi_id);
        }
        match link.stack.post(link.napi_id, &link.out[..end], link.now) {
            Ok(()) => link.sent += 1,
            Err(_) => link.refused += 1,
        }
        written
    }
}

impl Device for LinkDevice<'_> {
    type RxToken<'a>
        = ReceivedPacket<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = OutgoingPacket<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(ReceivedPacket<'_>, OutgoingPacket<'_>)> {
        self.packet.take().map(|packet| (ReceivedPacket(packet), OutgoingPacket(self.link)))
    }

    fn transmit(&mut self, _: Instant) -> Option<OutgoingPacket<'_>> {
        Some(OutgoingPacket(self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // The stack has verified the checksums of received packets.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}
