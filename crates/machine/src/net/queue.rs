//! One queue of the NIC: its rings, its interrupt, and the timer of its instance.

use std::collections::VecDeque;

use napkin_core::{NEVER, Ns, Pressure};
use napkin_policy::Threaded;

use crate::config::NicConfig;
use crate::counts::QueueCounts;
use crate::net::moderation::{Adaptive, Transmissions};
use crate::net::packet::Packet;

/// One receive queue with its transmissions.
#[derive(Debug)]
pub(crate) struct NicQueue {
    /// Frames that a poll has taken and not delivered yet, and behind them those of the receive ring.
    frames: VecDeque<Packet>,
    /// How many of them were taken.
    taken: usize,
    pub(super) size: usize,
    pub(super) completions: u16,
    /// Descriptors of an AF_XDP transmit ring: the next poll sends them.
    pub(super) outgoing: VecDeque<Packet>,
    /// The CPU that polled last.
    pub(super) polled_on: u16,
    /// Interrupts are allowed: the next frame raises one, and it masks itself.
    pub(super) armed: bool,
    /// An interrupt is on its way to the CPU.
    pub(super) line: bool,
    /// Moderation: frames since the last interrupt, and the timer under way.
    pub(super) held: u32,
    pub(super) moderating: bool,
    pub(super) moderation: u32,
    pub(super) coalesce: Ns,
    pub(super) coalesce_frames: u32,
    /// When the timer under way is due by now: frames may have moved it.
    pub(super) moderate_at: Ns,
    pub(super) adaptive: Option<Adaptive>,
    /// Interrupts that received frames have raised.
    pub(super) rx_events: u64,
    /// Moderation of finished transmissions, where it is apart.
    pub(super) transmissions: Option<Transmissions>,
    /// Bytes that have arrived.
    pub(super) bytes: u64,
    /// When the last frame arrived.
    pub(super) arrived_at: Ns,
    /// The earliest look at the instance's deadline that is under way.
    pub(super) timer_at: Ns,
    /// The CPU that started it, where it fires (the kernel pins it).
    pub(super) timer_cpu: u16,
    pub(super) pressure: Pressure,
    /// Sockets that get frames from here, and when the last one came: for the pressure, and kept
    /// only under *feedback*.
    pub(super) receivers: Vec<(u32, Ns)>,
    /// The next interrupt gets lost, or late: a fault.
    pub(super) lose_next: bool,
    pub(super) late_by: Ns,
    /// An interrupt was lost, and nobody knows yet.
    pub(super) lost: bool,
    /// Since when the ring has waited for a poll.
    pub(super) waiting_since: Ns,
    /// The last change of mode: the old one, and the polls its owners had made by then.
    pub(super) changed: Option<(Threaded, u64)>,
    /// Polls that the watchdog saw when it last looked.
    pub(super) polls_seen: u64,
    /// The CPU of a thread that polls this queue in vain, in bulk, or that rests while the ring is empty.
    pub(super) spinner: Option<u16>,
    /// Whoever watches has been told that it is suspended.
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
            held: 0,
            moderating: false,
            moderation: 0,
            coalesce: config.coalesce,
            coalesce_frames: config.coalesce_frames,
            moderate_at: 0,
            adaptive: config.adaptive.then(|| Adaptive::receive(config.coalesce_restarts)),
            rx_events: 0,
            transmissions: (config.adaptive && config.tx_interrupts).then(Transmissions::new),
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
            changed: None,
            polls_seen: 0,
            spinner: None,
            suspended: false,
            counts: QueueCounts::default(),
        }
    }

    /// Something waits that an interrupt is for.
    pub(crate) fn waits(&self) -> bool {
        self.depth() > 0 || self.completions > 0
    }

    /// Allows interrupts; says whether something waits already. Who does so has looked at the ring,
    /// so that an interrupt that was lost is of no concern any more.
    pub(crate) fn unmask(&mut self) -> bool {
        self.armed = true;
        self.lost = false;
        self.depth() > 0
    }

    /// Forbids them. One that is on its way still comes.
    pub(crate) fn mask(&mut self) {
        self.armed = false;
        self.void_moderation();
    }

    /// The moderation's timers under way are of no use any more.
    pub(super) fn void_moderation(&mut self) {
        self.moderating = false;
        self.moderation = self.moderation.wrapping_add(1);
        if let Some(tx) = &mut self.transmissions {
            tx.waits = false;
        }
    }

    /// Frames that wait in the ring.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.frames.len() - self.taken
    }

    /// A frame reaches the ring, which has room for it.
    #[inline]
    pub(super) fn put(&mut self, packet: Packet) {
        self.frames.push_back(packet);
    }

    /// Frames in the ring, or between a poll and its delivery.
    pub(crate) fn here(&self) -> usize {
        self.frames.len()
    }

    /// The ring holds more than it can.
    pub(crate) fn overflows(&self) -> bool {
        self.depth() > self.size
    }

    /// What it keeps room for: it must not grow with virtual time.
    pub(crate) fn kept(&self) -> usize {
        self.frames.capacity() + self.receivers.len()
    }

    /// A poll takes the next frame off the ring.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<&Packet> {
        let packet = self.frames.get(self.taken)?;
        self.taken += 1;
        Some(packet)
    }

    /// Frames that were taken and not delivered yet.
    #[inline]
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// The first of them.
    #[inline]
    pub(crate) fn next_taken(&self) -> Option<&Packet> {
        if self.taken == 0 { None } else { self.frames.front() }
    }

    /// The first of them is delivered.
    #[inline]
    pub(super) fn deliver(&mut self) -> Option<Packet> {
        self.taken = self.taken.checked_sub(1)?;
        self.counts.delivered += 1;
        self.frames.pop_front()
    }

    /// The next poll has descriptors to send.
    pub(crate) fn sends(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next one of them.
    pub(crate) fn next_to_send(&mut self) -> Option<Packet> {
        self.outgoing.pop_front()
    }

    /// A CPU polls: whether another one made the last poll.
    #[inline]
    pub(crate) fn moves_to(&mut self, cpu: usize) -> bool {
        std::mem::replace(&mut self.polled_on, cpu as u16) != cpu as u16
    }

    /// A poll would find nothing at all, and this CPU made the last one.
    pub(crate) fn quiet(&self, cpu: usize) -> bool {
        self.here() == 0
            && self.outgoing.is_empty()
            && self.completions == 0
            && usize::from(self.polled_on) == cpu
    }

    /// Its driver takes a sample at each unmasking.
    pub(crate) fn adapts(&self) -> bool {
        self.adaptive.is_some()
    }

    /// A poll has ended, at that time.
    pub(crate) fn polled(&mut self, at: Ns) {
        self.waiting_since = at;
    }

    /// For how long frames have waited for a poll.
    pub(crate) fn waited(&self, now: Ns) -> Ns {
        now.saturating_sub(self.waiting_since)
    }

    /// Interrupts are allowed.
    pub(crate) fn armed(&self) -> bool {
        self.armed
    }

    /// The moderation's timer is under way.
    pub(crate) fn moderating(&self) -> bool {
        self.moderating
    }

    /// An interrupt is on its way to the CPU.
    pub(crate) fn line(&self) -> bool {
        self.line
    }

    /// It has reached the CPU.
    pub(crate) fn line_arrived(&mut self) {
        self.line = false;
    }

    /// An interrupt was lost, and nobody knows yet.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// An interrupt is allowed, and none is due or one is on its way.
    #[inline]
    pub(crate) fn will_interrupt(&self) -> bool {
        self.armed && (self.moderating || self.depth() == 0)
    }

    /// The earliest look at the instance's deadline that is under way; `NEVER`: none is.
    #[inline]
    pub(crate) fn timer_at(&self) -> Ns {
        self.timer_at
    }

    /// The CPU on which the timer fires.
    pub(crate) fn timer_cpu(&self) -> usize {
        usize::from(self.timer_cpu)
    }

    /// A CPU starts the timer.
    pub(crate) fn timer_starts(&mut self, cpu: usize) {
        self.counts.timer_starts += 1;
        self.timer_cpu = cpu as u16;
    }

    /// The timer has expired.
    pub(crate) fn timer_expires(&mut self) {
        self.counts.timer_expiries += 1;
    }

    /// The deadline is to be looked at then: whether no look before is under way.
    pub(crate) fn look_at(&mut self, at: Ns) -> bool {
        let sooner = at < self.timer_at;
        self.timer_at = self.timer_at.min(at);
        sooner
    }

    /// A look at the deadline is due: `false` if it is surplus, since another one comes.
    pub(crate) fn looks_now(&mut self, now: Ns) -> bool {
        let due = self.timer_at <= now;
        if due {
            self.timer_at = NEVER;
        }
        due
    }

    /// No look at the deadline is under way any more.
    pub(crate) fn looks_no_more(&mut self) {
        self.timer_at = NEVER;
    }

    /// The timer has expired so often, and was started again after each poll, the last of which ended then.
    pub(crate) fn expired(&mut self, times: u64, polled: Ns) {
        self.counts.timer_expiries += times;
        self.counts.timer_starts += times;
        self.polled(polled);
    }

    /// The next interrupt gets lost.
    pub(crate) fn lose_next(&mut self) {
        self.lose_next = true;
    }

    /// The next interrupt comes later by so much.
    pub(crate) fn delay_next(&mut self, by: Ns) {
        self.late_by = by;
    }

    /// The last change of mode: the old one, and the polls its owners had made by then.
    #[inline]
    pub(crate) fn changed(&self) -> Option<(Threaded, u64)> {
        self.changed
    }

    /// Its mode changes, or does so no longer.
    pub(crate) fn changes(&mut self, from: Option<(Threaded, u64)>) {
        self.changed = from;
    }

    /// The watchdog looks, after so many polls: whether something waits that nobody has polled for
    /// since it last looked, and nobody owns the instance. It is no longer lost, then.
    pub(crate) fn stuck(&mut self, polls: u64, owned: bool) -> bool {
        let stuck = self.waits() && !owned && self.polls_seen == polls;
        self.polls_seen = polls;
        if stuck {
            self.lost = false;
            self.counts.watchdog += 1;
        }
        stuck
    }

    /// The CPU of a thread that polls it in vain, in bulk, or that rests while the ring is empty.
    #[inline]
    pub(crate) fn spinner(&self) -> Option<u16> {
        self.spinner
    }

    pub(crate) fn set_spinner(&mut self, cpu: Option<u16>) {
        self.spinner = cpu;
    }

    /// What whoever watches knows of its suspension: whether it knew otherwise.
    pub(crate) fn tell_suspended(&mut self, suspended: bool) -> bool {
        std::mem::replace(&mut self.suspended, suspended) != suspended
    }

    #[inline]
    pub(crate) fn counts(&self) -> &QueueCounts {
        &self.counts
    }
}
