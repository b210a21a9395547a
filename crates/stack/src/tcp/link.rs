//! smoltcp's way in and out: one frame presented at a time, and what is sent goes to the queue, which is
//! flushed when the worker's step is at its end.
//!
//! smoltcp sees IP packets. The Ethernet header is written here, to where the connection's segments
//! come from, so that a server needs no ARP and no neighbour solicitation to answer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use napkin_nic::FRAME_CAPACITY;
use napkin_policy::Ns;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::EthernetProtocol;

use crate::wire::{ETHERNET_HEADER, VLAN_TAG};
use crate::{Stack, emit};

/// Bytes of the largest IP packet that is sent.
pub(super) const MTU: usize = 1_500;

/// The link of one worker.
pub(super) struct Link {
    stack: Arc<Stack>,
    /// What is being sent; its Ethernet header is of the last frame.
    out: Box<[u8; FRAME_CAPACITY]>,
    /// Where it goes.
    pub(super) mac: [u8; 6],
    /// Whether the peer is an IPv4 host behind a router: a hop may have a smaller MTU, and ICMP
    /// "fragmentation needed" is not read here, so its segments are sent without DF.
    pub(super) beyond: bool,
    /// IPv4 identification of the last segment sent without DF.
    identification: u16,
    /// On which queue.
    pub(super) napi_id: u32,
    /// The queue of what was sent and not flushed.
    posted: Option<u32>,
    pub(super) now: Ns,
    pub(super) sent: u64,
    /// Refused by the queue; the peer asks again.
    pub(super) refused: u64,
}

impl Link {
    pub(super) fn new(stack: Arc<Stack>) -> Link {
        Link {
            stack,
            out: Box::new([0; FRAME_CAPACITY]),
            mac: [0; 6],
            beyond: false,
            // Other workers count, too, perhaps to the same peer.
            identification: RandomState::new().hash_one(0) as u16,
            napi_id: 0,
            posted: None,
            now: 0,
            sent: 0,
            refused: 0,
        }
    }

    /// The link with a packet that it has received.
    pub(super) fn with<'a>(&'a mut self, packet: &'a [u8]) -> Presented<'a> {
        Presented { link: self, packet: Some(packet) }
    }

    /// Has the queue send what waits for more.
    pub(super) fn flush(&mut self) {
        if let Some(napi_id) = self.posted.take() {
            self.stack.flush(napi_id);
        }
    }

    /// The link with nothing received.
    pub(super) fn idle(&mut self) -> Presented<'_> {
        Presented { link: self, packet: None }
    }
}

/// A link for the time of one call of smoltcp's.
pub(super) struct Presented<'a> {
    link: &'a mut Link,
    packet: Option<&'a [u8]>,
}

pub(super) struct Packet<'a>(&'a [u8]);

impl RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct Out<'a>(&'a mut Link);

impl TxToken for Out<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let link = self.0;
        let us = link.stack.addresses();
        let (tag, macs) = (us.vlan(), (us.mac(), link.mac));
        let start = ETHERNET_HEADER + if tag.is_some() { VLAN_TAG } else { 0 };
        let end = (start + len).min(FRAME_CAPACITY);
        let written = f(&mut link.out[start..end]);
        if link.beyond {
            link.identification = link.identification.wrapping_add(1);
            emit::allow_fragmentation(&mut link.out[start..end], link.identification);
        }
        let protocol = match link.out[start] >> 4 {
            6 => EthernetProtocol::Ipv6,
            _ => EthernetProtocol::Ipv4,
        };
        emit::write_ethernet(&mut link.out[..end], macs, tag, protocol);
        // One that is not taken is as good as lost on the wire: TCP sends it again.
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

impl Device for Presented<'_> {
    type RxToken<'a>
        = Packet<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Out<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Packet<'_>, Out<'_>)> {
        self.packet.take().map(|packet| (Packet(packet), Out(self.link)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Out<'_>> {
        Some(Out(self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // The stack has verified what it delivers.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}
