//! `Epoll`: one thread, many sockets, with the kernel's busy polling and suspension.
//!
//! Level-triggered, as `epoll` is by default: a socket stays ready until it is drained. The rules of a wait are the
//! core's ([`EpollWait`]), and the ready list is in [`ready`](crate::ready); this file connects them to the sockets
//! and to the waiting thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use napkin_core::{CpuId, EpollContext, EpollWait, RaisedFrom};
use napkin_policy::EpollPolicy;
use napkin_stack::{Listener, Receiver, Socket};

use crate::Engine;
use crate::drive::{self, Hooks};
use crate::ready::{Event, ReadyList, Source, Watch};
use crate::wait_error::{WATCHES, WaitError, check_epoll};
use crate::waiter::{Waiter, Waker};

/// Number of watches below which closed sockets are not searched for.
const MIN_SEARCH: usize = 64;

/// State that the sockets' listeners share with the waiting thread.
#[derive(Debug)]
struct Ready {
    context: EpollContext,
    list: ReadyList<Receiver>,
    waiter: Arc<Waiter>,
    /// The number of waits so far.
    waits: AtomicU64,
}

impl Source for Receiver {
    fn readable(&self) -> bool {
        Receiver::readable(self)
    }

    fn is_closed(&self) -> bool {
        Receiver::is_closed(self)
    }
}

impl Ready {
    /// Records that a queue has frames for a socket here, or that a socket which no queue has fed closes (0).
    fn follow(&self, napi_id: u32) {
        match self.waiter.shared().instance_of(napi_id) {
            Some(id) => self.context.follow(id),
            None => self.context.no_delivery(),
        }
    }
}

/// The listener that reports a socket to its epoll.
struct Watcher {
    ready: Arc<Ready>,
    watch: Arc<Watch<Receiver>>,
}

impl Listener for Watcher {
    fn readable(&self, napi_id: u32) {
        self.ready.follow(napi_id);
        self.ready.list.announce(&self.watch, || self.ready.waiter.wake());
    }

    fn drained(&self, napi_id: u32) {
        self.ready.waiter.drained(napi_id);
    }

    fn replaced(&self) {
        self.watch.replaced();
    }
}

/// A watched socket, and its listener.
type Watched = (Arc<Watch<Receiver>>, Arc<dyn Listener>);

/// An epoll context: sockets in, events out, for one waiting thread at a time.
///
/// A thread should have one such handle: with a second one (an `Epoll` or a [`Blocking`](crate::Blocking)) it
/// counts twice, and while it sleeps in one it counts as busy in the application for the other.
///
/// Dropping it ends its suspension at once.
pub struct Epoll {
    ready: Arc<Ready>,
    watches: Vec<Watched>,
    /// Number of watches at which closed sockets are searched for.
    search_at: usize,
    spin: bool,
}

impl Epoll {
    /// An epoll context for a thread that runs on `cpu` (the engine's own number), with the
    /// parameters given.
    ///
    /// # Errors
    /// Parameters that `EPIOCSPARAMS` would refuse.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn new(engine: &Engine, cpu: CpuId, params: EpollPolicy) -> Result<Epoll, WaitError> {
        check_epoll(&params)?;
        let ready = Arc::new(Ready {
            context: EpollContext::new(params, 0),
            list: ReadyList::new(WATCHES),
            waiter: engine.waiters().add(cpu),
            waits: AtomicU64::new(0),
        });
        Ok(Epoll { ready, watches: Vec::new(), search_at: MIN_SEARCH, spin: false })
    }

    /// Changes the parameters (`EPIOCSPARAMS`).
    ///
    /// # Errors
    /// Parameters that it would refuse.
    pub fn set_params(&self, params: EpollPolicy) -> Result<(), WaitError> {
        check_epoll(&params)?;
        self.ready.context.set(params);
        Ok(())
    }

    /// The parameters (`EPIOCGPARAMS`).
    pub fn params(&self) -> EpollPolicy {
        self.ready.context.params()
    }

    /// Sets whether a wait returns where it would sleep, after its busy poll (`fullbusy`).
    pub fn set_spin(&mut self, spin: bool) {
        self.spin = spin;
    }

    /// Watches a socket. An event that is pending already, its close included, is reported by the next wait. A
    /// socket has one watcher at a time, an epoll (under one token) or a [`Blocking`](crate::Blocking): the last
    /// one wins. Other epolls no longer report it; a `Blocking` is no longer woken for it, and sees only what is
    /// there when it looks.
    ///
    /// A socket that was reported as closed, or that another watches now, needs no [`remove`](Epoll::remove): it is
    /// dropped here, at the limit at the latest, and before whenever there are twice as many watches as after the
    /// last search.
    ///
    /// # Errors
    /// With [`WATCHES`] sockets already.
    pub fn add(&mut self, socket: &impl Socket, token: u64) -> Result<(), WaitError> {
        // A socket without a listener has no watch that still reports it.
        if socket.receiver().has_listener() {
            self.remove(socket);
        }
        if self.watches.len() >= self.search_at {
            self.remove_closed();
        }
        if self.watches.len() >= WATCHES {
            return Err(WaitError::TooMany);
        }
        let receiver = Arc::clone(socket.receiver());
        let watch = Watch::new(Arc::clone(&receiver), token);
        let watcher = Watcher { ready: Arc::clone(&self.ready), watch: Arc::clone(&watch) };
        let listener: Arc<dyn Listener> = Arc::new(watcher);
        self.watches.push((Arc::clone(&watch), Arc::clone(&listener)));
        receiver.set_listener(listener);
        self.ready.follow(socket.incoming_napi_id());
        if receiver.readable() || receiver.is_closed() {
            // No thread waits: this handle is not shared.
            self.ready.list.announce(&watch, || {});
        }
        Ok(())
    }

    /// Stops watching the sockets that were reported as closed, and those that others watch now.
    fn remove_closed(&mut self) {
        self.watches.retain(|(watch, listener)| {
            let over = watch.forget();
            if over {
                watch.source.clear_listener(listener);
            }
            !over
        });
        self.search_at = (2 * self.watches.len()).clamp(MIN_SEARCH, WATCHES);
    }

    /// Stops watching a socket.
    pub fn remove(&mut self, socket: &impl Socket) {
        self.watches.retain(|(watch, listener)| {
            let it = Arc::ptr_eq(&watch.source, socket.receiver());
            if it {
                watch.source.clear_listener(listener);
                self.ready.list.remove(watch);
            }
            !it
        });
    }

    /// Ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        Waker::of(&self.ready.waiter)
    }

    /// Waits until a socket is readable and fills `events` with at most `max` of them; nothing
    /// if a [`Waker`] ended it, or after `timeout` (`None`: for ever; zero: looks, and never busy polls).
    ///
    /// # Errors
    /// If another thread waits here, or the engine was stopped.
    pub fn wait(
        &self,
        events: &mut Vec<Event>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        self.wait_or_waker(events, max, timeout).map(drop)
    }

    /// The same; returns whether a waker ended it.
    pub(crate) fn wait_or_waker(
        &self,
        events: &mut Vec<Event>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<bool, WaitError> {
        events.clear();
        let waiter = &self.ready.waiter;
        let timeout = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let number = self.ready.waits.fetch_add(1, Ordering::Relaxed) + 1;
        let pass = EpollWait::new(&waiter.shared().host, &self.ready.context, timeout, self.spin);
        let mut look = Look { ready: &self.ready, events, max: max.max(1), number, woken: false };
        waiter.drive(pass, &mut look)?;
        Ok(look.woken)
    }
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll").field("watches", &self.watches.len()).finish_non_exhaustive()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for (watch, listener) in &self.watches {
            watch.source.clear_listener(listener);
        }
        let shared = self.ready.waiter.shared();
        // Not run on this thread, which may be unwinding.
        if let Some(op) = self.ready.context.close(&shared.host, RaisedFrom::Thread) {
            drive::carry_out(shared, op);
        }
    }
}

struct Look<'a> {
    ready: &'a Ready,
    events: &'a mut Vec<Event>,
    max: usize,
    /// The wait's number, from 1.
    number: u64,
    /// Whether a waker has ended it.
    woken: bool,
}

impl Hooks for Look<'_> {
    fn look(&mut self) -> u32 {
        self.ready.list.look(self.number, self.events, self.max);
        if self.ready.waiter.take_waker() {
            self.woken = true;
            self.ready.context.no_delivery();
        }
        self.events.len() as u32 + u32::from(self.woken)
    }
}
