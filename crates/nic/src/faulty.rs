//! A wrapper that injects faults into the frames a queue receives and sends, for tests.
//!
//! Faults are drawn from a seed, so that a failing test can be reproduced. Interrupts and counters are those of the
//! queue inside ([`late`](crate::late) delays interrupts); the faults are counted here.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use napkin_core::Work;
use napkin_policy::Ns;
use napkin_traffic::SplitMix;
use napkin_traffic::splitmix::at;

use crate::forward::forward;
use crate::{ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, Pool, SendError, Transmitter};

/// The share of frames that each fault affects: parts per 10,000, at most one fault a frame.
///
/// As text: `loss=1%,reordering=0.5%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Frames that are lost.
    pub loss: u16,
    /// Frames in which one byte is changed.
    pub corruption: u16,
    /// Frames that are cut short, possibly to 0 bytes.
    pub truncation: u16,
    /// Frames that are duplicated, if a buffer is free for the copy.
    pub duplication: u16,
    /// Frames that are held back until after those of the next poll. On the receive side only.
    pub reordering: u16,
}

/// A fault of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Loss,
    Corruption,
    Truncation,
    Duplication,
    Reordering,
}

impl Faults {
    fn shares(self) -> [(Fault, u16); 5] {
        [
            (Fault::Loss, self.loss),
            (Fault::Corruption, self.corruption),
            (Fault::Truncation, self.truncation),
            (Fault::Duplication, self.duplication),
            (Fault::Reordering, self.reordering),
        ]
    }

    /// The fault for a frame for which `drawn` (below 10,000) was drawn.
    fn fault_for(self, drawn: u64) -> Option<Fault> {
        let mut below = 0;
        self.shares().into_iter().find_map(|(fault, share)| {
            below += u64::from(share);
            (drawn < below).then_some(fault)
        })
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        for part in text.split(',') {
            let (name, share) = part.split_once('=').ok_or_else(|| {
                format!("'{part}' is no fault: give FAULT=SHARE%, as in loss=1%,reordering=0.5%")
            })?;
            let place = match name {
                "loss" => &mut faults.loss,
                "corruption" => &mut faults.corruption,
                "truncation" => &mut faults.truncation,
                "duplication" => &mut faults.duplication,
                "reordering" => &mut faults.reordering,
                _ => {
                    return Err(format!(
                        "no fault is called '{name}': there are loss, corruption, truncation, \
                         duplication and reordering"
                    ));
                }
            };
            let share: Option<f64> = share.strip_suffix('%').and_then(|share| share.parse().ok());
            let share = share.filter(|share| (0.0..=100.0).contains(share)).ok_or_else(|| {
                format!("'{part}': a share is 0% to 100% of the frames, as in {name}=1%")
            })?;
            *place = (share * 100.0).round() as u16;
            if *place == 0 && share > 0.0 {
                return Err(format!("'{part}': the least share above 0% is 0.01%"));
            }
        }
        let sum: u32 = faults.shares().iter().map(|&(_, share)| u32::from(share)).sum();
        if sum > 10_000 {
            let sum = f64::from(sum) / 100.0;
            return Err(format!("a frame has one fault at most, and these are {sum}%"));
        }
        Ok(faults)
    }
}

/// The faults so far, received and sent frames together.
#[derive(Debug, Default)]
pub struct FaultCounters {
    happened: [AtomicU64; 5],
}

impl FaultCounters {
    fn count(&self, fault: Fault) {
        self.happened[fault as usize].fetch_add(1, Relaxed);
    }

    fn of(&self, fault: Fault) -> u64 {
        self.happened[fault as usize].load(Relaxed)
    }

    /// Reads all counters.
    pub fn read(&self) -> FaultCounts {
        FaultCounts {
            lost: self.of(Fault::Loss),
            corrupted: self.of(Fault::Corruption),
            truncated: self.of(Fault::Truncation),
            duplicated: self.of(Fault::Duplication),
            reordered: self.of(Fault::Reordering),
        }
    }
}

/// A reading of [`FaultCounters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Frames that were lost. Includes frames to be sent whose truncation would have ended within the Ethernet
    /// header.
    pub lost: u64,
    /// Frames with a changed byte.
    pub corrupted: u64,
    /// Frames that were cut short.
    pub truncated: u64,
    /// Frames that were duplicated.
    pub duplicated: u64,
    /// Frames that were held back. Without effect where no frame came before the next poll.
    pub reordered: u64,
}

/// A queue with seeded faults on its receive side, and on its transmit side if requested.
///
/// Lost frames were taken off the ring and count in [`Work::rx`]. A copy, or a frame that was held back, counts in
/// that of the poll which returns it, so that the ring does not look empty until then.
pub struct FaultyQueue {
    inner: Box<dyn PacketQueue>,
    faults: Faults,
    transmit: Faults,
    seed: u64,
    rng: SplitMix,
    counters: Arc<FaultCounters>,
    pool: Pool,
    /// Copies and held-back frames, to be returned after those of the next poll.
    kept: Vec<Frame>,
    /// Scratch space for the frames of a poll; empty between polls.
    taken: Vec<Frame>,
}

impl FaultyQueue {
    /// Injects `faults` into what `inner` receives; copies of frames are taken from `pool`.
    pub fn new(inner: Box<dyn PacketQueue>, faults: Faults, seed: u64, pool: Pool) -> FaultyQueue {
        FaultyQueue {
            inner,
            faults,
            transmit: Faults::default(),
            seed,
            rng: SplitMix::new(seed),
            counters: Arc::default(),
            pool,
            kept: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Injects `faults` into sent frames as well, from all transmitters. Reordering is ignored.
    pub fn with_transmit(self, faults: Faults) -> FaultyQueue {
        FaultyQueue { transmit: Faults { reordering: 0, ..faults }, ..self }
    }

    /// The counters of faults, for any thread.
    pub fn fault_counters(&self) -> Arc<FaultCounters> {
        Arc::clone(&self.counters)
    }

    /// Draws and applies the fault, if any, of one frame; `None` if the frame is not returned now.
    fn pass(&mut self, mut frame: Frame) -> Option<Frame> {
        let Some(fault) = self.faults.fault_for(self.rng.below(10_000)) else { return Some(frame) };
        match fault {
            Fault::Loss => {
                self.counters.count(fault);
                return None;
            }
            Fault::Corruption => {
                let place = self.rng.below(frame.len() as u64) as usize;
                // A non-zero XOR: the new value differs from the old.
                let change = 1 + self.rng.below(255) as u8;
                if let Some(byte) = frame.get_mut(place) {
                    *byte ^= change;
                    self.counters.count(fault);
                }
            }
            Fault::Truncation => {
                let len = self.rng.below(frame.len() as u64) as usize;
                frame.set_len(len);
                self.counters.count(fault);
            }
            Fault::Duplication => {
                if let Some(mut copy) = self.pool.take() {
                    copy.buffer()[..frame.len()].copy_from_slice(&frame);
                    copy.set_len(frame.len());
                    copy.set_arrived(frame.arrived());
                    self.kept.push(copy);
                    self.counters.count(fault);
                }
            }
            Fault::Reordering => {
                self.kept.push(frame);
                self.counters.count(fault);
                return None;
            }
        }
        Some(frame)
    }
}

impl fmt::Debug for FaultyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyQueue")
            .field("faults", &self.faults)
            .field("transmit", &self.transmit)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl PacketQueue for FaultyQueue {
    forward!(mask, interrupt, acknowledge, gone, counters);

    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        if budget == 0 {
            return self.inner.poll(0, now, into);
        }
        let due = self.kept.len().min(budget.into());
        let mut taken = std::mem::take(&mut self.taken);
        let mut work = self.inner.poll(budget - due as u16, now, &mut taken);
        let before = self.counters.of(Fault::Reordering);
        into.extend(taken.drain(..).filter_map(|frame| self.pass(frame)));
        let back = (self.counters.of(Fault::Reordering) - before) as u16;
        self.taken = taken;
        // A caller that sees fewer frames than its budget unmasks, and `unmask` then reports the held-back frames.
        work.rx = work.rx + due as u16 - back;
        into.extend(self.kept.drain(..due));
        work
    }

    fn unmask(&mut self, now: Ns) -> bool {
        if self.kept.is_empty() {
            return self.inner.unmask(now);
        }
        // The queue inside stays masked, as it is after it has returned `true` itself.
        true
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        if self.transmit == Faults::default() {
            return self.inner.transmitter();
        }
        Arc::new(FaultyTransmitter {
            inner: self.inner.transmitter(),
            faults: self.transmit,
            seed: !self.seed,
            drawn: AtomicU64::new(0),
            counters: Arc::clone(&self.counters),
        })
    }
}

/// Injects faults into sent frames before the device sees them: a frame lost here is in none of the device's
/// counters.
struct FaultyTransmitter {
    inner: Arc<dyn Transmitter>,
    faults: Faults,
    seed: u64,
    drawn: AtomicU64,
    counters: Arc<FaultCounters>,
}

impl Transmitter for FaultyTransmitter {
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        // One random number serves for all draws of a frame.
        let bits = at(self.seed, self.drawn.fetch_add(1, Relaxed));
        let Some(fault) = self.faults.fault_for(bits % 10_000) else {
            return self.inner.send(frame, now);
        };
        let place = (bits >> 32) as usize % frame.len().max(1);
        let fault = match fault {
            // Devices refuse so short a frame.
            Fault::Truncation if place < ETHERNET_HEADER => Fault::Loss,
            fault => fault,
        };
        self.counters.count(fault);
        match fault {
            Fault::Loss => Ok(()),
            Fault::Truncation => self.inner.send(&frame[..place], now),
            Fault::Corruption => {
                let mut changed = [0; FRAME_CAPACITY];
                let changed = changed.get_mut(..frame.len()).ok_or(SendError::TooLong)?;
                changed.copy_from_slice(frame);
                changed.get_mut(place).into_iter().for_each(|byte| *byte ^= 1 << (bits >> 29 & 7));
                self.inner.send(changed, now)
            }
            Fault::Duplication | Fault::Reordering => {
                self.inner.send(frame, now)?;
                // The copy may find the ring full; the first has been sent.
                let _ = self.inner.send(frame, now);
                Ok(())
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};
    use proptest::prelude::*;

    /// Polls a thousand frames, filled with their sequence number and ones, through `faults` until the ring is empty.
    fn faulty(faults: Faults, seed: u64, budget: u16) -> (FaultCounts, Vec<Vec<u8>>) {
        let arrivals = Arrivals::Fixed { per_second: 1e9 };
        let config =
            SyntheticConfig { arrivals, rx_ring: 1000, count: 1000, ..SyntheticConfig::default() };
        let template = |_: u32, seq: u64, buf: &mut [u8]| {
            buf[..60].fill(1);
            buf[..8].copy_from_slice(&seq.to_be_bytes());
            60
        };
        let pool = Pool::new(3000);
        let queue = SyntheticQueue::new(&config, Box::new(template), pool.clone(), None);
        let mut queue = FaultyQueue::new(Box::new(queue.expect("valid")), faults, seed, pool);
        let happened = queue.fault_counters();
        let mut frames = Vec::with_capacity(3000);
        let mut polled = 0;
        loop {
            let work = queue.poll(budget, 999, &mut frames);
            assert!(work.rx <= budget);
            polled += u64::from(work.rx);
            if work.rx < budget && !queue.unmask(999) {
                break;
            }
        }
        let happened = happened.read();
        assert_eq!(polled, 1000 + happened.duplicated);
        (happened, frames.iter().map(|frame| frame.to_vec()).collect())
    }

    fn seq(frame: &[u8]) -> u64 {
        frame.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    #[test]
    fn without_faults_nothing_happens() {
        let (happened, frames) = faulty(Faults::default(), 1, 64);
        assert_eq!(happened, FaultCounts::default());
        assert!(frames.iter().map(|frame| seq(frame)).eq(0..1000));
    }

    #[test]
    fn each_fault_does_what_it_says_and_is_counted() {
        let faults =
            Faults { loss: 1_000, corruption: 2_000, truncation: 3_000, ..Faults::default() };
        let (happened, frames) = faulty(faults, 1, 64);
        assert_eq!(frames.len() as u64, 1000 - happened.lost);
        let short = frames.iter().filter(|frame| frame.len() < 60).count() as u64;
        assert_eq!(short, happened.truncated);
        assert!(happened.lost > 50 && happened.corrupted > 100 && happened.truncated > 200);
        assert_eq!(faulty(faults, 1, 64), (happened, frames), "the same seed, the same faults");
    }

    #[test]
    fn a_copy_follows_and_a_frame_that_was_kept_is_overtaken() {
        let twice = Faults { duplication: 10_000, ..Faults::default() };
        let (happened, frames) = faulty(twice, 1, 64);
        assert_eq!((happened.duplicated, frames.len()), (1000, 2000));
        let behind = Faults { reordering: 2_000, ..Faults::default() };
        let (happened, frames) = faulty(behind, 1, 64);
        let order: Vec<u64> = frames.iter().map(|frame| seq(frame)).collect();
        assert!(happened.reordered > 100 && !order.is_sorted());
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000), "each of them once");
    }

    #[test]
    fn everything_can_be_lost() {
        let (happened, frames) = faulty(Faults { loss: 10_000, ..Faults::default() }, 3, 64);
        assert_eq!((happened.lost, frames.len()), (1000, 0));
    }

    #[test]
    fn what_is_sent_is_mistreated_before_the_device_sees_it() {
        let config = SyntheticConfig { tx_ring: 4_096, ..SyntheticConfig::default() };
        let template = |_: u32, _: u64, _: &mut [u8]| 60;
        let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(1), None);
        let faults: Faults = "loss=20%,duplication=30%,truncation=10%".parse().unwrap();
        let queue =
            FaultyQueue::new(Box::new(queue.expect("valid")), Faults::default(), 5, Pool::new(1))
                .with_transmit(faults);
        let transmitter = queue.transmitter();
        (0..1000).for_each(|_| transmitter.send(&[1; 60], 0).expect("room"));
        let happened = queue.fault_counters().read();
        assert!(happened.lost > 100 && happened.duplicated > 200 && happened.truncated > 50);
        let sent = queue.counters().read().tx_packets;
        assert_eq!(sent, 1000 + happened.duplicated - happened.lost, "each is accounted for");
    }

    #[test]
    fn faults_are_read_from_text() {
        let faults: Faults = "loss=1%,reordering=0.5%".parse().unwrap();
        assert_eq!(faults, Faults { loss: 100, reordering: 50, ..Faults::default() });
        for wrong in [
            "",
            "loss",
            "loss=1",
            "loss=-1%",
            "loss=101%",
            "lost=1%",
            "loss=NaN%",
            "loss=0.004%",
            "loss=60%,corruption=60%",
        ] {
            assert!(wrong.parse::<Faults>().is_err(), "{wrong}");
        }
        let least: Faults = "loss=0.01%,corruption=0%".parse().unwrap();
        assert_eq!(least, Faults { loss: 1, ..Faults::default() });
        let refused = "loss=60%,corruption=40.5%".parse::<Faults>().unwrap_err();
        assert!(refused.ends_with("these are 100.5%"), "{refused}");
    }

    proptest! {
        #[test]
        fn every_frame_is_accounted_for(
            seed: u64,
            budget in 1u16..100,
            shares in prop::array::uniform5(0u16..2_000),
        ) {
            let [loss, corruption, truncation, duplication, reordering] = shares;
            let faults = Faults { loss, corruption, truncation, duplication, reordering };
            let (happened, frames) = faulty(faults, seed, budget);
            prop_assert_eq!(frames.len() as u64, 1000 - happened.lost + happened.duplicated);
        }
    }
}
