//! Watcher of a run: a [`Trace`] or none, and the calls by which the machine's parts tell it what happens.

use napkin_core::{Host, Id, Ns, Work};

use crate::net::NicQueue;
use crate::net::packet::{Kind, Packet};
use crate::trace::{Mark, Station, Trace};

/// Whoever watches; mostly nobody does. All times are those of [`Trace`].
#[derive(Debug, Default)]
pub(crate) struct Watcher(Option<Box<dyn Trace>>);

impl Watcher {
    /// From now on it is this one.
    pub(crate) fn set(&mut self, trace: Box<dyn Trace>) {
        self.0 = Some(trace);
    }

    /// Whether anybody watches.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Tells the watcher something.
    #[inline]
    pub(crate) fn tell(&mut self, what: impl FnOnce(&mut dyn Trace)) {
        if let Some(trace) = &mut self.0 {
            what(&mut **trace);
        }
    }

    /// A moment worth a mark, on a CPU.
    #[inline]
    pub(crate) fn mark(&mut self, cpu: usize, at: Ns, mark: Mark<'_>) {
        self.tell(|trace| trace.mark(cpu as u16, at, mark));
    }

    /// A queue's ring holds so many frames.
    #[inline]
    pub(crate) fn depth(&mut self, queue: usize, at: Ns, frames: usize) {
        self.tell(|trace| trace.depth(queue as u16, at, frames));
    }

    /// A queue's interrupt is masked, or not.
    #[inline]
    pub(crate) fn masked(&mut self, queue: usize, at: Ns, masked: bool) {
        self.tell(|trace| trace.masked(queue as u16, at, masked));
    }

    /// A frame for a socket has come to a station of its way.
    #[inline]
    pub(crate) fn passed(&mut self, packet: &Packet, at: Ns, station: Station) {
        if packet.kind == Kind::Data {
            self.tell(|trace| trace.passed(packet, at, station));
        }
    }

    /// A poll has ended; `holds`: under *hold*, which polled mode without work is then.
    pub(crate) fn polled(&mut self, cpu: usize, id: Id, at: Ns, work: Work, holds: bool) {
        self.tell(|trace| {
            trace.polled(cpu as u16, id.0, at, work.rx);
            if holds {
                trace.held(id.0, at, !work.any());
            }
        });
    }

    /// Which queues are suspended, where that has changed.
    #[inline]
    pub(crate) fn suspensions(&mut self, at: Ns, host: &Host<()>, queues: &mut [NicQueue]) {
        if self.is_some() {
            self.tell_suspensions(at, host, queues);
        }
    }

    #[cold]
    fn tell_suspensions(&mut self, at: Ns, host: &Host<()>, queues: &mut [NicQueue]) {
        for (index, queue) in (0..).zip(queues) {
            let suspended = host.instance(Id(index)).suspending_contexts() > 0;
            if queue.tell_suspended(suspended) {
                self.tell(|trace| trace.suspended(index, at, suspended));
            }
        }
    }
}
