//! One queue of the NIC: its rings, its interrupt, and the timer events of its instance.

use std::collections::VecDeque;

use napkin_core::{NEVER, Ns, Pressure};
use napkin_policy::Threaded;

use crate::config::NicConfig;
use crate::counts::QueueCounts;
use crate::net::moderation::{Adaptive, TxModeration};
use crate::net::packet::Packet;

/// A receive queue with its transmit queue.
#[derive(Debug)]
pub(crate) struct NicQueue {
    /// Frames that a poll has taken and not yet delivered, followed by those in the receive ring.
    frames: VecDeque<Packet>,
    /// Number of frames taken and not yet delivered.
    taken: usize,
    pub(super) size: usize,
    pub(super) completions: u16,
    /// Descriptors in an AF_XDP transmit ring: the next poll sends them.
    pub(super) outgoing: VecDeque<Packet>,
    /// The CPU that made the last poll.
    pub(super) polled_on: u16,
    /// Whether the interrupt is unmasked. Raising it masks it.
    pub(super) armed: bool,
    /// Whether an interrupt is on its way to the CPU.
    pub(super) line: bool,
    /// Moderation: frames since the last interrupt, whether a timer event is pending, and its generation.
    pub(super) coalesced: u32,
    pub(super) moderating: bool,
    pub(super) moderation: u32,
    pub(super) coalesce: Ns,
    pub(super) coalesce_frames: u32,
    /// Due time of the moderation timer: later than its event if further frames have moved it.
    pub(super) moderate_at: Ns,
    pub(super) adaptive: Option<Adaptive>,
    /// Interrupts raised for received frames.
    pub(super) rx_events: u64,
    /// Moderation of transmit completions, where it is separate.
    pub(super) tx_moderation: Option<TxModeration>,
    /// Bytes that have arrived.
    pub(super) bytes: u64,
    /// Arrival time of the last frame.
    pub(super) arrived_at: Ns,
    /// Time of the earliest pending event that checks the instance's deadline; `NEVER` if none is pending.
    pub(super) timer_at: Ns,
    /// The CPU that armed the timer, on which it fires (the kernel pins it).
    pub(super) timer_cpu: u16,
    pub(super) pressure: Pressure,
    /// Sockets that get frames from this queue, each with the time of the last one. Kept only under *feedback*.
    pub(super) receivers: Vec<(u32, Ns)>,
    /// Faults: whether the next interrupt is lost, and by how long the next one is delayed.
    pub(super) lose_next: bool,
    pub(super) late_by: Ns,
    /// Whether an interrupt was lost and neither an unmask nor the watchdog has made up for it.
    pub(super) lost: bool,
    /// Since when the ring has waited for a poll.
    pub(super) waiting_since: Ns,
    /// The last change of mode: the old mode, and the polls that its owner had made by then.
    pub(super) mode_change: Option<(Threaded, u64)>,
    /// Number of polls at the watchdog's last run.
    pub(super) polls_seen: u64,
    /// The CPU that spins on this queue, or skips expiries of its timer, in bulk.
    pub(super) skipping_cpu: Option<u16>,
    /// Suspension state last reported to the trace.
    pub(super) suspended: bool,
    pub(super) counts: QueueCounts,
}

impl NicQueue {
    pub(crate) fn new(config: &NicConfig) -> Self {
        NicQueue {
            frames: VecDeque::new(),
            taken: 0,
            size: config.ring as usize,
            completions: 0,
            outgoing: VecDeque::new(),
            polled_on: u16::MAX,
            armed: false,
            line: false,
            coalesced: 0,
            moderating: false,
            moderation: 0,
            coalesce: config.coalesce,
            coalesce_frames: config.coalesce_frames,
            moderate_at: 0,
            adaptive: config.adaptive.then(|| Adaptive::receive(config.coalesce_restarts)),
            rx_events: 0,
            tx_moderation: (config.adaptive && config.tx_interrupts).then(TxModeration::new),
            bytes: 0,
            arrived_at: 0,
            timer_at: NEVER,
            timer_cpu: 0,
            pressure: Pressure::Room,
            receivers: Vec::new(),
            lose_next: false,
            late_by: 0,
            lost: false,
            waiting_since: 0,
            mode_change: None,
            polls_seen: 0,
            skipping_cpu: None,
            suspended: false,
            counts: QueueCounts::default(),
        }
    }

    /// Whether frames or completions wait that an interrupt would be for.
    pub(crate) fn has_work(&self) -> bool {
        self.depth() > 0 || self.completions > 0
    }

    /// Unmasks the interrupt. Returns whether frames wait. A lost interrupt no longer matters, since the caller acts
    /// on the answer.
    pub(crate) fn unmask(&mut self) -> bool {
        self.armed = true;
        self.lost = false;
        self.depth() > 0
    }

    /// Masks the interrupt. One that is already on its way still comes.
    pub(crate) fn mask(&mut self) {
        self.armed = false;
        self.void_moderation();
    }

    /// Invalidates pending moderation timers.
    pub(super) fn void_moderation(&mut self) {
        self.moderating = false;
        self.moderation = self.moderation.wrapping_add(1);
        if let Some(tx) = &mut self.tx_moderation {
            tx.pending = false;
        }
    }

    /// Returns the number of frames in the ring.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.frames.len() - self.taken
    }

    /// Puts a frame into the ring, which must have room.
    #[inline]
    pub(super) fn put(&mut self, packet: Packet) {
        self.frames.push_back(packet);
    }

    /// Returns the number of frames in the ring, or between a poll and their delivery.
    pub(crate) fn backlog(&self) -> usize {
        self.frames.len()
    }

    /// Whether the ring holds more frames than it has room for.
    pub(crate) fn overflows(&self) -> bool {
        self.depth() > self.size
    }

    /// Returns a measure of the memory in use. It must not grow with virtual time.
    pub(crate) fn kept(&self) -> usize {
        self.frames.capacity() + self.receivers.len()
    }

    /// Takes the next frame off the ring, for a poll.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<&Packet> {
        let packet = self.frames.get(self.taken)?;
        self.taken += 1;
        Some(packet)
    }

    /// Returns the number of frames taken and not yet delivered.
    #[inline]
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the first of those.
    #[inline]
    pub(crate) fn next_taken(&self) -> Option<&Packet> {
        if self.taken == 0 { None } else { self.frames.front() }
    }

    /// Removes the first of those, which is delivered.
    #[inline]
    pub(super) fn deliver(&mut self) -> Option<Packet> {
        self.taken = self.taken.checked_sub(1)?;
        self.counts.delivered += 1;
        self.frames.pop_front()
    }

    /// Whether the next poll has descriptors to send.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes the next descriptor to send.
    pub(crate) fn next_to_send(&mut self) -> Option<Packet> {
        self.outgoing.pop_front()
    }

    /// Records a poll by a CPU. Returns whether another CPU made the last one.
    #[inline]
    pub(crate) fn record_polling_cpu(&mut self, cpu: usize) -> bool {
        std::mem::replace(&mut self.polled_on, cpu as u16) != cpu as u16
    }

    /// Whether a poll would find nothing, and this CPU made the last one.
    pub(crate) fn is_quiet(&self, cpu: usize) -> bool {
        self.backlog() == 0
            && self.outgoing.is_empty()
            && self.completions == 0
            && usize::from(self.polled_on) == cpu
    }

    /// Whether the driver takes a sample at each unmask.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.adaptive.is_some()
    }

    /// Records the end of a poll at the given time.
    pub(crate) fn polled(&mut self, at: Ns) {
        self.waiting_since = at;
    }

    /// Returns how long frames have waited for a poll.
    pub(crate) fn waited(&self, now: Ns) -> Ns {
        now.saturating_sub(self.waiting_since)
    }

    /// Whether the interrupt is unmasked.
    pub(crate) fn armed(&self) -> bool {
        self.armed
    }

    /// Whether the moderation timer is pending.
    pub(crate) fn moderating(&self) -> bool {
        self.moderating
    }

    /// Whether an interrupt is on its way to the CPU.
    pub(crate) fn line(&self) -> bool {
        self.line
    }

    /// Records that the interrupt has reached the CPU.
    pub(crate) fn line_arrived(&mut self) {
        self.line = false;
    }

    /// Whether an interrupt was lost and nothing has made up for it.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// Whether the interrupt is unmasked, and either nothing waits or moderation has scheduled one.
    #[inline]
    pub(crate) fn will_interrupt(&self) -> bool {
        self.armed && (self.moderating || self.depth() == 0)
    }

    /// Returns the time of the earliest pending event that checks the instance's deadline; `NEVER`: none.
    #[inline]
    pub(crate) fn timer_at(&self) -> Ns {
        self.timer_at
    }

    /// Returns the CPU on which the timer fires.
    pub(crate) fn timer_cpu(&self) -> usize {
        usize::from(self.timer_cpu)
    }

    /// Records that a CPU arms the timer.
    pub(crate) fn timer_starts(&mut self, cpu: usize) {
        self.counts.timer_starts += 1;
        self.timer_cpu = cpu as u16;
    }

    /// Records that the timer has expired.
    pub(crate) fn timer_expires(&mut self) {
        self.counts.timer_expiries += 1;
    }

    /// Requests a check of the deadline at a time. Returns whether it needs an event: no earlier one is pending.
    pub(crate) fn request_timer_check(&mut self, at: Ns) -> bool {
        let sooner = at < self.timer_at;
        self.timer_at = self.timer_at.min(at);
        sooner
    }

    /// Handles a timer event. Returns `false` if the event is redundant, since another one is pending.
    pub(crate) fn take_due_timer_check(&mut self, now: Ns) -> bool {
        let due = self.timer_at <= now;
        if due {
            self.timer_at = NEVER;
        }
        due
    }

    /// Cancels the pending check of the deadline.
    pub(crate) fn cancel_timer_check(&mut self) {
        self.timer_at = NEVER;
    }

    /// Adds expiries that were skipped, each followed by a poll that armed the timer again; the last one ended at
    /// `polled`.
    pub(crate) fn add_expiries(&mut self, times: u64, polled: Ns) {
        self.counts.timer_expiries += times;
        self.counts.timer_starts += times;
        self.polled(polled);
    }

    /// Makes the next interrupt be lost.
    pub(crate) fn lose_next(&mut self) {
        self.lose_next = true;
    }

    /// Delays the next interrupt by so many nanoseconds.
    pub(crate) fn delay_next(&mut self, by: Ns) {
        self.late_by = by;
    }

    /// Returns the last change of mode: the old mode, and the polls that its owner had made by then.
    #[inline]
    pub(crate) fn mode_change(&self) -> Option<(Threaded, u64)> {
        self.mode_change
    }

    /// Records a change of mode; `None`: the new mode has the same owner.
    pub(crate) fn set_mode_change(&mut self, from: Option<(Threaded, u64)>) {
        self.mode_change = from;
    }

    /// Runs the watchdog, after `polls` polls. Returns whether work waits without an owner and without a poll since
    /// its last run; the interrupt then no longer counts as lost.
    pub(crate) fn check_stuck(&mut self, polls: u64, owned: bool) -> bool {
        let stuck = self.has_work() && !owned && self.polls_seen == polls;
        self.polls_seen = polls;
        if stuck {
            self.lost = false;
            self.counts.watchdog += 1;
        }
        stuck
    }

    /// Returns the CPU that spins on this queue, or skips expiries of its timer, in bulk.
    #[inline]
    pub(crate) fn skipping_cpu(&self) -> Option<u16> {
        self.skipping_cpu
    }

    pub(crate) fn set_skipping_cpu(&mut self, cpu: Option<u16>) {
        self.skipping_cpu = cpu;
    }

    /// Sets the suspension state reported to the trace. Returns whether it has changed.
    pub(crate) fn set_traced_suspension(&mut self, suspended: bool) -> bool {
        std::mem::replace(&mut self.suspended, suspended) != suspended
    }

    #[inline]
    pub(crate) fn counts(&self) -> &QueueCounts {
        &self.counts
    }
}
