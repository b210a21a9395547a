//! Tells whoever watches.

use napkin_core::{Id, Ns, Work};

use crate::machine::Machine;
use crate::net::packet::{Kind, Packet};
use crate::trace::Station;

impl Machine<'_> {
    /// Tells the watcher which queues are suspended, where that has changed.
    #[inline]
    pub(crate) fn trace_suspensions(&mut self) {
        if self.trace.is_some() {
            self.tell_suspensions();
        }
    }

    #[cold]
    fn tell_suspensions(&mut self) {
        let Some(trace) = &mut self.trace else { return };
        for (index, queue) in (0..).zip(self.queues.iter_mut()) {
            let suspended = self.host.instance(Id(index)).suspending_contexts() > 0;
            if queue.tell_suspended(suspended) {
                trace.suspended(index, self.now, suspended);
            }
        }
    }

    /// Tells the watcher that a frame for a socket has come to a station of its way.
    pub(crate) fn passed(&mut self, packet: &Packet, at: Ns, station: Station) {
        if let Some(trace) = &mut self.trace
            && packet.kind == Kind::Data
        {
            trace.passed(packet, at, station);
        }
    }

    /// Tells the watcher of a poll that has ended, by an owner that holds or by one that does not.
    pub(crate) fn trace_poll(&mut self, cpu: usize, id: Id, work: Work, holds: bool) {
        let Some(trace) = &mut self.trace else { return };
        trace.polled(cpu as u16, id.0, self.now, work.rx);
        if holds && self.host.instance(id).settings().hold > 0 {
            trace.held(id.0, self.now, !work.any());
        }
    }
}
