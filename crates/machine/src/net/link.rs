//! The link: when each direction is free, and the frames in flight.

use napkin_core::Ns;

use crate::config;
use crate::net::packet::Packet;

/// The link, with a store of the frames in flight.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// When each direction is free again: to the host, and from it.
    in_free: Ns,
    out_free: Ns,
    /// Until this time frames to the host are lost.
    down_until: Ns,
    packets: Vec<Packet>,
    /// Free indices of `packets`.
    free: Vec<u32>,
}

impl Link {
    /// Returns the serialisation time of a frame.
    pub(super) fn wire_time(config: &config::Link, packet: &Packet) -> Ns {
        (f64::from(packet.bytes) * 8.0 / config.bits_per_ns) as Ns
    }

    /// Stores a frame until its event. Returns its index.
    pub(super) fn store(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free.pop() {
            self.packets[place as usize] = packet;
            return place;
        }
        self.packets.push(packet);
        self.packets.len() as u32 - 1
    }

    /// Takes a frame out of the store.
    pub(crate) fn take(&mut self, place: u32) -> Packet {
        self.free.push(place);
        self.packets[place as usize]
    }

    /// Returns the size of the store.
    pub(crate) fn kept(&self) -> usize {
        self.packets.len()
    }

    /// Queues a frame for the link to the host, at `time` or later. Returns when its last bit has left the peer.
    pub(super) fn queue_inbound(&mut self, time: Ns, config: &config::Link, packet: &Packet) -> Ns {
        self.in_free = time.max(self.in_free) + Link::wire_time(config, packet);
        self.in_free
    }

    /// Returns whether frames to the host are lost now.
    pub(super) fn is_down(&self, now: Ns) -> bool {
        now < self.down_until
    }

    /// Loses frames to the host until the given time.
    pub(crate) fn go_down(&mut self, until: Ns) {
        self.down_until = until;
    }

    /// Queues a frame for the link from the host, at `ready` or later. Returns its index in the store, and when it
    /// has left.
    pub(crate) fn queue_outbound(
        &mut self,
        ready: Ns,
        config: &config::Link,
        packet: Packet,
    ) -> (u32, Ns) {
        self.out_free = ready.max(self.out_free) + Link::wire_time(config, &packet);
        (self.store(packet), self.out_free)
    }
}
