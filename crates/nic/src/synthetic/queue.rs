//! The synthetic queue: ring, wire and timer behind the [`PacketQueue`] interface.
//!
//! Everything but the interrupt descriptor is a function of the configuration and of the calls with the times they
//! pass; the tests below run on virtual time.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use napkin_core::Work;
use napkin_policy::{MICROSECOND, NEVER, Ns};

use super::alarm::Alarm;
use super::arrivals::{Arrivals, Schedule};
use super::config::{Flows, SyntheticConfig};
use super::control::{Gate, SourceControl};
use super::error::ConfigError;
use super::moderation::Moderation;
use super::ring::{Pending, RxRing};
use super::template::Template;
use super::wire::{Observer, Replies, Wire};
use crate::counters::add;
use crate::mpsc_ring::MpscRing;
use crate::{
    ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, Pool, QueueCounters, Transmitter,
};
use napkin_traffic::SplitMix;

/// A packet queue with an open-loop source, a receive ring, a transmit ring and a moderated interrupt.
pub struct SyntheticQueue {
    ring: RxRing,
    flows: Flows,
    /// The seed of [`FlowChoice::Uniform`](super::FlowChoice::Uniform).
    flow_seed: u64,
    template: Box<dyn Template>,
    pool: Pool,
    moderation: Moderation,
    pub(super) wire: Arc<Wire>,
    /// Completion times of transmissions that are not yet reaped, oldest first; bounded by the ring's size. A
    /// transmission never completes before an earlier one.
    transmissions: VecDeque<Ns>,
    tx_interrupts: bool,
    gate: Arc<Gate>,
    unmasked: bool,
}

impl SyntheticQueue {
    /// Makes a masked queue whose frames `template` writes into buffers of `pool`. `observer` sees the frames that
    /// are transmitted.
    pub fn new(
        config: &SyntheticConfig,
        template: Box<dyn Template>,
        pool: Pool,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<SyntheticQueue, ConfigError> {
        config.check()?;
        let mut rng = SplitMix::stream(config.seed, config.stream.into());
        let flow_seed = rng.bits();
        let schedule =
            Schedule::new(config.arrivals, rng, config.start, config.until, config.count)?;
        let replies = match config.arrivals {
            Arrivals::Flood { turnaround, outstanding } => {
                // If the outstanding requests can reach the frame limit of the moderation, any of them may make the
                // interrupt due; otherwise only the time limit applies.
                let Moderation { usecs, frames } = config.moderation;
                let by_number = (1..=u32::from(outstanding)).contains(&frames);
                let wait = if by_number { 0 } else { Ns::from(usecs) * MICROSECOND };
                Some(Replies {
                    ended: MpscRing::new(outstanding.into()),
                    to_interrupt: turnaround.saturating_add(wait),
                })
            }
            _ => None,
        };
        let alarm = Alarm::new().map_err(ConfigError::Timer)?;
        Ok(SyntheticQueue {
            ring: RxRing::new(schedule, config.rx_ring),
            flows: config.flows,
            flow_seed,
            template,
            pool,
            moderation: config.moderation,
            wire: Arc::new(Wire::new(alarm, config, replies, observer)),
            transmissions: VecDeque::with_capacity(config.tx_ring as usize),
            tx_interrupts: config.tx_interrupts,
            gate: Arc::new(Gate::new()),
            unmasked: false,
        })
    }

    /// A handle to stop the source and to read how many frames it offered, for any thread.
    pub fn control(&self) -> SourceControl {
        SourceControl { gate: Arc::clone(&self.gate), wire: Arc::clone(&self.wire) }
    }

    /// The number of frames in the ring as of the last poll or unmask.
    pub fn pending(&self) -> usize {
        self.ring.len()
    }

    /// Brings the ring up to `now` and counts the frames that fell due.
    fn advance(&mut self, now: Ns) {
        let due_frames = self.ring.advance(now, self.gate.closed());
        add(&self.gate.offered, due_frames.offered);
        add(&self.wire.counters.rx_dropped_ring, due_frames.dropped);
    }

    /// Moves transmissions and replies from the senders' rings to the owner's lists.
    fn collect(&mut self) {
        while self.transmissions.len() < self.wire.completions.size()
            && let Some(due) = self.wire.completions.pop()
        {
            let due = self.transmissions.back().map_or(due, |&before| due.max(before));
            self.transmissions.push_back(due);
        }
        if let Some(replies) = &self.wire.replies {
            // At most one ring full at a time, in case a sender is as fast as this loop.
            for _ in 0..replies.ended.size() {
                let Some(ended) = replies.ended.pop() else { break };
                self.ring.schedule.reply(ended);
            }
        }
    }

    /// Reaps completed transmissions; returns how many.
    fn reap(&mut self, now: Ns) -> u16 {
        self.collect();
        let mut reaped: u16 = 0;
        while reaped < u16::MAX && self.transmissions.front().is_some_and(|&due| due <= now) {
            self.transmissions.pop_front();
            reaped += 1;
        }
        if reaped != 0 {
            self.wire.reaped(reaped.into());
        }
        reaped
    }

    pub(super) fn rx_interrupt(&self) -> Ns {
        let first = self.ring.first(self.gate.closed());
        self.moderation.due(first, |n, limit| self.ring.nth(n, limit))
    }

    pub(super) fn tx_interrupt(&self) -> Ns {
        if self.tx_interrupts {
            self.transmissions.front().copied().unwrap_or(NEVER)
        } else {
            NEVER
        }
    }

    fn receive(&mut self, budget: u16, into: &mut Vec<Frame>) -> u16 {
        let (mut taken, mut packets, mut bytes) = (0, 0, 0);
        while taken < budget
            && let Some(pending) = self.ring.pop()
        {
            taken += 1;
            if let Some(frame) = self.make(pending) {
                packets += 1;
                bytes += frame.len() as u64;
                into.push(frame);
            }
        }
        add(&self.wire.counters.rx_packets, packets);
        add(&self.wire.counters.rx_bytes, bytes);
        taken
    }

    /// Writes a frame. Counts and drops one that has no buffer or an invalid length.
    fn make(&mut self, Pending { at, seq }: Pending) -> Option<Frame> {
        let counters = &self.wire.counters;
        let Some(mut frame) = self.pool.take() else {
            add(&counters.rx_no_buffer, 1);
            return None;
        };
        let flow = self.flows.of(self.flow_seed, seq);
        match self.template.fill_at(flow, seq, at, frame.buffer()) {
            ..ETHERNET_HEADER => add(&counters.rx_truncated, 1),
            len @ ETHERNET_HEADER..=FRAME_CAPACITY => {
                frame.set_len(len);
                frame.set_arrived(at);
                return Some(frame);
            }
            _ => add(&counters.rx_oversized, 1),
        }
        None
    }
}

impl PacketQueue for SyntheticQueue {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        if !self.unmasked {
            self.wire.alarm.quiet(now);
        }
        let tx = self.reap(now);
        self.advance(now);
        Work { rx: self.receive(budget, into), tx }
    }

    fn mask(&mut self) {
        if self.unmasked {
            self.unmasked = false;
            self.wire.alarm.mask();
        }
    }

    fn unmask(&mut self, now: Ns) -> bool {
        self.advance(now);
        self.unmasked = true;
        let prior = self.wire.alarm.unmask();
        self.collect();
        let mut due = self.rx_interrupt().min(self.tx_interrupt());
        if due <= now {
            self.unmasked = false;
            self.wire.alarm.withdraw(prior);
            return true;
        }
        if self.ring.schedule.unmasked(now) {
            due = due.min(self.rx_interrupt());
        }
        self.wire.alarm.set(due, prior);
        false
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.wire.alarm.as_fd()
    }

    fn acknowledge(&mut self) {
        let Some(fired) = self.wire.alarm.acknowledge() else { return };
        // Decide what the interrupt was for, as of the time it was set for. If no frame was due then, a sender set
        // it (its transmission may be reaped by now), unless transmissions raise no interrupts.
        self.collect();
        let rx = self.rx_interrupt();
        let tx_alone = self.tx_interrupts && (rx > fired || rx == NEVER);
        let counters = &self.wire.counters;
        let counter = if tx_alone { &counters.interrupts_tx } else { &counters.interrupts_rx };
        counter.fetch_add(1, Relaxed);
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::clone(&self.wire) as Arc<dyn Transmitter>
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.wire.counters)
    }
}

impl Drop for SyntheticQueue {
    fn drop(&mut self) {
        self.wire.close();
    }
}

impl fmt::Debug for SyntheticQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyntheticQueue")
            .field("ring", &self.ring)
            .field("transmissions", &self.transmissions.len())
            .field("wire", &self.wire)
            .field("unmasked", &self.unmasked)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueCounts;

    /// A queue and the frames of its last poll.
    struct Bench {
        queue: SyntheticQueue,
        frames: Vec<Frame>,
    }

    impl Bench {
        fn new(config: SyntheticConfig) -> Bench {
            Bench::with_pool(config, 1024)
        }

        fn with_pool(config: SyntheticConfig, buffers: usize) -> Bench {
            let template = |flow: u32, seq: u64, buf: &mut [u8]| {
                buf[..4].copy_from_slice(&flow.to_be_bytes());
                buf[4..12].copy_from_slice(&seq.to_be_bytes());
                60
            };
            let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(buffers), None);
            let queue = queue.expect("a valid configuration");
            Bench { queue, frames: Vec::with_capacity(64) }
        }

        fn poll(&mut self, budget: u16, now: Ns) -> Work {
            self.frames.clear();
            self.queue.poll(budget, now, &mut self.frames)
        }

        /// The time that the timer is set to.
        fn timer(&self) -> Ns {
            self.queue.wire.alarm.wanted()
        }

        fn counts(&self) -> QueueCounts {
            self.queue.counters().read()
        }
    }

    /// One frame a microsecond from time 0.
    fn fixed() -> SyntheticConfig {
        SyntheticConfig {
            arrivals: Arrivals::Fixed { per_second: 1e6 },
            ..SyntheticConfig::default()
        }
    }

    const fn rx(rx: u16) -> Work {
        Work { rx, tx: 0 }
    }

    #[test]
    fn a_poll_finds_what_fell_due_with_the_times_it_was_meant_to_arrive() {
        let mut bench = Bench::new(fixed());
        assert_eq!(bench.poll(64, 2_500), rx(3));
        assert_eq!(bench.frames.iter().map(Frame::arrived).collect::<Vec<_>>(), [0, 1_000, 2_000]);
        assert_eq!(bench.frames[2][4..12], 2u64.to_be_bytes());
        assert_eq!(bench.poll(64, 2_999), rx(0));
        assert_eq!(bench.poll(2, 9_000), rx(2));
        assert_eq!(bench.queue.pending(), 5);
    }

    #[test]
    fn a_budget_of_zero_reaps_only() {
        let mut bench = Bench::new(fixed());
        bench.queue.wire.send(&[0; 60], 0).expect("room");
        assert_eq!(bench.poll(0, 5_000), Work { rx: 0, tx: 1 });
        assert_eq!(bench.queue.pending(), 6);
    }

    #[test]
    fn a_ring_that_overflows_drops_the_newest_and_counts_them() {
        let mut bench = Bench::new(SyntheticConfig { rx_ring: 4, ..fixed() });
        assert_eq!(bench.poll(64, 9_000), rx(4));
        assert_eq!(bench.frames[3].arrived(), 3_000);
        assert_eq!(bench.counts().rx_dropped_ring, 6);
        assert_eq!(bench.queue.control().offered(), 10);
    }

    #[test]
    fn frames_for_which_there_is_no_buffer_count_against_the_budget() {
        let mut bench = Bench::with_pool(fixed(), 2);
        assert_eq!(bench.poll(3, 9_000), rx(3));
        assert_eq!(bench.frames.len(), 2);
        assert_eq!(bench.counts().rx_no_buffer, 1);
        // The application releases its frames, and traffic flows again.
        assert_eq!(bench.poll(2, 9_000), rx(2));
        assert_eq!(bench.frames.len(), 2);
    }

    #[test]
    fn frames_of_an_impossible_length_are_dropped_by_name() {
        let template = |_flow: u32, seq: u64, _buf: &mut [u8]| match seq {
            0 => 13,
            1 => FRAME_CAPACITY + 1,
            _ => FRAME_CAPACITY,
        };
        let mut queue =
            SyntheticQueue::new(&fixed(), Box::new(template), Pool::new(4), None).expect("valid");
        let mut frames = Vec::with_capacity(64);
        assert_eq!(queue.poll(64, 2_000, &mut frames), rx(3));
        let counts = queue.counters().read();
        assert_eq!((counts.rx_truncated, counts.rx_oversized, counts.rx_packets), (1, 1, 1));
        assert_eq!(frames[0].len(), FRAME_CAPACITY);
    }

    #[test]
    fn unmask_sets_the_timer_for_the_next_frame_or_says_that_one_waits() {
        let mut bench = Bench::new(fixed());
        assert!(bench.queue.unmask(10_000));
        assert_eq!(bench.timer(), NEVER, "no system call for an interrupt that nobody awaits");
        assert_eq!(bench.poll(64, 10_000), rx(11));
        assert!(!bench.queue.unmask(10_000));
        assert_eq!(bench.timer(), 11_000);
        // The timer fires, since its time is long past on the real clock.
        bench.queue.acknowledge();
        bench.queue.mask();
        assert_eq!(bench.timer(), NEVER);
        assert_eq!(bench.poll(64, 11_000), rx(1));
        assert_eq!(bench.counts().interrupts_rx, 1);
    }

    #[test]
    fn an_interrupt_is_counted_also_if_the_queue_is_masked_first_and_only_once() {
        let mut bench = Bench::new(fixed());
        bench.poll(64, 500);
        assert!(!bench.queue.unmask(500));
        bench.queue.mask();
        bench.queue.acknowledge();
        bench.queue.acknowledge();
        assert_eq!(bench.counts().interrupts_rx, 1);
    }

    #[test]
    fn moderation_holds_the_interrupt_back_but_not_the_frames() {
        let moderation = Moderation { usecs: 8, frames: 4 };
        let mut bench = Bench::new(SyntheticConfig { moderation, ..fixed() });
        assert!(!bench.queue.unmask(2_500), "three frames wait, and the fourth interrupts");
        assert_eq!(bench.timer(), 3_000);
        bench.queue.mask();
        assert_eq!(bench.poll(64, 2_600), rx(3));
        let slow = Moderation { usecs: 2, frames: 4 };
        let mut bench = Bench::new(SyntheticConfig { moderation: slow, ..fixed() });
        assert!(!bench.queue.unmask(1_999));
        assert_eq!(bench.timer(), 2_000);
    }

    #[test]
    fn the_next_frame_falls_just_after_the_unmask() {
        let arrivals = Arrivals::AfterUnmask { gap: 300 };
        let mut bench = Bench::new(SyntheticConfig { arrivals, ..SyntheticConfig::default() });
        assert_eq!(bench.poll(64, 0), rx(1));
        assert_eq!(bench.poll(64, 1_000_000), rx(0), "as long as nobody unmasks, nothing comes");
        assert!(!bench.queue.unmask(2_000_000));
        assert_eq!(bench.timer(), 2_000_300);
        bench.queue.mask();
        assert_eq!(bench.poll(64, 2_000_400), rx(1));
        assert_eq!(bench.frames[0].arrived(), 2_000_300);
    }

    #[test]
    fn in_a_flood_the_next_request_follows_the_reply() {
        let arrivals = Arrivals::Flood { turnaround: 500, outstanding: 1 };
        let config = SyntheticConfig { arrivals, tx_interrupts: false, ..fixed() };
        let mut bench = Bench::new(config);
        assert_eq!(bench.poll(64, 0), rx(1));
        assert!(!bench.queue.unmask(10));
        assert_eq!(bench.timer(), super::super::FLOOD_FALLBACK);
        bench.queue.wire.send(&[0; 60], 100).expect("room");
        assert_eq!(bench.timer(), 100 + 1_000 + 500);
        bench.queue.mask();
        assert_eq!(bench.poll(64, 1_600), Work { rx: 1, tx: 1 });
        assert_eq!(bench.frames[0].arrived(), 1_600);
    }

    #[test]
    fn a_source_is_stopped_and_resumed_from_outside() {
        let mut bench = Bench::new(fixed());
        let control = bench.queue.control();
        control.stop_at(2_500);
        assert_eq!(bench.poll(64, 10_000), rx(3));
        assert!(!bench.queue.unmask(10_000));
        assert_eq!(bench.timer(), NEVER);
        control.resume_at(20_500);
        assert_eq!(bench.timer(), 20_500, "the queue is made to look");
        bench.queue.mask();
        assert_eq!(bench.poll(64, 22_000), rx(2));
        assert_eq!(control.offered(), 5);
        control.stop();
        assert_eq!(bench.poll(64, 99_000), rx(0));
    }
}
