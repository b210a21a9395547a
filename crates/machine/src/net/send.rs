//! Frames that are sent to the host, by the other side or by the host itself.

use napkin_core::Ns;

use crate::events::Event;
use crate::machine::Machine;
use crate::net::link::Link;
use crate::net::packet::Packet;
use crate::sched::id::ThreadId;

impl Machine<'_> {
    /// A frame of the other side, sent now: it reaches the host after the link.
    pub fn send_to_host(&mut self, packet: Packet) {
        self.send_to_host_at(self.now, packet);
    }

    /// A frame of a program of this host, sent by the thread that asks: it reaches the host itself.
    pub fn send_from(&mut self, thread: ThreadId, packet: Packet) {
        self.send_to_host(packet);
        self.touch_device(usize::from(self.threads[thread].cpu()));
    }

    /// A frame of the other side, put on the wire at a time not before now.
    pub fn send_to_host_at(&mut self, time: Ns, packet: Packet) {
        if self.link.is_down(self.now) {
            return;
        }
        let sent = self.link.enter(time.max(self.now), &self.config.link, &packet);
        self.arrives_after(sent, packet);
    }

    /// A frame of the other side, put on the wire at a later time than now. It does not queue for the
    /// link, which those that are sent meanwhile share: right only where the link is mostly idle.
    pub fn send_to_host_later(&mut self, time: Ns, packet: Packet) {
        if self.link.is_down(self.now) {
            return;
        }
        let wire = Link::wire_time(&self.config.link, &packet);
        self.arrives_after(time.max(self.now) + wire, packet);
    }

    fn arrives_after(&mut self, sent: Ns, packet: Packet) {
        let at = sent + self.config.link.latency + self.config.nic.dma;
        let packet = self.link.store(packet);
        self.events.at(at, Event::Arrive { packet });
    }
}
