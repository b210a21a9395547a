//! The link: frames on their way to the host, and the store of those that are under way.

use napkin_core::Ns;

use crate::events::Event;
use crate::machine::Machine;
use crate::packet::Packet;
use crate::thread::ThreadId;

impl Machine<'_> {
    /// How long a frame is on the wire.
    pub(crate) fn wire_time(&self, packet: &Packet) -> Ns {
        (f64::from(packet.bytes) * 8.0 / self.config.link.bits_per_ns) as Ns
    }

    /// Keeps a frame until an event needs it.
    pub(crate) fn store(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free_packets.pop() {
            self.packets[place as usize] = packet;
            return place;
        }
        self.packets.push(packet);
        self.packets.len() as u32 - 1
    }

    pub(crate) fn unstore(&mut self, place: u32) -> Packet {
        self.free_packets.push(place);
        self.packets[place as usize]
    }

    /// A frame of the other side, sent now: it reaches the host after the link.
    pub fn send_to_host(&mut self, packet: Packet) {
        self.send_to_host_at(self.now, packet);
    }

    /// A frame of a program of this host, sent by the thread that asks: it reaches the host itself.
    pub fn send_from(&mut self, thread: ThreadId, packet: Packet) {
        self.send_to_host(packet);
        self.touch_device(usize::from(self.threads[thread.0 as usize].cpu));
    }

    /// A frame of the other side, put on the wire at a time not before now.
    pub fn send_to_host_at(&mut self, time: Ns, packet: Packet) {
        if self.now < self.link_down_until {
            return;
        }
        let begin = time.max(self.link_in).max(self.now);
        let wire = self.wire_time(&packet);
        self.link_in = begin + wire;
        let arrives = begin + wire + self.config.link.latency + self.config.nic.dma;
        let packet = self.store(packet);
        self.events.at(arrives, Event::Arrive { packet });
    }

    /// A frame of the other side, put on the wire at a later time than now. It does not queue for the
    /// link, which those that are sent meanwhile share: right only where the link is mostly idle.
    pub fn send_to_host_later(&mut self, time: Ns, packet: Packet) {
        if self.now < self.link_down_until {
            return;
        }
        let wire = self.wire_time(&packet);
        let arrives = time.max(self.now) + wire + self.config.link.latency + self.config.nic.dma;
        let packet = self.store(packet);
        self.events.at(arrives, Event::Arrive { packet });
    }
}
