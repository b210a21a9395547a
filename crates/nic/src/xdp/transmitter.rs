//! The transmit side of an AF_XDP queue, for any thread, without blocking.
//!
//! The transmit ring has one writer at a time. A thread that gets the ring's lock writes its frame and has the
//! kernel send it; a thread that finds the lock taken leaves its frame in a list and returns. The thread with the
//! ring drains the list before and after it releases the lock, so that no frame stays there. No thread waits, not
//! even a real-time thread for one that it has preempted.
//!
//! The call to the kernel is the main cost of sending. Frames that are [posted](Transmitter::post) therefore wait
//! in the ring until there are [`BATCH`] of them, or until a thread [flushes](Transmitter::flush).

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use napkin_policy::Ns;

use super::retry::TxRetry;
use super::ring::{Consumer, Descriptor, Producer};
use super::socket::{CallResult, XdpSocket};
use crate::counters::add;
use crate::mpsc_ring::MpscRing;
use crate::{ETHERNET_HEADER, FRAME_CAPACITY, Frame, Pool, QueueCounters, SendError, Transmitter};

/// Frames after which a call is due, flushed or not: as many as the kernel sends in one call.
const BATCH: u32 = 32;

/// The most calls in a row while each makes progress.
const ROUNDS: u32 = 8;

/// How long buffers stay unused after a zero-copy socket is closed: the kernel takes them back from the NIC in a
/// worker, without notice.
const RETIRE_TIME: Duration = Duration::from_millis(500);

/// The most frames in the list for the thread that has the ring.
const MAX_QUEUED: usize = 256;

/// The state that a queue and its senders share.
#[derive(Debug)]
pub(super) struct Wire {
    // The rings' mappings keep the socket open, so this drops them as well.
    ring: Mutex<Ring>,
    pub(super) socket: XdpSocket,
    pool: Pool,
    /// Frames of senders that found the ring taken.
    queued: MpscRing,
    /// Frames in the ring that are not yet published to the kernel.
    unpublished: AtomicU32,
    /// Twice the number of calls to send so far, plus one during a call. In busy polling each such call polls the
    /// kernel's instance as well.
    calls: AtomicU32,
    pub(super) retry: TxRetry,
    pub(super) counters: Arc<QueueCounters>,
    /// Keeps the XDP program attached as long as there is a queue.
    _attachment: Arc<dyn fmt::Debug + Send + Sync>,
    /// The last field: its buffers are returned after the socket is closed.
    retired: RetiredBuffers,
}

/// Buffers that the kernel may access until it has closed the socket. Returns them to the pool when dropped, for
/// zero-copy after [`RETIRE_TIME`].
#[derive(Debug)]
struct RetiredBuffers {
    pool: Pool,
    zero_copy: bool,
    buffers: Mutex<Vec<u32>>,
}

impl RetiredBuffers {
    fn add(&self, buffers: impl Iterator<Item = u32>) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }
}

impl Drop for RetiredBuffers {
    fn drop(&mut self) {
        let buffers = self.buffers.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !self.zero_copy {
            return self.pool.put_back_many(buffers);
        }
        let (pool, buffers) = (self.pool.clone(), std::mem::take(buffers));
        let later = move || {
            thread::sleep(RETIRE_TIME);
            pool.put_back_many(&buffers);
        };
        // If no thread can be started the buffers are lost, which is better than foreign bytes in another frame.
        let _ = thread::Builder::new().name("xdp-buffers".into()).spawn(later);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        let out = (0..).zip(&ring.out).filter(|(_, out)| **out).map(|(buffer, _)| buffer);
        self.retired.add(out.chain(ring.free.drain(..)));
    }
}

/// The transmit ring with its buffers.
#[derive(Debug)]
struct Ring {
    transmit: Producer<Descriptor>,
    complete: Consumer<u64>,
    /// Unused buffers.
    free: VecDeque<u32>,
    /// For each buffer of the pool, by number, whether it is being sent. A completion with another number is invalid.
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
            queued: MpscRing::new(MAX_QUEUED),
            unpublished: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            retry: TxRetry::new()?,
            counters: Arc::default(),
            _attachment: attachment,
            retired: RetiredBuffers { pool: pool.clone(), zero_copy, buffers: Mutex::default() },
        })
    }

    /// Keeps buffers that were lent to the kernel for as long as it may write into them.
    pub(super) fn retire(&self, buffers: impl Iterator<Item = u32>) {
        self.retired.add(buffers);
    }

    fn try_ring(&self) -> Option<MutexGuard<'_, Ring>> {
        match self.ring.try_lock() {
            Ok(ring) => Some(ring),
            // After a panic of the holder, the indices and lists are each still consistent.
            Err(TryLockError::Poisoned(ring)) => Some(ring.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Calls `act` with the ring if the lock is free, and handles the frames that other threads left meanwhile.
    /// Returns `None` if another thread has the lock, which then handles them.
    fn with_ring<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> Option<T> {
        let mut ring = self.try_ring()?;
        self.take_queued(&mut ring);
        let result = act(&mut ring);
        drop(ring);
        self.send_queued();
        Some(result)
    }

    /// As [`with_ring`](Wire::with_ring), for a thread with frames to send: also returns `None` while another thread
    /// is adding to the list, since an earlier frame of the caller may be behind that one, and must not be overtaken.
    fn in_turn<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> Option<T> {
        let act = |ring: &mut Ring| match self.queued.len() {
            0 => Some(act(ring)),
            // Earlier frames are in the ring now.
            _ => {
                self.submit(ring);
                None
            }
        };
        self.with_ring(act).flatten()
    }

    /// Handles frames that were left while the ring was taken. A sender leaves its frame before it tries the lock,
    /// and the holder checks the list after it releases the lock. Does not wait for a frame that is still being
    /// added: its sender may have been preempted by this thread, and tries the lock afterwards.
    fn send_queued(&self) {
        loop {
            fence(SeqCst);
            if !self.queued.ready() {
                return;
            }
            let Some(mut ring) = self.try_ring() else { return };
            self.take_queued(&mut ring);
            self.submit(&mut ring);
        }
    }

    /// Moves frames that other threads left into the ring. Drops frames for which there is still no room after one
    /// call to the kernel, since their senders have returned.
    fn take_queued(&self, ring: &mut Ring) {
        let mut called = false;
        for _ in 0..MAX_QUEUED {
            let Some(frame) = self.queued.pop() else { return };
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

    /// Counts frames that the holder of the ring has written into it.
    fn written(&self, frames: u32, bytes: u64) {
        // Only the holder of the ring writes this; only `flush` reads it without the ring.
        self.unpublished.store(self.unpublished.load(Relaxed) + frames, Relaxed);
        add(&self.counters.tx_packets, frames.into());
        add(&self.counters.tx_bytes, bytes);
    }

    /// Has the kernel send the frames in the ring, even if all are published.
    #[cold]
    fn make_room(&self, ring: &mut Ring) {
        self.unpublished.fetch_add(1, Relaxed);
        self.submit(ring);
    }

    /// Publishes the frames in the ring and has the kernel send them. Does nothing if none is unpublished.
    fn submit(&self, ring: &mut Ring) {
        if self.unpublished.load(Relaxed) == 0 {
            return;
        }
        // In copy mode the kernel always asks for a call, in zero-copy mode only while its driver is idle.
        let asks = ring.transmit.publish_and_check_wakeup();
        let mut waiting = ring.transmit.waiting();
        let (first, mut stuck) = (waiting, false);
        if asks {
            for _ in 0..ROUNDS.max(waiting / BATCH + 1) {
                self.calls.fetch_add(1, SeqCst);
                let called = self.socket.send();
                self.calls.fetch_add(1, SeqCst);
                match called {
                    CallResult::Done | CallResult::Again => {}
                    // The first send after the interface is up again includes these frames.
                    CallResult::Down => {
                        stuck = false;
                        break;
                    }
                    CallResult::Gone => {
                        self.counters.set_gone();
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
        self.unpublished.store(0, Relaxed);
        self.retry.record_left(stuck, waiting > 0 && !asks, waiting < first);
        self.reap(ring);
    }

    fn reap(&self, ring: &mut Ring) -> u32 {
        let done = ring.complete.ready(1);
        // Buffers of frames that were sent in place: these return to the pool.
        let (mut completed, mut count) = ([0; BATCH as usize], 0);
        for _ in 0..done {
            let address = ring.complete.pop();
            let buffer = (address / FRAME_CAPACITY as u64) as usize;
            // Ignore a completion for a buffer that is not being sent.
            let Some(out) = ring.out.get_mut(buffer).filter(|out| **out) else { continue };
            *out = false;
            if ring.free.len() < ring.most {
                ring.free.push_back(buffer as u32);
                continue;
            }
            if count == completed.len() {
                self.pool.put_back_many(&completed);
                count = 0;
            }
            completed[count] = buffer as u32;
            count += 1;
        }
        self.pool.put_back_many(&completed[..count]);
        if done > 0 {
            ring.complete.release();
            add(&self.counters.tx_completions, done.into());
        }
        done
    }

    /// For the owner of the queue: reaps completions, and calls the kernel for frames that are not taken. Returns
    /// how many were reaped.
    pub(super) fn poll(&self) -> u32 {
        self.with_ring(|ring| {
            if self.retry.stuck() || self.retry.left_without_wakeup() {
                self.unpublished.fetch_add(1, Relaxed);
            }
            self.submit(ring);
            self.reap(ring)
        })
        .unwrap_or(0)
    }

    /// For the owner, before it sleeps: flushes, and checks whether a kernel that left frames asks for a call by now.
    pub(super) fn flush_and_recheck(&self) {
        if self.retry.left_without_wakeup() {
            self.with_ring(|ring| {
                self.unpublished.fetch_add(1, Relaxed);
                self.submit(ring);
            });
        }
        self.flush();
    }

    /// The number of buffers for frames to be sent, wherever they are.
    pub(super) fn buffers(&self) -> usize {
        let ring = self.try_ring();
        let in_ring =
            ring.map_or(0, |it| it.free.len() + it.out.iter().filter(|out| **out).count());
        in_ring + self.queued.len()
    }

    /// Twice the number of calls to send so far, plus one during a call.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(SeqCst)
    }

    fn write(&self, frame: &[u8], now_or_later: Condition) -> Result<(), SendError> {
        self.check(frame)?;
        let written = self.in_turn(|ring| {
            self.put(ring, frame)?;
            self.written(1, frame.len() as u64);
            if now_or_later == Condition::Now || self.unpublished.load(Relaxed) >= BATCH {
                self.submit(ring);
            }
            Ok(())
        });
        written.unwrap_or_else(|| self.enqueue(frame))
    }

    /// Checks whether a frame can be sent at all, apart from room.
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

    /// Copies a frame into the ring, without publishing or counting it.
    fn put(&self, ring: &mut Ring, frame: &[u8]) -> Result<(), SendError> {
        let buffer = self.buffer(ring).ok_or(SendError::RingFull)?;
        // SAFETY: the buffer was taken off the free list above, and is in no ring.
        unsafe { self.pool.write(buffer, frame) }
        ring.put(buffer, 0, frame.len() as u32);
        Ok(())
    }

    /// Takes a free buffer, if the ring has room for a frame.
    fn buffer(&self, ring: &mut Ring) -> Option<u32> {
        if ring.free.is_empty() || ring.transmit.room(1) == 0 {
            self.make_room(ring);
        }
        if ring.transmit.room(1) == 0 {
            return None;
        }
        ring.free.pop_front()
    }

    /// Leaves a copy of a frame to the thread that has the ring.
    fn enqueue(&self, frame: &[u8]) -> Result<(), SendError> {
        let mut copy = self.pool.take().ok_or(SendError::RingFull)?;
        copy.buffer()[..frame.len()].copy_from_slice(frame);
        copy.set_len(frame.len());
        if !self.queued.push(copy) {
            return Err(SendError::RingFull);
        }
        self.send_queued();
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Now,
    Later,
}

impl Ring {
    /// Writes a descriptor of the frame at `start` in `buffer` into the ring, which must have room.
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
        self.write(frame, Condition::Now).inspect_err(|_| add(&self.counters.tx_dropped, 1))
    }

    /// Takes the lock and calls the kernel once for all frames.
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
            self.submit(ring);
            refused
        });
        let all: Result<(), SendError> = written.unwrap_or_else(|| {
            frames.iter().try_for_each(|frame| {
                self.check(frame)?;
                self.enqueue(frame)?;
                sent += 1;
                Ok(())
            })
        });
        if all.is_err() {
            add(&self.counters.tx_dropped, 1);
        }
        sent as usize
    }

    /// Sends frames that are in the shared memory in place.
    fn send_owned(&self, frames: &mut Vec<Frame>, now: Ns) -> usize {
        let written = self.in_turn(|ring| {
            let wanted = frames.len() as u32;
            if ring.transmit.room(wanted) < wanted {
                self.submit(ring);
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
            self.submit(ring);
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
        self.write(frame, Condition::Later).inspect_err(|_| add(&self.counters.tx_dropped, 1))
    }

    fn flush(&self) {
        if self.unpublished.load(Relaxed) > 0 {
            self.with_ring(|ring| self.submit(ring));
        }
    }

    /// A thread that has the ring counts as one frame.
    fn in_flight(&self) -> usize {
        self.poll();
        let in_ring = self.with_ring(|ring| ring.out.iter().filter(|out| **out).count());
        in_ring.unwrap_or(1) + self.queued.len()
    }
}

#[cfg(test)]
mod tests;
