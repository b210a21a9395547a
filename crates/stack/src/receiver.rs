//! A socket's receive buffer, between the packet path and the application.
//!
//! Any number of queues add frames without a lock; the application removes them. The buffer holds a fixed number of
//! frames; a frame that does not fit is dropped, and counted both here and in the stack.
//!
//! # Full
//!
//! For *feedback* (Mogul and Ramakrishnan, 1996) a receiver has a state with hysteresis: it becomes **full** when a
//! batch leaves it filled to 75 % or more, and stops being full when the application has drained it to 25 % or
//! less. The thread that ends the state notifies every queue that has fed the receiver, once, by
//! [`Listener::drained`]. Two races are closed by the same rule: write your own word first, then read the other's;
//! all accesses are sequentially consistent.
//!
//! - *The application drains while a queue finds the buffer filled.* The queue sets the flag and reads the level
//!   again; the application removes a frame and reads the flag. At least one of them sees the other's write and
//!   clears the flag with a swap, so that exactly one notifies.
//! - *The application ends the state while a queue decides that all its receivers are full.* The queue sets its bit
//!   in the set of queues to notify and reads the flag again; the application clears the flag and takes the set.
//!   Either the queue sees the flag cleared, or it is notified.
//!
//! A queue can therefore be notified before [`Input::deliver`](crate::Input::deliver) has returned `Full`. Code
//! that parks queues must remember such a call and not park.
//!
//! # Why a push checks the level first
//!
//! The underlying queue spins when a push meets a slot whose frame is being removed at that moment. A real-time
//! interrupt thread that has preempted the application at this point, on the same CPU, would spin for ever. So the
//! queue has [`SLACK`] more slots than the buffer has frames, and a push beyond the buffer's capacity is refused
//! before it reaches such a slot. One thread at a time should receive from a socket. Several are safe, but if one
//! of them is preempted in the middle of a pop while the others remove [`SLACK`] frames, the guarantee is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use crossbeam_queue::ArrayQueue;
use napkin_nic::Frame;

use crate::FrameOutcome;
use crate::queues::{Entry, Queues};

/// Maximum size of a receive buffer, in frames (2 GiB of memory).
pub const CAPACITY_LIMIT: usize = 1 << 20;

/// Slots between the newest frame of a full buffer and the oldest frame that may still be in the middle of a pop.
pub const SLACK: usize = 64;

/// Notifications of a receiver. Called on the packet path, or from within a call of the application's: an
/// implementation must neither block nor call back into the [`Input`](crate::Input) that calls it.
pub trait Listener: Send + Sync {
    /// This queue added frames. Called once after every batch that added at least one, so a waiter may sleep if it
    /// finds the socket empty, registers itself, and finds it empty again. Also called once when the socket closes.
    fn readable(&self, napi_id: u32);

    /// The receiver is no longer full, and this queue had fed it. The [module](self) says why the call may come
    /// early.
    fn drained(&self, napi_id: u32);

    /// Another listener has replaced this one. A concurrent call may still arrive.
    fn replaced(&self) {}
}

/// One frame in a receive buffer, with the byte at which its payload ends.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) frame: Frame,
    pub(crate) end: usize,
}

/// A socket's receive buffer.
pub struct Receiver {
    arrivals: ArrayQueue<Arrival>,
    capacity: usize,
    high: usize,
    low: usize,
    /// The receiver's index in every queue's own table; unique among open receivers.
    slot: usize,
    full: AtomicBool,
    closed: AtomicBool,
    /// The queues to notify when the receiver stops being full.
    feeders: AtomicU64,
    incoming: AtomicU32,
    dropped: AtomicU64,
    listener: ArcSwapOption<Arc<dyn Listener>>,
    queues: Arc<Queues>,
}

impl Receiver {
    /// A buffer for `capacity` frames, which must be 1 to [`CAPACITY_LIMIT`].
    pub(crate) fn new(capacity: usize, slot: usize, queues: Arc<Queues>) -> Receiver {
        Receiver {
            arrivals: ArrayQueue::new(capacity + SLACK),
            capacity,
            high: (capacity * 3).div_ceil(4),
            low: capacity / 4,
            slot,
            full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            feeders: AtomicU64::new(0),
            incoming: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            listener: ArcSwapOption::empty(),
            queues,
        }
    }

    /// Number of waiting frames.
    pub fn level(&self) -> usize {
        self.arrivals.len()
    }

    /// Maximum number of waiting frames.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a frame is waiting.
    pub fn readable(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Whether the receiver is full in the sense of *feedback*: filled to 75 % and not drained to 25 % since.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    /// Whether the socket is closed. Frames that were waiting have been released.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Frames dropped because the buffer was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The NAPI id of the queue that delivered last (`SO_INCOMING_NAPI_ID`); 0 before the first frame.
    pub fn incoming_napi_id(&self) -> u32 {
        self.incoming.load(Ordering::Relaxed)
    }

    /// Sets the listener; a previous one is told that it was replaced. Frames that are already waiting are not
    /// announced again: check [`readable`](Self::readable) afterwards.
    pub fn set_listener(&self, listener: Arc<dyn Listener>) {
        if let Some(before) = self.listener.swap(Some(Arc::new(listener))) {
            before.replaced();
        }
    }

    /// Whether a listener is set.
    pub fn has_listener(&self) -> bool {
        self.listener.load().is_some()
    }

    /// Removes this listener; one that has replaced it stays.
    pub fn clear_listener(&self, listener: &Arc<dyn Listener>) {
        let present = self.listener.load();
        if present.as_ref().is_some_and(|it| Arc::ptr_eq(it.as_ref(), listener)) {
            self.listener.compare_and_swap(&present, None);
        }
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Adds a frame, or returns why it was refused.
    pub(crate) fn push(&self, arrival: Arrival) -> FrameOutcome {
        if self.is_closed() {
            return FrameOutcome::NoPort;
        }
        if self.arrivals.len() >= self.capacity || self.arrivals.push(arrival).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return FrameOutcome::SocketFull;
        }
        FrameOutcome::Delivered
    }

    /// Removes the oldest frame. Ends the full state if the level has fallen to 25 %.
    pub(crate) fn pop(&self) -> Option<Arrival> {
        let arrival = self.arrivals.pop()?;
        if self.full.load(Ordering::SeqCst) && self.level() <= self.low {
            self.end_full();
        }
        Some(arrival)
    }

    /// Ends a batch in which `queue` had frames for this receiver; `added` tells whether at least one fitted.
    /// Returns whether the receiver is full.
    pub(crate) fn end_batch(&self, queue: &Entry, added: bool) -> bool {
        self.note_feeder(queue);
        self.update_full(|| self.level());
        if added {
            if self.incoming.load(Ordering::Relaxed) != queue.napi_id {
                self.incoming.store(queue.napi_id, Ordering::Relaxed);
            }
            if let Some(listener) = self.listener.load().as_ref() {
                listener.readable(queue.napi_id);
            }
        }
        self.is_full()
    }

    /// Makes the receiver full if it is filled to 75 %. (`level` is an argument so that a test can act between the
    /// two readings.)
    fn update_full(&self, level: impl Fn() -> usize) {
        if self.is_closed() || self.is_full() || level() < self.high {
            return;
        }
        self.full.store(true, Ordering::SeqCst);
        // The application may have drained the buffer after the first reading, before the flag was visible. Another
        // queue may have seen the flag since, so clearing it notifies all queues.
        if level() <= self.low {
            self.end_full();
        }
    }

    /// Whether the receiver is full; if so, the queue will be notified when that ends.
    pub(crate) fn is_full_for(&self, queue: &Entry) -> bool {
        if !self.is_full() {
            return false;
        }
        self.note_feeder(queue);
        self.is_full()
    }

    fn note_feeder(&self, queue: &Entry) {
        let bit = queue.bit();
        if self.feeders.load(Ordering::SeqCst) & bit == 0 {
            self.feeders.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Ends the full state, unless another thread has, and notifies the queues in the set.
    fn end_full(&self) {
        if !self.full.swap(false, Ordering::SeqCst) {
            return;
        }
        let feeders = self.feeders.swap(0, Ordering::SeqCst);
        if let Some(listener) = self.listener.load().as_ref() {
            self.queues.each_of(feeders, |napi_id| listener.drained(napi_id));
        }
    }

    /// Refuses frames from now on.
    pub(crate) fn refuse(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Closes the receiver: waiting frames return to their pools, and the listener is notified. The caller has
    /// called [`refuse`](Self::refuse) and removed the receiver from the tables. A concurrent push may leave its
    /// frame here until the last queue releases the receiver.
    pub(crate) fn close(&self) {
        self.refuse();
        while self.arrivals.pop().is_some() {}
        self.end_full();
        if let Some(listener) = self.listener.load().as_ref() {
            listener.readable(self.incoming_napi_id());
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("level", &self.level())
            .field("capacity", &self.capacity)
            .field("full", &self.is_full())
            .field("closed", &self.is_closed())
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Mutex;

    use napkin_nic::{Pool, SendError, Transmitter};
    use napkin_policy::Ns;

    use super::*;

    struct Nowhere;

    impl Transmitter for Nowhere {
        fn send(&self, _: &[u8], _: Ns) -> Result<(), SendError> {
            Ok(())
        }
    }

    #[derive(Default)]
    struct Recorder(Mutex<Vec<u32>>);

    /// What [`Recorder`] records when it is replaced.
    const REPLACED: u32 = 0;

    impl Listener for Recorder {
        fn readable(&self, _: u32) {}

        fn drained(&self, napi_id: u32) {
            self.0.lock().unwrap().push(napi_id);
        }

        fn replaced(&self) {
            self.0.lock().unwrap().push(REPLACED);
        }
    }

    /// A receiver for 4 frames with two queues, and its listener.
    fn receiver() -> (Receiver, [Arc<Entry>; 2], Arc<Recorder>) {
        let queues = Arc::new(Queues::default());
        let entries = [1, 2].map(|napi_id| queues.register(napi_id, Arc::new(Nowhere)));
        let (receiver, recorder) = (Receiver::new(4, 0, queues), Arc::new(Recorder::default()));
        receiver.set_listener(recorder.clone());
        (receiver, entries, recorder)
    }

    fn push(receiver: &Receiver, pool: &Pool, count: usize) {
        for _ in 0..count {
            let frame = pool.take().expect("the pool is large enough");
            assert_eq!(receiver.push(Arrival { frame, end: 0 }), FrameOutcome::Delivered);
        }
    }

    fn drain(receiver: &Receiver) {
        while receiver.pop().is_some() {}
    }

    #[test]
    fn who_leaves_is_told_no_more_and_a_successor_stays() {
        let (receiver, _, first) = receiver();
        let second = Arc::new(Recorder::default());
        let listeners: [Arc<dyn Listener>; 2] = [first.clone(), second.clone()];
        receiver.clear_listener(&listeners[1]);
        assert_eq!(Arc::strong_count(&first), 3, "the other one leaves, who was not told");
        receiver.set_listener(listeners[1].clone());
        receiver.clear_listener(&listeners[0]);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (2, 3));
        assert!(receiver.has_listener());
        receiver.clear_listener(&listeners[1]);
        assert!(!receiver.has_listener());
        assert_eq!(Arc::strong_count(&second), 2, "nobody holds it any more");
        let notified = [first, second].map(|it| it.0.lock().unwrap().clone());
        assert_eq!(notified, [vec![REPLACED], vec![]], "whoever leaves is not replaced");
    }

    #[test]
    fn the_application_drains_it_just_before_it_becomes_full() {
        let (receiver, _, recorder) = receiver();
        let pool = Pool::new(4);
        push(&receiver, &pool, 4);
        let reading = Cell::new(0);
        receiver.update_full(|| {
            let level = receiver.level();
            if reading.replace(reading.get() + 1) == 0 {
                drain(&receiver);
            }
            level
        });
        // There is nothing left to drain, so it must not stay full.
        assert!(!receiver.is_full());
        assert!(recorder.0.lock().unwrap().is_empty());
    }

    #[test]
    fn whoever_believed_a_flag_that_is_taken_back_is_told() {
        let (receiver, [_, other], recorder) = receiver();
        let pool = Pool::new(4);
        push(&receiver, &pool, 4);
        let reading = Cell::new(0);
        receiver.update_full(|| {
            let level = receiver.level();
            match reading.replace(reading.get() + 1) {
                0 => drain(&receiver),
                _ => assert!(receiver.is_full_for(&other)),
            }
            level
        });
        assert!(!receiver.is_full_for(&other));
        assert_eq!(*recorder.0.lock().unwrap(), [2]);
    }

    #[test]
    fn it_closes_just_before_it_becomes_full() {
        let (receiver, [first, _], recorder) = receiver();
        let pool = Pool::new(4);
        push(&receiver, &pool, 4);
        let reading = Cell::new(0);
        receiver.update_full(|| {
            let level = receiver.level();
            if reading.replace(reading.get() + 1) == 0 {
                receiver.close();
            }
            level
        });
        assert!(!receiver.is_full());
        assert!(!receiver.end_batch(&first, false));
        assert!(recorder.0.lock().unwrap().is_empty());
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn one_who_is_drained_twice_tells_twice() {
        let (receiver, [first, second], recorder) = receiver();
        let pool = Pool::new(4);
        for expected in [[1, 2], [1, 2]] {
            push(&receiver, &pool, 3);
            assert!(receiver.end_batch(&first, true));
            assert!(receiver.end_batch(&second, false));
            drain(&receiver);
            assert_eq!(std::mem::take(&mut *recorder.0.lock().unwrap()), expected);
        }
    }
}
