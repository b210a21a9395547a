//! An epoll's ready list: the sockets that have something to report, each listed once.
//!
//! A thread that makes a socket ready lists it, and then wakes the waiting thread ([`ReadyList::announce`]). The
//! waiting thread goes through the list ([`ReadyList::look`]), and sleeps if that reported nothing.
//! Level-triggered: a socket that is still readable after the look goes back to the tail of the list.
//!
//! How a thread waits is not part of this file. Modelled by `tests/loom`.

use std::sync::Arc;

use crate::sync::{ArrayQueue, AtomicBool, AtomicU64, Ordering};

/// Slots beyond the number of watches, so that a push never meets a slot that is being read.
const SLACK: usize = 64;

/// An event: the socket with that token is readable (or was closed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The token given to [`Epoll::add`](crate::Epoll::add).
    pub token: u64,
}

/// A source of events that can be watched.
pub(crate) trait Source {
    /// Whether a receive would find something.
    fn readable(&self) -> bool;

    /// Whether it is closed: reported once, as nothing more will come.
    fn is_closed(&self) -> bool;
}

/// One watched source.
#[derive(Debug)]
pub(crate) struct Watch<S> {
    pub(crate) source: Arc<S>,
    token: u64,
    /// Whether it is on the list, or about to be.
    listed: AtomicBool,
    /// The number of the last wait that reported it.
    reported: AtomicU64,
    /// Whether it is no longer reported.
    removed: AtomicBool,
    /// Whether it was reported as closed.
    closed_reported: AtomicBool,
}

impl<S: Source> Watch<S> {
    pub(crate) fn new(source: Arc<S>, token: u64) -> Arc<Watch<S>> {
        Arc::new(Watch {
            source,
            token,
            listed: AtomicBool::new(false),
            reported: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            closed_reported: AtomicBool::new(false),
        })
    }

    /// Stops reporting the source here, because another watch has replaced this one. Called from any thread.
    pub(crate) fn replaced(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Stops reporting the source if it was reported as closed, or replaced, and is not on the list. Returns
    /// whether it did. Not to be called during a look.
    pub(crate) fn forget(&self) -> bool {
        let over =
            self.closed_reported.load(Ordering::Relaxed) || self.removed.load(Ordering::Relaxed);
        let forgotten = over && !self.listed.load(Ordering::Relaxed);
        if forgotten {
            self.removed.store(true, Ordering::Release);
        }
        forgotten
    }
}

/// The list, for any number of threads that announce and one that looks.
#[derive(Debug)]
pub(crate) struct ReadyList<S>(ArrayQueue<Arc<Watch<S>>>);

impl<S: Source> ReadyList<S> {
    /// A list for at most `watches` watches at a time.
    pub(crate) fn new(watches: usize) -> ReadyList<S> {
        ReadyList(ArrayQueue::new(watches + SLACK))
    }

    fn list(&self, watch: &Arc<Watch<S>>) {
        if !watch.listed.swap(true, Ordering::Release) {
            self.push(Arc::clone(watch));
        }
    }

    /// Lists a source that has something to report, and then wakes the waiting thread. In this order: woken before,
    /// that thread would find the list empty and sleep.
    pub(crate) fn announce(&self, watch: &Arc<Watch<S>>, wake: impl FnOnce()) {
        self.list(watch);
        wake();
    }

    /// Goes through the list once at most, and adds an event for each source that has something to report, up to
    /// `max` events in all. `wait` is the number of the current wait, from 1: a source is reported once per wait.
    pub(crate) fn look(&self, wait: u64, events: &mut Vec<Event>, max: usize) {
        for _ in 0..self.0.len() {
            if events.len() >= max {
                return;
            }
            let Some(watch) = self.0.pop() else { return };
            // The flag is cleared before the look: an announcement in between lists the watch again. A swap, not a
            // store: the look must see everything that came before an announcement that found the flag set and did
            // not list.
            watch.listed.swap(false, Ordering::Acquire);
            if watch.removed.load(Ordering::Acquire) {
                continue;
            }
            if watch.source.readable() {
                self.list(&watch);
            } else if watch.source.is_closed() {
                // A concurrent add and close may both list it.
                if watch.closed_reported.swap(true, Ordering::Relaxed) {
                    continue;
                }
            } else {
                continue;
            }
            if watch.reported.swap(wait, Ordering::Relaxed) != wait {
                events.push(Event { token: watch.token });
            }
        }
    }

    /// Stops reporting a source, and takes it off the list, so that the list never holds more than is watched. Not
    /// to be called during a look.
    pub(crate) fn remove(&self, watch: &Watch<S>) {
        watch.removed.store(true, Ordering::Release);
        for _ in 0..self.0.len() {
            match self.0.pop() {
                Some(watch) if !watch.removed.load(Ordering::Acquire) => self.push(watch),
                Some(_) => {}
                None => return,
            }
        }
    }

    fn push(&self, watch: Arc<Watch<S>>) {
        // There is a slot for each watch, and a watch is listed once.
        let pushed = self.0.push(watch);
        debug_assert!(pushed.is_ok(), "more watches than slots");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Debug, Default)]
    struct Socket {
        frames: Cell<u32>,
        closed: Cell<bool>,
        looks: Cell<u32>,
    }

    impl Source for Socket {
        fn readable(&self) -> bool {
            self.looks.set(self.looks.get() + 1);
            self.frames.get() > 0
        }

        fn is_closed(&self) -> bool {
            self.closed.get()
        }
    }

    /// A list with that many sockets, tokens from 0, each with a frame and listed.
    fn listed(sockets: u64) -> (ReadyList<Socket>, Vec<Arc<Watch<Socket>>>) {
        let list = ReadyList::new(4);
        let watches: Vec<_> =
            (0..sockets).map(|token| Watch::new(Arc::<Socket>::default(), token)).collect();
        for watch in &watches {
            watch.source.frames.set(1);
            list.list(watch);
        }
        (list, watches)
    }

    /// The tokens that one look of wait number `wait` reports.
    fn look(list: &ReadyList<Socket>, wait: u64, max: usize) -> Vec<u64> {
        let mut events = Vec::new();
        list.look(wait, &mut events, max);
        events.iter().map(|event| event.token).collect()
    }

    #[test]
    fn a_socket_is_reported_until_it_is_drained() {
        let (list, watches) = listed(2);
        assert_eq!(look(&list, 1, 8), [0, 1]);
        assert_eq!(look(&list, 2, 8), [0, 1]);
        watches[0].source.frames.set(0);
        assert_eq!(look(&list, 3, 8), [1]);
        watches[1].source.frames.set(0);
        assert_eq!(look(&list, 4, 8), [0; 0]);
        list.announce(&watches[0], || watches[0].source.frames.set(1));
        assert_eq!(look(&list, 5, 8), [0]);
    }

    #[test]
    fn several_looks_of_one_wait_report_it_once() {
        let (list, _watches) = listed(2);
        let mut events = Vec::new();
        for _ in 0..3 {
            list.look(1, &mut events, 8);
        }
        assert_eq!(events, [Event { token: 0 }, Event { token: 1 }]);
    }

    #[test]
    fn where_fewer_are_asked_for_each_has_its_turn() {
        let (list, watches) = listed(3);
        assert_eq!(look(&list, 1, 2), [0, 1]);
        assert_eq!(watches[2].source.looks.get(), 0, "a look beyond what was asked for");
        assert_eq!(look(&list, 2, 2), [2, 0]);
        assert_eq!(look(&list, 3, 1), [1]);
        assert_eq!(look(&list, 4, 0), [0; 0]);
        assert_eq!(look(&list, 5, 3), [2, 0, 1]);
    }

    #[test]
    fn a_look_goes_round_once() {
        let (list, watches) = listed(1);
        assert_eq!(look(&list, 1, 8), [0]);
        assert_eq!(watches[0].source.looks.get(), 1);
    }

    #[test]
    fn one_that_is_closed_is_reported_once() {
        let (list, watches) = listed(1);
        watches[0].source.frames.set(0);
        watches[0].source.closed.set(true);
        assert!(!watches[0].forget(), "it is to be reported");
        assert_eq!(look(&list, 1, 8), [0]);
        assert_eq!(look(&list, 2, 8), [0; 0]);
    }

    #[test]
    fn one_that_was_reported_as_closed_is_forgotten_unless_it_is_listed_again() {
        let (list, watches) = listed(2);
        watches.iter().for_each(|watch| watch.source.frames.set(0));
        watches[0].source.closed.set(true);
        assert_eq!(look(&list, 1, 8), [0]);
        assert!(!watches[1].forget(), "it is open");
        list.list(&watches[0]);
        assert!(!watches[0].forget());
        assert_eq!(look(&list, 2, 8), [0; 0], "once is enough");
        assert!(watches[0].forget());
        // An announcement that was under way.
        list.list(&watches[0]);
        assert_eq!(look(&list, 3, 8), [0; 0]);
    }

    #[test]
    fn one_that_was_replaced_is_reported_no_more_and_forgotten_once_it_is_off_the_list() {
        let (list, watches) = listed(2);
        watches[0].replaced();
        assert!(!watches[0].forget(), "its place on the list is still its own");
        assert_eq!(look(&list, 1, 8), [1]);
        assert!(watches[0].forget() && !watches[1].forget());
    }

    #[test]
    fn one_that_was_removed_is_reported_no_more_and_the_others_are() {
        let (list, watches) = listed(3);
        list.remove(&watches[1]);
        assert_eq!(list.0.len(), 2, "it is off the list");
        // An announcement that was under way.
        watches[1].listed.store(false, Ordering::Relaxed);
        list.list(&watches[1]);
        assert_eq!(look(&list, 1, 8), [0, 2]);
        assert_eq!(list.0.len(), 2, "it is off the list again");
    }
}
