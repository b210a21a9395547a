//! A device whose interrupt is a doorbell, readable until it is silenced, whatever is in the ring; written as
//! docs/extending.md describes.
//!
//! A frame that is polled before the interrupt for it has come leaves the bell readable. If it were armed again it
//! would fire at once and find the queue owned, and so on for ever. So unmasking silences it.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{HANGS, PEER, PORT, US, alone, policy};
use napkin_core::{Ns, Work};
use napkin_engine::{DeviceConfig, Engine, EngineConfig, sched};
use napkin_nic::{Frame, PacketQueue, Pool, QueueCounters, SendError, Transmitter};
use napkin_stack::FrameBuilder;
use rustix::event::{EventfdFlags, eventfd};

/// The most interrupts of an idle queue: of a last frame, and of a timer that was armed for it.
const FEW: u64 = 4;

struct Ring {
    frames: Receiver<Vec<u8>>,
    /// A frame that a look has taken.
    first: Option<Vec<u8>>,
    bell: Arc<OwnedFd>,
    pool: Pool,
    counters: Arc<QueueCounters>,
}

impl PacketQueue for Ring {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let mut rx = 0;
        while rx < budget {
            let Some(bytes) = self.first.take().or_else(|| self.frames.try_recv().ok()) else {
                break;
            };
            rx += 1;
            let mut frame = self.pool.take().expect("frames enough");
            frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            frame.set_arrived(now);
            self.counters.rx_packets.fetch_add(1, Relaxed);
            into.push(frame);
        }
        Work { rx, tx: 0 }
    }

    fn mask(&mut self) {}

    /// Silences the bell, and then checks the ring.
    fn unmask(&mut self, _: Ns) -> bool {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.first = self.first.take().or_else(|| self.frames.try_recv().ok());
        self.first.is_some()
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn acknowledge(&mut self) {
        if rustix::io::read(&self.bell, &mut [0; 8]).is_ok() {
            self.counters.interrupts_rx.fetch_add(1, Relaxed);
        }
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        struct Nowhere;
        impl Transmitter for Nowhere {
            fn send(&self, _: &[u8], _: Ns) -> Result<(), SendError> {
                Err(SendError::Down)
            }
        }
        Arc::new(Nowhere)
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.counters)
    }
}

#[test]
fn a_bell_that_was_rung_for_a_frame_polled_already_is_silent_under_every_policy() {
    let _alone = alone();
    let mut frame = [0; 128];
    let length = FrameBuilder::new(PEER, US).udp(&mut frame, 9, PORT, b"x").expect("it fits");
    for name in ["base", "defer20", "hold", "ksoftirqd", "threaded", "workqueue", "feedback"] {
        let policy = policy(name);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a bell");
        let (bell, counters) = (Arc::new(bell), Arc::<QueueCounters>::default());
        let (sender, frames) = channel();
        let ring = Ring {
            frames,
            first: None,
            bell: Arc::clone(&bell),
            pool: Pool::new(256),
            counters: Arc::clone(&counters),
        };
        let device = DeviceConfig::new("bell0", US, vec![(Box::new(ring), 0)], policy.instance);
        let cpus = sched::usable_cpus().into_iter().take(1).collect();
        let config =
            EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
        let engine = Engine::start(config).expect("an engine");
        let sender = Mutex::new(sender);
        // Enough frames that polls overtake bells: a frame goes into the ring before its bell.
        for _ in 0..2_000 {
            sender
                .lock()
                .expect("alone")
                .send(frame[..length].to_vec())
                .expect("the ring is there");
            rustix::io::write(&bell, &1_u64.to_ne_bytes()).expect("it rings");
        }
        let start = Instant::now();
        while counters.read().rx_packets < 2_000 {
            assert!(start.elapsed() < HANGS, "{name}: frames are left: {:?}", engine.napis());
            std::thread::sleep(Duration::from_millis(1));
        }
        let interrupts = || engine.napi(1).expect("its instance").counts.interrupts;
        // The last bell may fall into the first window, and on a busy host into later ones; interrupts that do not
        // end fall into all.
        let (mut quiet, mut windows) = (0, Vec::new());
        while quiet < 2 {
            assert!(windows.len() < 20, "{name}: interrupts of an idle queue: {windows:?}");
            let before = interrupts();
            std::thread::sleep(Duration::from_millis(50));
            let idle = interrupts() - before;
            windows.push(idle);
            quiet = if idle <= FEW { quiet + 1 } else { 0 };
        }
        engine.stop();
    }
}
