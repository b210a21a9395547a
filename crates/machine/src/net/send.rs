//! Frames sent to the host, by the peer or by the host itself.

use napkin_core::Ns;

use crate::events::Event;
use crate::machine::Machine;
use crate::net::link::Link;
use crate::net::packet::Packet;
use crate::sched::id::ThreadId;

impl Machine<'_> {
    /// Sends a frame from the peer now; it arrives after the link's latency.
    pub fn send_to_host(&mut self, packet: Packet) {
        self.send_to_host_at(self.now, packet);
    }

    /// Sends a frame from a thread of this host to the host itself, through the link's model.
    pub fn send_from(&mut self, thread: ThreadId, packet: Packet) {
        self.send_to_host(packet);
        self.touch_device(usize::from(self.threads[thread].cpu()));
    }

    /// Sends a frame from the peer at `time`, but not before now.
    pub fn send_to_host_at(&mut self, time: Ns, packet: Packet) {
        if self.link.is_down(self.now) {
            return;
        }
        let sent = self.link.queue_inbound(time.max(self.now), &self.config.link, &packet);
        self.arrives_after(sent, packet);
    }

    /// Sends a frame from the peer at a later time. The frame does not queue for the link, and those sent meanwhile
    /// ignore it: right only where the link is mostly idle.
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
        self.events.schedule(at, Event::Arrive { packet });
    }
}
