//! A cable between two devices in memory: what one end sends, the other receives.
//!
//! Both ends are in one process, each with its own number of queues. A frame goes to the queue that its flow hashes
//! to ([`Toeplitz`], with a different key at each end), by one copy into a buffer of the receiving end's pool. The
//! cable itself loses nothing: a full ring refuses the frame ([`SendError::RingFull`]), as a link with flow control
//! does. A queue interrupts at most once per unmask, without moderation; transmissions complete within the call
//! that makes them.
//!
//! # The ring
//!
//! Many senders and one poller share it, and none waits for another. A poll ends at the first place that is not
//! filled. A sender that has filled a place writes to the interrupt's eventfd if the queue is unmasked. The sender
//! fills first and then reads the mask, while the queue unmasks first and then reads the place, both sequentially
//! consistent, so at least one of them sees the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, fence};

use napkin_core::Work;
use napkin_policy::Ns;
use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;

use crate::counters::add;
use crate::mpsc_ring::MpscRing;
use crate::{
    ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, Pool, QueueCounters, SendError, Toeplitz,
    Transmitter,
};

/// The most frames in a ring.
pub const MAX_RING: usize = 1 << 16;

/// The most queues of an end.
pub const MAX_QUEUES: u16 = 1_024;

/// One end of a cable.
#[derive(Debug)]
pub struct EndConfig {
    /// Number of queues, from 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Size of each queue's receive ring in frames, from 1 to [`MAX_RING`].
    pub ring: usize,
    /// The buffers of received frames. If none is free, a frame is dropped and counted by the queue that it was for.
    pub pool: Pool,
}

/// Why a cable could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CableError {
    /// The number of queues is out of range.
    #[error("an end of a cable has 1 to {MAX_QUEUES} queues, not {0}")]
    Queues(u16),
    /// The size of the rings is out of range.
    #[error("a ring of a cable holds 1 to {MAX_RING} frames, not {0}")]
    Ring(usize),
    /// The operating system refused an eventfd for an interrupt.
    #[error("cannot make the descriptor of a queue's interrupt: {0}")]
    Interrupt(io::Error),
}

/// The queues of both ends.
pub type Ends = (Vec<CableQueue>, Vec<CableQueue>);

/// Makes a cable. All queues start masked.
///
/// # Errors
/// A number is out of range, or the process is out of descriptors.
pub fn cable(one: EndConfig, other: EndConfig) -> Result<Ends, CableError> {
    let (one, other) = (End::new(one)?, End::new(other)?);
    let queues = |here: &Arc<End>, there: &Arc<End>| {
        let queue = |ring: &Arc<Ring>| {
            let wire = Wire { to: Arc::clone(there), counters: Arc::clone(&ring.counters) };
            CableQueue { ring: Arc::clone(ring), wire: Arc::new(wire) }
        };
        here.rings.iter().map(queue).collect()
    };
    Ok((queues(&one, &other), queues(&other, &one)))
}

/// The part of an end that senders share.
#[derive(Debug)]
struct End {
    rings: Vec<Arc<Ring>>,
    hash: Toeplitz,
    pool: Pool,
}

impl End {
    fn new(config: EndConfig) -> Result<Arc<End>, CableError> {
        let EndConfig { queues, ring, pool } = config;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(CableError::Queues(queues));
        }
        if !(1..=MAX_RING).contains(&ring) {
            return Err(CableError::Ring(ring));
        }
        let rings = (0..queues).map(|_| Ring::new(ring)).collect::<Result<_, _>>()?;
        Ok(Arc::new(End { rings, hash: Toeplitz::random(), pool }))
    }

    /// The ring for a frame's flow.
    fn ring(&self, frame: &[u8]) -> &Ring {
        match &self.rings[..] {
            [one] => one,
            rings => &rings[self.hash.queue_of(frame, rings.len())],
        }
    }
}

/// A receive ring with its interrupt.
#[derive(Debug)]
struct Ring {
    frames: MpscRing,
    open: AtomicBool,
    unmasked: AtomicBool,
    /// Whether the eventfd was written to, or is about to be, since the last read.
    rung: AtomicBool,
    interrupt: OwnedFd,
    counters: Arc<QueueCounters>,
}

impl Ring {
    fn new(size: usize) -> Result<Arc<Ring>, CableError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let interrupt = eventfd(0, flags).map_err(|errno| CableError::Interrupt(errno.into()))?;
        Ok(Arc::new(Ring {
            frames: MpscRing::new(size),
            open: AtomicBool::new(true),
            unmasked: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            interrupt,
            counters: Arc::default(),
        }))
    }

    /// Inserts a frame and interrupts if unmasked, from any thread; `false` if the ring is full.
    fn push(&self, frame: Frame) -> bool {
        if !self.frames.push(frame) {
            return false;
        }
        fence(SeqCst);
        if self.unmasked.load(SeqCst) && self.unmasked.swap(false, SeqCst) {
            self.rung.store(true, SeqCst);
            // The write can fail only if the count is near the largest integer.
            let _ = rustix::io::write(&self.interrupt, &1u64.to_ne_bytes());
        }
        true
    }

    /// Clears the eventfd, and returns whether it was readable.
    fn quiet(&self) -> bool {
        self.rung.store(false, SeqCst);
        rustix::io::read(&self.interrupt, &mut [0; 8]).is_ok()
    }
}

/// One queue of an end.
#[derive(Debug)]
pub struct CableQueue {
    ring: Arc<Ring>,
    wire: Arc<Wire>,
}

impl CableQueue {
    /// The number of frames waiting to be polled, including those being inserted.
    pub fn pending(&self) -> usize {
        self.ring.frames.len()
    }
}

impl PacketQueue for CableQueue {
    fn poll(&mut self, budget: u16, _now: Ns, into: &mut Vec<Frame>) -> Work {
        let (mut taken, mut bytes) = (0, 0);
        while taken < budget
            && let Some(frame) = self.ring.frames.pop()
        {
            taken += 1;
            bytes += frame.len() as u64;
            into.push(frame);
        }
        add(&self.ring.counters.rx_packets, taken.into());
        add(&self.ring.counters.rx_bytes, bytes);
        Work { rx: taken, tx: 0 }
    }

    fn mask(&mut self) {
        self.ring.unmasked.store(false, SeqCst);
    }

    fn unmask(&mut self, _now: Ns) -> bool {
        // Clear an interrupt whose frame a poll has already taken.
        if self.ring.rung.load(SeqCst) {
            self.ring.quiet();
        }
        self.ring.unmasked.store(true, SeqCst);
        fence(SeqCst);
        let ready = self.ring.frames.ready();
        if ready {
            self.mask();
        }
        ready
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.ring.interrupt.as_fd()
    }

    fn acknowledge(&mut self) {
        add(&self.ring.counters.interrupts_rx, self.ring.quiet().into());
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::clone(&self.wire) as Arc<dyn Transmitter>
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.ring.counters)
    }
}

impl Drop for CableQueue {
    fn drop(&mut self) {
        self.ring.open.store(false, Release);
    }
}

/// The transmit side of a queue.
#[derive(Debug)]
struct Wire {
    to: Arc<End>,
    counters: Arc<QueueCounters>,
}

impl Wire {
    fn carry(&self, bytes: &[u8], now: Ns) -> Result<(), SendError> {
        if bytes.len() > FRAME_CAPACITY {
            return Err(SendError::TooLong);
        }
        if bytes.len() < ETHERNET_HEADER {
            return Err(SendError::TooShort);
        }
        let ring = self.to.ring(bytes);
        if !ring.open.load(Acquire) {
            return Err(SendError::Down);
        }
        if ring.frames.room().is_none() {
            return Err(SendError::RingFull);
        }
        let Some(mut frame) = self.to.pool.take() else {
            // The frame has left this end; the receiver drops it.
            add(&ring.counters.rx_no_buffer, 1);
            return Ok(());
        };
        frame.buffer()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        frame.set_arrived(now);
        if ring.push(frame) { Ok(()) } else { Err(SendError::RingFull) }
    }
}

impl Transmitter for Wire {
    /// The frame arrives at the time of sending: the cable has no delay.
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.counters.sent(frame, self.carry(frame, now))
    }
}

#[cfg(test)]
mod tests;
