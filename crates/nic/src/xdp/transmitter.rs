//! The way out of an AF_XDP queue, for any thread and without waiting.
//!
//! The ring has one writer. A thread that finds it free writes its frame and has the kernel send; one
//! that finds it taken leaves its frame in a list, and goes. Who has the ring looks at the list before
//! and after it lets go of the ring, so that nothing stays there. Nobody waits, also not a real-time thread for
//! one that it has preempted.
//!
//! Calling the kernel is what sending costs. So frames that are [posted](Transmitter::post) wait in the
//! ring until there are [`BATCH`] of them, or until somebody [flushes](Transmitter::flush).

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use napkin_policy::Ns;

use super::ring::{Consumer, Descriptor, Producer};
use super::socket::{Called, XdpSocket};
use super::untaken::Untaken;
use crate::counters::add;
use crate::places::Places;
use crate::{ETHERNET_HEADER, FRAME_CAPACITY, Frame, Pool, QueueCounters, SendError, Transmitter};

/// Frames after which a call is due, flushed or not: as many as the kernel sends in one.
const BATCH: u32 = 32;

/// Calls that are made in a row while each gets something done.
const ROUNDS: u32 = 8;

/// The kernel has a worker take the buffers from the card after the socket was closed, and nobody is told when it has.
const ASIDE: Duration = Duration::from_millis(500);

/// Frames that are left to whoever has the ring.
const LEFT: usize = 256;

/// What a queue and its senders share.
#[derive(Debug)]
pub(super) struct Wire {
    // The rings' memory keeps the socket open, so it goes with this too.
    ring: Mutex<Ring>,
    pub(super) socket: XdpSocket,
    pool: Pool,
    /// Frames whose senders found the ring taken.
    left: Places,
    /// Frames in the ring of which the kernel was not told.
    untold: AtomicU32,
    /// Twice the calls to send so far, and one more while one lasts: where the kernel's instance is polled, each
    /// polls it.
    calls: AtomicU32,
    pub(super) untaken: Untaken,
    pub(super) counters: Arc<QueueCounters>,
    /// What is attached for as long as there is a queue.
    _attachment: Arc<dyn fmt::Debug + Send + Sync>,
    /// The last one: what it holds goes back once the socket has gone.
    kept: Kept,
}

/// Buffers that the kernel may read from or write into until it has closed the socket. They then go back: where the
/// card itself moves the bytes, [`ASIDE`] later.
#[derive(Debug)]
struct Kept {
    pool: Pool,
    zero_copy: bool,
    buffers: Mutex<Vec<u32>>,
}

impl Kept {
    fn add(&self, buffers: impl Iterator<Item = u32>) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let buffers = self.buffers.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !self.zero_copy {
            return self.pool.put_back_many(buffers);
        }
        let (pool, buffers) = (self.pool.clone(), std::mem::take(buffers));
        let later = move || {
            thread::sleep(ASIDE);
            pool.put_back_many(&buffers);
        };
        // Where there can be no thread they stay out, which is better than bytes in another's frame.
        let _ = thread::Builder::new().name("xdp-buffers".into()).spawn(later);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        let out = (0..).zip(&ring.out).filter(|(_, out)| **out).map(|(buffer, _)| buffer);
        self.kept.add(out.chain(ring.free.drain(..)));
    }
}

/// The ring and the buffers of frames that go out.
#[derive(Debug)]
struct Ring {
    transmit: Producer<Descriptor>,
    complete: Consumer<u64>,
    /// Buffers that nothing is in.
    free: VecDeque<u32>,
    /// Whether a buffer of the pool, by its number, is on its way out: no other number is believed.
    out: Vec<bool>,
    most: usize,
}

impl Wire {
    pub(super) fn new(
        socket: XdpSocket,
        (transmit, complete): (Producer<Descriptor>, Consumer<u64>),
        pool: &Pool,
        buffers: usize,
        attachment: Arc<dyn fmt::Debug + Send + Sync>,
    ) -> std::io::Result<Wire> {
        let free: VecDeque<u32> = (0..buffers).map_while(|_| pool.lend()).collect();
        let out = vec![false; pool.shared().1 / FRAME_CAPACITY];
        let ring = Ring { transmit, complete, most: free.len(), free, out };
        let zero_copy = socket.zero_copy();
        Ok(Wire {
            ring: Mutex::new(ring),
            socket,
            pool: pool.clone(),
            left: Places::new(LEFT),
            untold: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            untaken: Untaken::new()?,
            counters: Arc::default(),
            _attachment: attachment,
            kept: Kept { pool: pool.clone(), zero_copy, buffers: Mutex::default() },
        })
    }

    /// Keeps buffers that the kernel was lent for as long as it may write into them.
    pub(super) fn keep(&self, buffers: impl Iterator<Item = u32>) {
        self.kept.add(buffers);
    }

    fn try_ring(&self) -> Option<MutexGuard<'_, Ring>> {
        match self.ring.try_lock() {
            Ok(ring) => Some(ring),
            // Whoever panicked left indices and lists that are each whole.
            Err(TryLockError::Poisoned(ring)) => Some(ring.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Does something with the ring if nobody else has it, and sees to what others left meanwhile.
    /// `None` if another thread has it: that one will see to it.
    fn with_ring<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> Option<T> {
        let mut ring = self.try_ring()?;
        self.take_left(&mut ring);
        let result = act(&mut ring);
        drop(ring);
        self.see_to_left();
        Some(result)
    }

    /// As [`with_ring`](Wire::with_ring), for who has frames: `None` also while somebody is about to leave one, for
    /// one of the caller's own may be behind it, and is not to be overtaken.
    fn in_turn<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> Option<T> {
        let act = |ring: &mut Ring| match self.left.len() {
            0 => Some(act(ring)),
            // Frames that were before it are in the ring now.
            _ => {
                self.tell(ring);
                None
            }
        };
        self.with_ring(act).flatten()
    }

    /// Sees to frames that were left while somebody had the ring. Whoever leaves one does so before it
    /// looks whether the ring is taken; whoever lets go looks afterwards. One that is only about to be there is
    /// not waited for: its sender may have been preempted by this thread, and looks when it is.
    fn see_to_left(&self) {
        loop {
            fence(SeqCst);
            if !self.left.ready() {
                return;
            }
            let Some(mut ring) = self.try_ring() else { return };
            self.take_left(&mut ring);
            self.tell(&mut ring);
        }
    }

    /// Puts what others left into the ring. What it has no room for, also once the kernel was called for that, is
    /// dropped: its senders have gone.
    fn take_left(&self, ring: &mut Ring) {
        let mut called = false;
        for _ in 0..LEFT {
            let Some(frame) = self.left.pop() else { return };
            if ring.transmit.room(1) == 0 && !std::mem::replace(&mut called, true) {
                self.make_room(ring);
            }
            if ring.transmit.room(1) == 0 {
                add(&self.counters.tx_dropped, 1);
                continue;
            }
            let (buffer, start, length) = frame.into_buffer();
            ring.put(buffer, start, length as u32);
            self.written(1, length as u64);
        }
    }

    /// Frames were written into the ring, by whoever has it.
    fn written(&self, frames: u32, bytes: u64) {
        // Only that thread writes it, and `flush` alone reads it without the ring.
        self.untold.store(self.untold.load(Relaxed) + frames, Relaxed);
        add(&self.counters.tx_packets, frames.into());
        add(&self.counters.tx_bytes, bytes);
    }

    /// Has the kernel send what is in the ring, told of it before or not.
    #[cold]
    fn make_room(&self, ring: &mut Ring) {
        self.untold.fetch_add(1, Relaxed);
        self.tell(ring);
    }

    /// Has the kernel send what is in the ring.
    fn tell(&self, ring: &mut Ring) {
        if self.untold.load(Relaxed) == 0 {
            return;
        }
        // In copy mode the kernel always asks for it, in zero-copy only while it sleeps.
        let asks = ring.transmit.publish_and_look();
        let mut waiting = ring.transmit.waiting();
        let (first, mut stuck) = (waiting, false);
        if asks {
            for _ in 0..ROUNDS.max(waiting / BATCH + 1) {
                self.calls.fetch_add(1, SeqCst);
                let called = self.socket.send();
                self.calls.fetch_add(1, SeqCst);
                match called {
                    Called::Done | Called::Again => {}
                    // Whoever sends once it is up again takes them along.
                    Called::Down => {
                        stuck = false;
                        break;
                    }
                    Called::Gone => {
                        self.counters.depart();
                        break;
                    }
                }
                let before = std::mem::replace(&mut waiting, ring.transmit.waiting());
                stuck = waiting > 0;
                if stuck && waiting == before {
                    self.socket.wake();
                }
                if waiting == 0 || waiting == before || !ring.transmit.needs_wakeup() {
                    break;
                }
            }
        }
        self.untold.store(0, Relaxed);
        self.untaken.left(stuck, waiting > 0 && !asks, waiting < first);
        self.reap(ring);
    }

    fn reap(&self, ring: &mut Ring) -> u32 {
        let done = ring.complete.ready(1);
        // Those of frames that were handed over.
        let (mut theirs, mut count) = ([0; BATCH as usize], 0);
        for _ in 0..done {
            let address = ring.complete.pop();
            let buffer = (address / FRAME_CAPACITY as u64) as usize;
            // A buffer that is not on its way out cannot have arrived.
            let Some(out) = ring.out.get_mut(buffer).filter(|out| **out) else { continue };
            *out = false;
            if ring.free.len() < ring.most {
                ring.free.push_back(buffer as u32);
                continue;
            }
            if count == theirs.len() {
                self.pool.put_back_many(&theirs);
                count = 0;
            }
            theirs[count] = buffer as u32;
            count += 1;
        }
        self.pool.put_back_many(&theirs[..count]);
        if done > 0 {
            ring.complete.release();
            add(&self.counters.tx_completions, done.into());
        }
        done
    }

    /// Reaps what was sent, and calls for what was not; for the owner of the queue. How many were reaped.
    pub(super) fn poll(&self) -> u32 {
        self.with_ring(|ring| {
            if self.untaken.stuck() || self.untaken.unasked() {
                self.untold.fetch_add(1, Relaxed);
            }
            self.tell(ring);
            self.reap(ring)
        })
        .unwrap_or(0)
    }

    /// Flushes, and sees whether a kernel that has not taken all asks for a call by now; for the owner, before it sleeps.
    pub(super) fn settle(&self) {
        if self.untaken.unasked() {
            self.with_ring(|ring| {
                self.untold.fetch_add(1, Relaxed);
                self.tell(ring);
            });
        }
        self.flush();
    }

    /// Buffers for frames that go out, wherever they are.
    pub(super) fn buffers(&self) -> usize {
        let ring = self.try_ring();
        let there = ring.map_or(0, |it| it.free.len() + it.out.iter().filter(|out| **out).count());
        there + self.left.len()
    }

    /// Twice the calls to send so far, and one more while one lasts.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(SeqCst)
    }

    fn write(&self, frame: &[u8], now_or_later: When) -> Result<(), SendError> {
        self.check(frame)?;
        let written = self.in_turn(|ring| {
            self.put(ring, frame)?;
            self.written(1, frame.len() as u64);
            if now_or_later == When::Now || self.untold.load(Relaxed) >= BATCH {
                self.tell(ring);
            }
            Ok(())
        });
        written.unwrap_or_else(|| self.leave(frame))
    }

    /// Why a frame cannot go out, whatever room there is.
    fn check(&self, frame: &[u8]) -> Result<(), SendError> {
        if frame.len() > FRAME_CAPACITY {
            return Err(SendError::TooLong);
        }
        if frame.len() < ETHERNET_HEADER {
            return Err(SendError::TooShort);
        }
        if self.counters.gone() {
            return Err(SendError::Down);
        }
        Ok(())
    }

    /// Copies a frame into the ring, untold and uncounted.
    fn put(&self, ring: &mut Ring, frame: &[u8]) -> Result<(), SendError> {
        let buffer = self.buffer(ring).ok_or(SendError::RingFull)?;
        // SAFETY: the buffer was taken off a list a moment ago, and is in no ring.
        unsafe { self.pool.write(buffer, frame) }
        ring.put(buffer, 0, frame.len() as u32);
        Ok(())
    }

    /// A buffer for a frame, if the ring has room for it.
    fn buffer(&self, ring: &mut Ring) -> Option<u32> {
        if ring.free.is_empty() || ring.transmit.room(1) == 0 {
            self.make_room(ring);
        }
        if ring.transmit.room(1) == 0 {
            return None;
        }
        ring.free.pop_front()
    }

    /// Leaves a frame to whoever has the ring.
    fn leave(&self, frame: &[u8]) -> Result<(), SendError> {
        let mut copy = self.pool.take().ok_or(SendError::RingFull)?;
        copy.buffer()[..frame.len()].copy_from_slice(frame);
        copy.set_len(frame.len());
        if !self.left.push(copy) {
            return Err(SendError::RingFull);
        }
        self.see_to_left();
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    Later,
}

impl Ring {
    /// Puts a buffer's frame, which begins at `start`, into the ring, which has room.
    fn put(&mut self, buffer: u32, start: usize, length: u32) {
        if let Some(out) = self.out.get_mut(buffer as usize) {
            *out = true;
        }
        let address = u64::from(buffer) * FRAME_CAPACITY as u64 + start as u64;
        self.transmit.push(Descriptor { address, length, options: 0 });
    }
}

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _now: Ns) -> Result<(), SendError> {
        self.write(frame, When::Now).inspect_err(|_| add(&self.counters.tx_dropped, 1))
    }

    /// The ring is taken, and the kernel called, once for all of them.
    fn send_all(&self, frames: &[Frame], _now: Ns) -> usize {
        let (mut sent, mut bytes) = (0, 0);
        let written = self.in_turn(|ring| {
            let refused = frames.iter().try_for_each(|frame| {
                self.check(frame)?;
                self.put(ring, frame)?;
                (sent, bytes) = (sent + 1, bytes + frame.len() as u64);
                Ok(())
            });
            self.written(sent, bytes);
            self.tell(ring);
            refused
        });
        let all: Result<(), SendError> = written.unwrap_or_else(|| {
            frames.iter().try_for_each(|frame| {
                self.check(frame)?;
                self.leave(frame)?;
                sent += 1;
                Ok(())
            })
        });
        if all.is_err() {
            add(&self.counters.tx_dropped, 1);
        }
        sent as usize
    }

    /// Frames in the memory that the kernel shares are sent from where they are.
    fn send_owned(&self, frames: &mut Vec<Frame>, now: Ns) -> usize {
        let written = self.in_turn(|ring| {
            let wanted = frames.len() as u32;
            if ring.transmit.room(wanted) < wanted {
                self.tell(ring);
            }
            let room = ring.transmit.room(wanted) as usize;
            let fits = |frame: &&Frame| self.pool.has(frame) && self.check(frame).is_ok();
            let sent = frames.iter().take(room).take_while(fits).count();
            let mut bytes = 0;
            for frame in frames.drain(..sent) {
                let (buffer, start, length) = frame.into_buffer();
                ring.put(buffer, start, length as u32);
                bytes += length as u64;
            }
            self.written(sent as u32, bytes);
            self.tell(ring);
            sent
        });
        let sent = written.unwrap_or(0);
        if frames.is_empty() {
            return sent;
        }
        let copied = self.send_all(frames, now);
        frames.drain(..copied);
        sent + copied
    }

    fn post(&self, frame: &[u8], _now: Ns) -> Result<(), SendError> {
        self.write(frame, When::Later).inspect_err(|_| add(&self.counters.tx_dropped, 1))
    }

    fn flush(&self) {
        if self.untold.load(Relaxed) > 0 {
            self.with_ring(|ring| self.tell(ring));
        }
    }

    /// Who has the ring meanwhile is about to send one.
    fn under_way(&self) -> usize {
        self.poll();
        let in_ring = self.with_ring(|ring| ring.out.iter().filter(|out| **out).count());
        in_ring.unwrap_or(1) + self.left.len()
    }
}

#[cfg(test)]
mod tests;
