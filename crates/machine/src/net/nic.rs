//! The NIC: rings, interrupts and their moderation, transmission. Its driver is in `driver.rs`.

use napkin_core::{CpuId, Id, MILLISECOND, Ns, Op, Pressure, RaisedFrom};

use crate::events::Event;
use crate::machine::Machine;
use crate::net::moderation::Sample;
use crate::net::packet::{Kind, Packet};
use crate::sched::id::{State, ThreadId};
use crate::trace::Station;

/// A receiver without a frame from a queue for this long does not count for the queue's pressure.
const ACTIVE: Ns = 100 * MILLISECOND;

impl Machine<'_> {
    /// Handles the arrival of a frame: puts it into the ring, or drops it.
    pub(crate) fn arrive(&mut self, packet: Packet) {
        let index = usize::from(self.sockets.queue_of(packet.flow));
        self.catch_up_queue(index);
        let queue = &mut self.queues[index];
        queue.counts.arrived += 1;
        queue.bytes += u64::from(packet.bytes);
        if queue.depth() == 0 {
            queue.waiting_since = self.now;
        }
        if queue.depth() >= queue.size {
            queue.counts.ring_drops += 1;
            self.trace.passed(&packet, self.now, Station::Dropped);
            return;
        }
        queue.put(packet);
        queue.arrived_at = self.now;
        queue.coalesced += 1;
        let depth = queue.depth();
        self.trace.depth(index, self.now, depth);
        self.trace.passed(&packet, self.now, Station::Ring);
        self.moderate(index);
    }

    /// Raises or schedules the interrupt for an arrival or a completion.
    pub(super) fn moderate(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if !queue.armed || queue.line {
            return;
        }
        let enough = queue.coalesce_frames > 0 && queue.coalesced >= queue.coalesce_frames;
        if queue.coalesce == 0 || enough {
            self.interrupt_for_frames(index);
            return;
        }
        let due = self.now + queue.coalesce;
        self.start_moderation(index, due);
    }

    /// Raises the interrupt for received frames now.
    pub(super) fn interrupt_for_frames(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        queue.rx_events += 1;
        queue.coalesced = 0;
        self.raise_line(index);
    }

    /// Starts the moderation timer for received frames, or moves it if each frame restarts it.
    pub(super) fn start_moderation(&mut self, index: usize, due: Ns) {
        let queue = &mut self.queues[index];
        if !queue.moderating || self.config.nic.coalesce_restarts {
            queue.moderate_at = due;
        }
        if !queue.moderating {
            queue.moderating = true;
            let generation = queue.moderation;
            self.events.schedule(due, Event::ModerationTimer { queue: index as u16, generation });
        }
    }

    pub(crate) fn moderation_expires(&mut self, index: usize, generation: u32) {
        let queue = &mut self.queues[index];
        if queue.moderation != generation || !queue.moderating {
            return;
        }
        if queue.moderate_at > self.now {
            let at = queue.moderate_at;
            self.events.schedule(at, Event::ModerationTimer { queue: index as u16, generation });
            return;
        }
        queue.moderating = false;
        // A poll without an interrupt may have taken the frames already.
        if queue.armed && queue.has_work() {
            self.interrupt_for_frames(index);
        }
    }

    /// Raises or schedules the interrupt for transmit completions, which may have come while it was masked.
    pub(super) fn moderate_completions(&mut self, index: usize) {
        let now = self.now;
        let queue = &mut self.queues[index];
        let Some(tx) = &mut queue.tx_moderation else { return self.moderate(index) };
        if !queue.armed || queue.line {
            return;
        }
        let due = tx.finished(now);
        if due <= now {
            tx.raised(now);
            self.raise_line(index);
        } else if !tx.pending {
            tx.pending = true;
            let generation = queue.moderation;
            self.events.schedule(due, Event::TxModerationTimer { queue: index as u16, generation });
        }
    }

    pub(crate) fn tx_moderation_expires(&mut self, index: usize, generation: u32) {
        let queue = &mut self.queues[index];
        if queue.moderation != generation {
            return;
        }
        let Some(tx) = &mut queue.tx_moderation else { return };
        tx.pending = false;
        // A poll without an interrupt may have reaped the completions already.
        if !queue.armed || queue.completions == 0 {
            return;
        }
        tx.raised(self.now);
        self.raise_line(index);
    }

    /// Takes the sample of adaptive moderation at an unmask.
    pub(super) fn adapt(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        let Some(adaptive) = &mut queue.adaptive else { return };
        let sample = Sample {
            at: self.now,
            packets: queue.counts.arrived,
            bytes: queue.bytes,
            events: queue.rx_events,
        };
        if let Some((time, frames)) = adaptive.sample(sample) {
            queue.coalesce = time;
            queue.coalesce_frames = frames;
        }
        if let Some(tx) = &mut queue.tx_moderation {
            tx.sample(self.now);
        }
    }

    pub(super) fn raise_line(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        queue.armed = false;
        queue.void_moderation();
        // The card masks the interrupt as it raises it.
        self.trace.masked(index, self.now, true);
        if std::mem::take(&mut queue.lose_next) {
            queue.lost = true;
            return;
        }
        queue.line = true;
        queue.counts.interrupts += 1;
        let late = std::mem::take(&mut queue.late_by);
        let at = self.now + self.config.nic.interrupt_latency + late;
        self.events.schedule(at, Event::InterruptLine { queue: index as u16 });
    }

    /// Transmits a frame of the host on a queue, now.
    pub fn transmit(&mut self, queue: u16, packet: Packet) {
        self.catch_up_queue(usize::from(queue));
        let this = &mut self.queues[usize::from(queue)];
        this.counts.sent += 1;
        if let Some(tx) = &mut this.tx_moderation {
            tx.packets += 1;
            tx.bytes += u64::from(packet.bytes);
        }
        let ready = self.now + self.config.nic.transmit;
        let (place, left) = self.link.queue_outbound(ready, &self.config.link, packet);
        self.trace.passed(&packet, left, Station::Answered);
        self.events.schedule(left + self.config.link.latency, Event::ReachPeer { packet: place });
        self.events.schedule(left, Event::Transmitted { queue });
    }

    /// Puts a frame into a queue's AF_XDP transmit ring: the next poll of the queue sends it.
    pub fn submit(&mut self, queue: u16, packet: Packet) {
        self.catch_up_queue(usize::from(queue));
        self.queues[usize::from(queue)].outgoing.push_back(packet);
    }

    /// Schedules a queue's instance from a call of the running thread (AF_XDP's wake-up, a receiver that has
    /// drained). If the softirq is this CPU's, it runs before the call returns.
    pub fn kick(&mut self, queue: u16) {
        // The CPU may be skipping expiries of another queue's timer, and gets this queue to poll.
        self.catch_up(usize::from(self.host.instance(Id(queue)).cpu().0));
        self.catch_up_queue(usize::from(queue));
        let cpu = usize::from(self.running_cpu);
        match self.host.schedule(Id(queue), RaisedFrom::Application) {
            Some(Op::Wake(task)) => self.wake_task(cpu, task),
            Some(Op::RunHere(CpuId(target)) | Op::Raise(CpuId(target))) => {
                self.raise_softirq(cpu, usize::from(target));
            }
            _ => {}
        }
    }

    pub(crate) fn transmitted(&mut self, index: usize) {
        self.catch_up_queue(index);
        let queue = &mut self.queues[index];
        queue.completions = queue.completions.saturating_add(1);
        if self.config.nic.tx_interrupts {
            self.moderate_completions(index);
        }
    }

    /// Returns the cost of fetching a flow's state: 0 if its last frame was delivered on this CPU.
    #[inline]
    pub(crate) fn fetch_flow(&mut self, flow: u32, cpu: usize) -> Ns {
        if self.sockets.record_delivery_cpu(flow, cpu as u16) {
            self.config.locality.cross_cpu
        } else {
            0
        }
    }

    /// Hands one frame to the stack. Returns the thread to wake, if any.
    #[inline]
    pub(crate) fn deliver_one(&mut self, index: usize, cpu: usize) -> Option<ThreadId> {
        let mut packet = self.queues[index].deliver()?;
        packet.delivered = self.cpus[cpu].count_delivery();
        packet.cpu = cpu as u16;
        if packet.kind == Kind::Ack {
            return None;
        }
        let place = self.sockets.socket_of_flow(packet.flow)?;
        if self.host.instance(Id(index as u16)).feedback() {
            self.note_receiver(index, place);
        }
        let id = Id(index as u16);
        if !self.sockets.deliver(place, id, packet) {
            self.queues[index].counts.socket_drops += 1;
            self.trace.passed(&packet, self.now, Station::Dropped);
            return None;
        }
        self.trace.passed(&packet, self.now, Station::Socket(cpu as u16));
        let (epoll, waiter) = self.sockets.mark_ready(place);
        if let Some(epoll) = epoll {
            self.contexts[epoll as usize].follow(id);
        }
        let waiter = waiter?;
        let thread = &self.threads[waiter];
        let (state, at) = (thread.state(), usize::from(thread.cpu()));
        if state == State::Running && at != cpu {
            self.catch_up(at);
        }
        let thread = &self.threads[waiter];
        (thread.state() == State::Sleeping && thread.execution.in_pass() && !thread.woken())
            .then_some(waiter)
    }

    /// Records that a socket gets frames of a queue.
    fn note_receiver(&mut self, index: usize, place: u32) {
        let receivers = &mut self.queues[index].receivers;
        match receivers.iter_mut().find(|it| it.0 == place) {
            Some(it) => it.1 = self.now,
            None => receivers.push((place, self.now)),
        }
    }

    /// Returns the pressure of a queue's receivers, which only *feedback* uses. It is full if all active receivers
    /// (open, and with a recent frame from this queue) are full.
    pub(crate) fn pressure(&mut self, index: usize) -> Pressure {
        if !self.host.instance(Id(index as u16)).feedback() {
            return Pressure::Room;
        }
        let since = self.now.saturating_sub(ACTIVE);
        let queue = &mut self.queues[index];
        let sockets = &mut self.sockets;
        queue.receivers.retain(|&(place, last)| last >= since && sockets.is_open(place));
        let full = !queue.receivers.is_empty()
            && queue.receivers.iter().all(|&(place, _)| sockets.is_full(place));
        queue.pressure = if full { Pressure::Full } else { Pressure::Room };
        if full {
            queue.receivers.iter().for_each(|&(place, _)| sockets.park(place));
        }
        queue.pressure
    }

    /// Reschedules the queues that were parked for a receiver, if it has drained.
    pub(super) fn resume_parked(&mut self, place: u32) {
        if !self.sockets.take_resumption(place) {
            return;
        }
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            let parked = queue.pressure == Pressure::Full;
            if parked && queue.receivers.iter().any(|it| it.0 == place) {
                queue.pressure = Pressure::Room;
                self.kick(index as u16);
            }
        }
    }
}
