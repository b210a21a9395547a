//! A queue that mistreats what another one receives, for tests.
//!
//! Faults are drawn from a seed, so that a test that fails fails again. Transmission, interrupts and
//! counters are those of the queue inside; what happened to the frames is counted here.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::Ns;

use crate::{Frame, PacketQueue, QueueCounters, Transmitter};
use napkin_traffic::SplitMix;

/// How often which fault happens to a received frame: parts per 10,000, at most one fault a frame,
/// tried in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// The frame is lost.
    pub loss: u16,
    /// One byte changes.
    pub corruption: u16,
    /// The frame ends early, possibly before its first byte.
    pub truncation: u16,
}

/// How often which fault has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Happened {
    /// Frames that were lost.
    pub lost: u64,
    /// Frames with a changed byte.
    pub corrupted: u64,
    /// Frames that ended early.
    pub truncated: u64,
}

/// A queue with seeded faults on its receive side.
///
/// Lost frames were taken off the ring and count in [`Work::rx`].
#[derive(Debug)]
pub struct FaultyQueue<Q> {
    inner: Q,
    faults: Faults,
    happened: Happened,
    rng: SplitMix,
}

impl<Q: PacketQueue> FaultyQueue<Q> {
    /// Puts `faults` in the way of what `inner` receives.
    pub fn new(inner: Q, faults: Faults, seed: u64) -> FaultyQueue<Q> {
        FaultyQueue { inner, faults, happened: Happened::default(), rng: SplitMix::new(seed) }
    }

    /// What has happened so far.
    pub fn happened(&self) -> Happened {
        self.happened
    }

    /// The queue inside.
    pub fn into_inner(self) -> Q {
        self.inner
    }

    /// Mistreats one frame, or not; returns whether it survives.
    fn pass(&mut self, frame: &mut Frame) -> bool {
        let Faults { loss, corruption, truncation } = self.faults;
        let lost = u64::from(loss);
        let corrupted = lost + u64::from(corruption);
        let truncated = corrupted + u64::from(truncation);
        let drawn = self.rng.below(10_000);
        if drawn < lost {
            self.happened.lost += 1;
            return false;
        }
        if drawn < corrupted {
            let place = self.rng.below(frame.len() as u64) as usize;
            // Of 255 other values, one.
            let change = 1 + self.rng.below(255) as u8;
            if let Some(byte) = frame.get_mut(place) {
                *byte ^= change;
                self.happened.corrupted += 1;
            }
        } else if drawn < truncated {
            let len = self.rng.below(frame.len() as u64) as usize;
            frame.set_len(len);
            self.happened.truncated += 1;
        }
        true
    }
}

impl<Q: PacketQueue> PacketQueue for FaultyQueue<Q> {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let before = into.len();
        let work = self.inner.poll(budget, now, into);
        let mut place = 0;
        into.retain_mut(|frame| {
            place += 1;
            place <= before || self.pass(frame)
        });
        work
    }

    fn mask(&mut self) {
        self.inner.mask();
    }

    fn unmask(&mut self, now: Ns) -> bool {
        self.inner.unmask(now)
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.inner.interrupt()
    }

    fn acknowledge(&mut self) {
        self.inner.acknowledge();
    }

    fn gone(&self) -> bool {
        self.inner.gone()
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        self.inner.transmitter()
    }

    fn counters(&self) -> Arc<QueueCounters> {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};

    /// A thousand frames of sixty ones, mistreated.
    fn faulty(faults: Faults, seed: u64) -> (Happened, Vec<Vec<u8>>) {
        let arrivals = Arrivals::Fixed { per_second: 1e9 };
        let config = SyntheticConfig { arrivals, rx_ring: 1000, ..SyntheticConfig::default() };
        let template = |_: u32, _: u64, buf: &mut [u8]| {
            buf[..60].fill(1);
            60
        };
        let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(1000), None);
        let mut queue = FaultyQueue::new(queue.expect("valid"), faults, seed);
        let mut frames = Vec::with_capacity(1000);
        assert_eq!(queue.poll(1000, 999, &mut frames), Work { rx: 1000, tx: 0 });
        (queue.happened(), frames.iter().map(|frame| frame.to_vec()).collect())
    }

    #[test]
    fn without_faults_nothing_happens() {
        let (happened, frames) = faulty(Faults::default(), 1);
        assert_eq!(happened, Happened::default());
        assert!(frames.iter().all(|frame| *frame == [1; 60]));
    }

    #[test]
    fn each_fault_does_what_it_says_and_is_counted() {
        let faults = Faults { loss: 1_000, corruption: 2_000, truncation: 3_000 };
        let (happened, frames) = faulty(faults, 1);
        assert_eq!(frames.len() as u64, 1000 - happened.lost);
        let short = frames.iter().filter(|frame| frame.len() < 60).count() as u64;
        assert_eq!(short, happened.truncated);
        let changed = |frame: &&Vec<u8>| frame.iter().filter(|&&byte| byte != 1).count() == 1;
        assert_eq!(frames.iter().filter(changed).count() as u64, happened.corrupted);
        assert!(happened.lost > 50 && happened.corrupted > 100 && happened.truncated > 200);
        assert_eq!(faulty(faults, 1), (happened, frames), "the same seed, the same faults");
    }

    #[test]
    fn everything_can_be_lost() {
        let (happened, frames) = faulty(Faults { loss: 10_000, ..Faults::default() }, 3);
        assert_eq!((happened.lost, frames.len()), (1000, 0));
    }
}
