//! Tests of the interrupt descriptor on the real clock, waited for as the engine does: with one-shot epoll.
//!
//! They assert no times, only that a sleeping engine is woken: a lost interrupt is a test that fails after ten
//! seconds.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use napkin_nic::late::{LateQueue, Lateness};
use napkin_nic::synthetic::{Arrivals, Moderation, SyntheticConfig, SyntheticQueue};
use napkin_nic::{EndConfig, Frame, PacketQueue, Pool, SendError, cable};
use napkin_policy::Ns;
use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

fn now() -> Ns {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as Ns * 1_000_000_000 + now.tv_nsec as Ns
}

/// A minimal engine: sleeps, acknowledges, masks, polls, unmasks.
struct Engine<Q> {
    queue: Q,
    epoll: std::os::fd::OwnedFd,
    frames: Vec<Frame>,
    tx: u64,
    rx: u64,
}

fn synthetic(config: &SyntheticConfig) -> Engine<SyntheticQueue> {
    let template = |_: u32, _: u64, _: &mut [u8]| 60;
    let queue = SyntheticQueue::new(config, Box::new(template), Pool::new(64), None);
    Engine::new(queue.expect("a valid configuration"))
}

impl<Q: PacketQueue + Debug> Engine<Q> {
    fn new(queue: Q) -> Engine<Q> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll descriptor");
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, queue.interrupt(), data, epoll::EventFlags::empty()).expect("added");
        Engine { queue, epoll, frames: Vec::with_capacity(64), tx: 0, rx: 0 }
    }

    /// Polls until the ring is empty and interrupts are allowed again.
    fn drain(&mut self) {
        loop {
            self.queue.mask();
            while {
                self.frames.clear();
                let work = self.queue.poll(64, now(), &mut self.frames);
                assert!(self.frames.iter().all(|frame| frame.arrived() <= now()));
                self.tx += u64::from(work.tx);
                self.rx += u64::from(work.rx);
                work.rx == 64
            } {}
            if !self.queue.unmask(now()) {
                break;
            }
        }
        let (data, flags) =
            (epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        epoll::modify(&self.epoll, self.queue.interrupt(), data, flags).expect("armed");
    }

    fn sleep(&mut self) {
        let mut events = Vec::with_capacity(1);
        let timeout = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
            .expect("waited");
        assert!(!events.is_empty(), "an interrupt was lost: {:?}", self.queue);
        self.queue.acknowledge();
    }
}

#[test]
fn every_frame_that_arrives_while_the_engine_sleeps_wakes_it() {
    let moderation = Moderation { usecs: 20, frames: 4 };
    let arrivals = Arrivals::Poisson { per_second: 20_000.0 };
    let config =
        SyntheticConfig { arrivals, moderation, start: now(), count: 2_000, ..Default::default() };
    let mut engine = synthetic(&config);
    let counters = engine.queue.counters();
    engine.drain();
    while engine.rx + counters.read().rx_dropped_ring < 2_000 {
        engine.sleep();
        engine.drain();
    }
    let counts = counters.read();
    assert_eq!(engine.queue.control().offered(), 2_000);
    assert!(counts.interrupts_rx > 0 && counts.interrupts_tx == 0);
}

#[test]
fn every_transmission_of_another_thread_wakes_the_engine_when_it_completes() {
    let config = SyntheticConfig { tx_ring: 8, tx_ns: 2_000, ..Default::default() };
    let mut engine = synthetic(&config);
    let wire = engine.queue.transmitter();
    let sent = Arc::new(AtomicU64::new(0));
    let senders: Vec<_> = (0..3)
        .map(|_| {
            let (wire, sent) = (Arc::clone(&wire), Arc::clone(&sent));
            std::thread::spawn(move || {
                for _ in 0..3_000 {
                    // The engine has to be woken to make room: the ring is small.
                    while let Err(error) = wire.send(&[0; 60], now()) {
                        assert_eq!(error, SendError::RingFull);
                        std::thread::yield_now();
                    }
                    sent.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    engine.drain();
    while engine.tx < 9_000 {
        engine.sleep();
        engine.drain();
    }
    senders.into_iter().for_each(|sender| sender.join().expect("ends"));
    assert_eq!((engine.tx, sent.load(SeqCst)), (9_000, 9_000));
    let counts = engine.queue.counters().read();
    assert_eq!((counts.tx_completions, counts.interrupts_rx), (9_000, 0));
}

#[test]
fn a_flood_goes_on_whether_the_engine_sleeps_or_not() {
    let arrivals = Arrivals::Flood { turnaround: 5_000, outstanding: 2 };
    let config = SyntheticConfig { arrivals, start: now(), count: 1_000, ..Default::default() };
    let mut engine = synthetic(&config);
    let wire = engine.queue.transmitter();
    engine.drain();
    let mut answered = 0;
    while answered < 1_000 {
        while answered < engine.rx {
            wire.send(&[0; 60], now()).expect("room");
            answered += 1;
        }
        if engine.rx < 1_000 {
            engine.sleep();
            engine.drain();
        }
    }
    assert_eq!(engine.queue.counters().read().rx_packets, 1_000);
}

#[test]
fn every_frame_of_a_cable_wakes_the_engine_whoever_sends_it() {
    // Buffers for a full poll, for the ring that fills meanwhile, and for one in each sender: none is dropped for
    // lack of a buffer.
    let end = || EndConfig { queues: 1, ring: 8, pool: Pool::new(64 + 8 + 3) };
    let (mut here, mut there) = cable(end(), end()).expect("a cable");
    let (mut engine, there) = (Engine::new(here.remove(0)), there.remove(0));
    let wire = there.transmitter();
    let senders: Vec<_> = (0..3)
        .map(|_| {
            let wire = Arc::clone(&wire);
            std::thread::spawn(move || {
                for _ in 0..3_000 {
                    // The engine has to be woken to make room: the ring is small.
                    while let Err(error) = wire.send(&[0; 60], now()) {
                        assert_eq!(error, SendError::RingFull);
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    engine.drain();
    while engine.rx < 9_000 {
        engine.sleep();
        engine.drain();
    }
    senders.into_iter().for_each(|sender| sender.join().expect("ends"));
    let (sent, received) = (there.counters().read(), engine.queue.counters().read());
    assert_eq!((sent.tx_packets, received.rx_packets, engine.queue.pending()), (9_000, 9_000, 0));
}

#[test]
fn a_late_interrupt_comes_and_a_lost_one_leaves_its_frames_to_the_watchdog() {
    // Each frame comes after an unmask of its own, so that every interrupt is drawn for.
    let arrivals = Arrivals::AfterUnmask { gap: 5_000 };
    let config = SyntheticConfig { arrivals, start: now(), count: 500, ..Default::default() };
    let template = |_: u32, _: u64, _: &mut [u8]| 60;
    let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(64), None);
    let queue = queue.expect("a valid configuration");
    let (control, counters) = (queue.control(), queue.counters());
    let (delay, watchdog) = (50_000, 2_000_000);
    let lateness = Lateness { delayed: 2_000, lost: 1_000, delay, watchdog };
    let late = LateQueue::new(Box::new(queue), lateness, 1).expect("descriptors");
    let happened = late.late();
    let mut engine = Engine::new(late);
    engine.drain();
    while engine.rx + counters.read().rx_dropped_ring < 500 {
        engine.sleep();
        engine.drain();
    }
    assert_eq!(control.offered(), 500);
    assert!(happened.load(SeqCst) > 0, "{:?}", counters.read());
}
