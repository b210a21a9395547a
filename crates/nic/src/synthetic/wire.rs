//! The transmit side of a synthetic queue: a transmit ring that drains by itself.
//!
//! A frame handed to [`Wire`] completes after a fixed time. The completion waits to be reaped by a poll and occupies
//! its place in the ring until then. The bytes go to the observer, if there is one, and are then discarded.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Release};

use napkin_policy::Ns;

use super::alarm::Alarm;
use crate::counters::add;
use crate::mpsc_ring::MpscRing;
use crate::{ETHERNET_HEADER, FRAME_CAPACITY, QueueCounters, SendError, Transmitter};

/// Receives the transmitted frames; a benchmark times replies with it.
pub trait Observer: Send + Sync {
    /// Handles a frame that was accepted for transmission at `now`. Called on the sender's thread, so it must be
    /// quick and must not block.
    fn transmitted(&self, frame: &[u8], now: Ns);
}

/// The replies that a flood waits for.
#[derive(Debug)]
pub(super) struct Replies {
    /// Times at which transmissions ended. Holds as many as the flood has requests; further replies do not count.
    pub(super) ended: MpscRing<Ns>,
    /// The least time from the end of a transmission to the interrupt for the request that follows it, ns.
    pub(super) to_interrupt: Ns,
}

/// The transmit side, shared by the queue's owner and all senders.
pub(super) struct Wire {
    pub(super) alarm: Alarm,
    pub(super) counters: Arc<QueueCounters>,
    /// Times at which transmissions complete. The owner moves them to its own list, which it can inspect without
    /// removing anything. If the owner has preempted a sender in the middle of an insertion, that entry and those
    /// behind it are found later; the sender brings the timer forward only after its insertion.
    pub(super) completions: MpscRing<Ns>,
    /// Transmissions not yet reaped, in `completions` or in the owner's list: at most `size`, apart from senders
    /// that are being refused.
    in_flight: AtomicU32,
    size: u32,
    tx_ns: Ns,
    tx_interrupts: bool,
    pub(super) replies: Option<Replies>,
    observer: Option<Arc<dyn Observer>>,
    closed: AtomicBool,
}

impl Wire {
    pub(super) fn new(
        alarm: Alarm,
        config: &super::SyntheticConfig,
        replies: Option<Replies>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Wire {
        Wire {
            alarm,
            counters: Arc::default(),
            completions: MpscRing::new(config.tx_ring as usize),
            in_flight: AtomicU32::new(0),
            size: config.tx_ring,
            tx_ns: config.tx_ns,
            tx_interrupts: config.tx_interrupts,
            replies,
            observer,
            closed: AtomicBool::new(false),
        }
    }

    /// Owner: counts `n` reaped transmissions and frees their places.
    pub(super) fn reaped(&self, n: u32) {
        self.in_flight.fetch_sub(n, AcqRel);
        add(&self.counters.tx_completions, u64::from(n));
    }

    /// Closes the wire, as the queue is dropped: sending fails from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Release);
    }

    /// Makes an unmasked queue check its source at `at`.
    pub(super) fn kick(&self, at: Ns) {
        self.alarm.bring_forward(at);
    }

    fn accept(&self, frame: &[u8], now: Ns) -> Result<Ns, SendError> {
        if self.closed.load(Acquire) {
            return Err(SendError::Down);
        }
        if frame.len() > FRAME_CAPACITY {
            return Err(SendError::TooLong);
        }
        if frame.len() < ETHERNET_HEADER {
            return Err(SendError::TooShort);
        }
        let due = now.saturating_add(self.tx_ns);
        // At most `size` places are given out, so the push after it finds room.
        if self.in_flight.fetch_add(1, AcqRel) >= self.size || !self.completions.push(due) {
            self.in_flight.fetch_sub(1, AcqRel);
            return Err(SendError::RingFull);
        }
        Ok(due)
    }
}

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        let due = self.accept(frame, now).inspect_err(|_| add(&self.counters.tx_dropped, 1))?;
        self.counters.tx_packets.fetch_add(1, Relaxed);
        self.counters.tx_bytes.fetch_add(frame.len() as u64, Relaxed);
        if let Some(observer) = &self.observer {
            observer.transmitted(frame, now);
        }
        if let Some(replies) = &self.replies {
            // A reply beyond those that the flood waits for does not count.
            let _ = replies.ended.push(due);
            self.alarm.bring_forward(due.saturating_add(replies.to_interrupt));
        }
        if self.tx_interrupts {
            self.alarm.bring_forward(due);
        }
        Ok(())
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("in_flight", &self.in_flight)
            .field("size", &self.size)
            .field("alarm", &self.alarm)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use napkin_core::Work;
    use napkin_policy::NEVER;

    use super::super::{SyntheticConfig, SyntheticQueue};
    use super::*;
    use crate::{PacketQueue, Pool, QueueCounts};

    /// A queue that receives nothing.
    struct Bench {
        queue: SyntheticQueue,
    }

    impl Bench {
        fn new(config: SyntheticConfig) -> Bench {
            Bench::observed(config, None)
        }

        fn observed(config: SyntheticConfig, observer: Option<Arc<dyn Observer>>) -> Bench {
            let template = |_: u32, _: u64, _: &mut [u8]| 60;
            let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(1), observer);
            Bench { queue: queue.expect("a valid configuration") }
        }

        fn poll(&mut self, budget: u16, now: Ns) -> Work {
            self.queue.poll(budget, now, &mut Vec::new())
        }

        /// The time that the timer is set to.
        fn timer(&self) -> Ns {
            self.queue.wire.alarm.wanted()
        }

        fn send(&self, now: Ns) -> Result<(), SendError> {
            self.queue.wire.send(&[0; 60], now)
        }

        fn counts(&self) -> QueueCounts {
            self.queue.counters().read()
        }
    }

    #[test]
    fn transmissions_complete_are_reaped_and_interrupt() {
        let config = SyntheticConfig { tx_ring: 2, ..SyntheticConfig::default() };
        let mut bench = Bench::new(config);
        assert!(!bench.queue.unmask(0));
        assert_eq!(bench.timer(), NEVER);
        bench.send(100).expect("room");
        assert_eq!(bench.timer(), 1_100, "the sender brought the timer forward");
        bench.send(200).expect("room");
        assert_eq!(bench.send(300), Err(SendError::RingFull));
        bench.queue.acknowledge();
        bench.queue.mask();
        assert_eq!(bench.poll(64, 1_150), Work { rx: 0, tx: 1 });
        bench.send(1_160).expect("the place is free again");
        assert_eq!(bench.timer(), NEVER, "masked");
        assert!(!bench.queue.unmask(1_170));
        assert_eq!(bench.timer(), 1_200);
        let counts = bench.counts();
        assert_eq!((counts.tx_packets, counts.tx_dropped, counts.tx_completions), (3, 1, 1));
        assert_eq!((counts.interrupts_tx, counts.interrupts_rx), (1, 0));
    }

    #[test]
    fn a_sender_that_was_preempted_holds_up_those_behind_it_and_not_the_owner() {
        let mut bench = Bench::new(SyntheticConfig::default());
        let wire = Arc::clone(&bench.queue.wire);
        wire.in_flight.fetch_add(1, Relaxed);
        let place = wire.completions.reserve_slot();
        bench.send(0).expect("room");
        assert_eq!(bench.poll(0, 5_000).tx, 0, "the first is not there yet");
        wire.completions.fill_slot(place, 1_000);
        assert_eq!(bench.poll(0, 5_000).tx, 2);
    }

    #[test]
    fn without_transmit_interrupts_only_polls_reap() {
        let config = SyntheticConfig { tx_interrupts: false, ..SyntheticConfig::default() };
        let mut bench = Bench::new(config);
        bench.send(0).expect("room");
        assert!(!bench.queue.unmask(5_000));
        bench.send(0).expect("room");
        assert_eq!(bench.timer(), NEVER);
        assert_eq!(bench.poll(0, 5_000), Work { rx: 0, tx: 2 });
    }

    #[test]
    fn what_cannot_be_sent_is_refused_and_counted() {
        let bench = Bench::new(SyntheticConfig::default());
        let wire = bench.queue.transmitter();
        assert_eq!(wire.send(&[0; 13], 0), Err(SendError::TooShort));
        assert_eq!(wire.send(&[0; FRAME_CAPACITY + 1], 0), Err(SendError::TooLong));
        let counters = bench.queue.counters();
        drop(bench);
        assert_eq!(wire.send(&[0; 60], 0), Err(SendError::Down));
        assert_eq!(counters.read().tx_dropped, 3);
    }

    #[test]
    fn an_observer_sees_what_is_sent() {
        struct Last(std::sync::Mutex<(Vec<u8>, Ns)>);
        impl Observer for Last {
            fn transmitted(&self, frame: &[u8], now: Ns) {
                *self.0.lock().expect("no panic") = (frame.to_vec(), now);
            }
        }
        let last = Arc::new(Last(Default::default()));
        let observer = Arc::clone(&last) as Arc<dyn Observer>;
        let bench = Bench::observed(SyntheticConfig::default(), Some(observer));
        bench.queue.transmitter().send(b"fourteen bytes", 7).expect("room");
        assert_eq!(*last.0.lock().expect("no panic"), (b"fourteen bytes".to_vec(), 7));
    }

    #[test]
    fn no_transmission_is_forgotten_while_threads_send_and_the_owner_masks_and_unmasks() {
        let mut bench = Bench::new(SyntheticConfig { tx_ns: 1, ..SyntheticConfig::default() });
        let wire = bench.queue.transmitter();
        // A time far enough ahead that the real timer never fires during the test.
        let far = 1 << 62;
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let wire = Arc::clone(&wire);
                std::thread::spawn(move || {
                    (0..2_000).filter(|_| wire.send(&[0; 60], far).is_ok()).count()
                })
            })
            .collect();
        let mut reaped = 0;
        assert!(!bench.queue.unmask(0));
        while senders.iter().any(|sender| !sender.is_finished()) {
            bench.queue.mask();
            reaped += usize::from(bench.poll(64, far + 1).tx);
            assert!(!bench.queue.unmask(0));
        }
        let sent: usize = senders.into_iter().map(|sender| sender.join().expect("ends")).sum();
        // Invariant 2: a transmission under way has a timer while no poll is coming.
        assert!(sent == reaped || bench.timer() == far + 1);
        reaped += usize::from(bench.poll(0, far + 1).tx);
        assert_eq!(reaped, sent);
    }
}
