//! The link: when it is free, and the frames that are under way.

use napkin_core::Ns;

use crate::config;
use crate::net::packet::Packet;

/// The link, with a store of what is under way on it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// When it is free again, to the host and from it.
    in_free: Ns,
    out_free: Ns,
    /// What the other side sends until then is lost.
    down_until: Ns,
    packets: Vec<Packet>,
    /// Places of the store that nothing is in.
    free: Vec<u32>,
}

impl Link {
    /// How long a frame is on the wire.
    pub(super) fn wire_time(config: &config::Link, packet: &Packet) -> Ns {
        (f64::from(packet.bytes) * 8.0 / config.bits_per_ns) as Ns
    }

    /// Keeps a frame until an event needs it.
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

    /// Room in the store.
    pub(crate) fn kept(&self) -> usize {
        self.packets.len()
    }

    /// A frame of the other side is put on the wire at a time, behind those before it: when it has left.
    pub(super) fn enter(&mut self, time: Ns, config: &config::Link, packet: &Packet) -> Ns {
        self.in_free = time.max(self.in_free) + Link::wire_time(config, packet);
        self.in_free
    }

    /// What the other side sends is lost.
    pub(super) fn is_down(&self, now: Ns) -> bool {
        now < self.down_until
    }

    /// The other side's frames are lost until then.
    pub(crate) fn go_down(&mut self, until: Ns) {
        self.down_until = until;
    }

    /// A frame of the host is ready at a time: its place in the store, and when it has left.
    pub(crate) fn leave(&mut self, ready: Ns, config: &config::Link, packet: Packet) -> (u32, Ns) {
        self.out_free = ready.max(self.out_free) + Link::wire_time(config, &packet);
        (self.store(packet), self.out_free)
    }
}
