//! The optional [`Trace`] of a run, and the calls by which the machine reports events to it.

use napkin_core::{Host, Id, Ns, Work};

use crate::net::NicQueue;
use crate::net::packet::{Kind, Packet};
use crate::trace::{Mark, Station, Trace};

/// The trace, if one is attached. All times are virtual, as in [`Trace`].
#[derive(Debug, Default)]
pub(crate) struct Tracer(Option<Box<dyn Trace>>);

impl Tracer {
    /// Attaches a trace, which replaces the previous one.
    pub(crate) fn set(&mut self, trace: Box<dyn Trace>) {
        self.0 = Some(trace);
    }

    /// Whether a trace is attached.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Calls the trace, if one is attached.
    #[inline]
    pub(crate) fn emit(&mut self, call: impl FnOnce(&mut dyn Trace)) {
        if let Some(trace) = &mut self.0 {
            call(&mut **trace);
        }
    }

    /// Reports a point event on a CPU.
    #[inline]
    pub(crate) fn mark(&mut self, cpu: usize, at: Ns, mark: Mark<'_>) {
        self.emit(|trace| trace.mark(cpu as u16, at, mark));
    }

    /// Reports the number of frames in a queue's ring.
    #[inline]
    pub(crate) fn depth(&mut self, queue: usize, at: Ns, frames: usize) {
        self.emit(|trace| trace.depth(queue as u16, at, frames));
    }

    /// Reports whether a queue's interrupt is masked.
    #[inline]
    pub(crate) fn masked(&mut self, queue: usize, at: Ns, masked: bool) {
        self.emit(|trace| trace.masked(queue as u16, at, masked));
    }

    /// Reports that a data frame has reached a station; acknowledgements are not traced.
    #[inline]
    pub(crate) fn passed(&mut self, packet: &Packet, at: Ns, station: Station) {
        if packet.kind == Kind::Data {
            self.emit(|trace| trace.passed(packet, at, station));
        }
    }

    /// Reports the end of a poll. With `holds` (the *hold* policy applies) also whether the queue is now held in
    /// polled mode without work.
    pub(crate) fn polled(&mut self, cpu: usize, id: Id, at: Ns, work: Work, holds: bool) {
        self.emit(|trace| {
            trace.polled(cpu as u16, id.0, at, work.rx);
            if holds {
                trace.held(id.0, at, !work.any());
            }
        });
    }

    /// Reports the queues whose suspension has started or ended since the last call.
    #[inline]
    pub(crate) fn suspensions(&mut self, at: Ns, host: &Host<()>, queues: &mut [NicQueue]) {
        if self.is_some() {
            self.emit_suspensions(at, host, queues);
        }
    }

    #[cold]
    fn emit_suspensions(&mut self, at: Ns, host: &Host<()>, queues: &mut [NicQueue]) {
        for (index, queue) in (0..).zip(queues) {
            let suspended = host.instance(Id(index)).suspending_contexts() > 0;
            if queue.set_traced_suspension(suspended) {
                self.emit(|trace| trace.suspended(index, at, suspended));
            }
        }
    }
}
