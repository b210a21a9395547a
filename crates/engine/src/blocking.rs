//! One socket with blocking receive calls that may busy poll (`SO_BUSY_POLL` and the related options).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use napkin_core::{CpuId, SocketWait};
use napkin_policy::{ApplicationPolicy, SocketPoller};
use napkin_stack::{Listener, Receiver, Socket};

use crate::Engine;
use crate::drive::Hooks;
use crate::wait_error::{WaitError, check_socket};
use crate::waiter::{Waiter, Waker};

/// One socket's blocking receive calls, for one waiting thread at a time. A thread should have one such handle, as
/// for an [`Epoll`](crate::Epoll).
///
/// A thread that polls separately (2025, "separate") has a [`Poller`] of the same socket's queue: see
/// [`Blocking::poller`].
pub struct Blocking {
    receiver: Arc<Receiver>,
    listener: Arc<dyn Listener>,
    poller: Poller,
}

struct BlockingListener {
    waiter: Arc<Waiter>,
    napi: Arc<AtomicU32>,
}

impl Listener for BlockingListener {
    fn readable(&self, napi_id: u32) {
        if self.napi.load(Ordering::Relaxed) != napi_id {
            self.napi.store(napi_id, Ordering::Relaxed);
        }
        self.waiter.wake();
    }

    fn drained(&self, napi_id: u32) {
        self.waiter.drained(napi_id);
    }
}

impl Blocking {
    /// A handle to wait for a socket, in a thread that runs on `cpu` (the engine's own number). Of the policy only
    /// the socket's parts apply. A socket has one listener: the last one wins.
    ///
    /// # Errors
    /// Options that need a privilege which this process does not have.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn new(
        engine: &Engine,
        cpu: CpuId,
        socket: &impl Socket,
        policy: ApplicationPolicy,
    ) -> Result<Blocking, WaitError> {
        check_socket(&policy)?;
        let napi = Arc::new(AtomicU32::new(socket.incoming_napi_id()));
        let poller = Poller { waiter: engine.waiters().add(cpu), policy, napi };
        let listener =
            BlockingListener { waiter: Arc::clone(&poller.waiter), napi: Arc::clone(&poller.napi) };
        let (receiver, listener) = (Arc::clone(socket.receiver()), Arc::new(listener));
        receiver.set_listener(Arc::clone(&listener) as Arc<dyn Listener>);
        Ok(Blocking { receiver, listener, poller })
    }

    /// Waits until the socket is readable or closed, or a [`Waker`] ends it: `false` after `timeout` (`None`: for
    /// ever; zero: looks, and busy polls once if the socket has busy polling). With [`SocketPoller::Separate`] it
    /// never busy polls, but leaves that to its [`poller`](Self::poller).
    ///
    /// # Errors
    /// If another thread waits here, or the engine was stopped.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, WaitError> {
        let ready = || self.receiver.readable() || self.receiver.is_closed();
        if ready() {
            return Ok(true);
        }
        let mut policy = self.poller.policy;
        if policy.socket_poller == SocketPoller::Separate {
            // A session of this thread would own the queue, and keep out the separate poller.
            policy.socket_busy_poll_usecs = 0;
        }
        let woken = Cell::new(false);
        let look = Look(&|| {
            woken.set(woken.get() || self.poller.waiter.take_waker());
            u32::from(woken.get() || ready())
        });
        self.poller.wait(policy, timeout, look)
    }

    /// A handle that ends a wait from another thread, as a signal would.
    pub fn waker(&self) -> Waker {
        Waker::of(&self.poller.waiter)
    }

    /// A handle for another thread to poll the queue that feeds this socket: it receives nothing itself, its calls
    /// only poll (2025: a thread that does nothing but `recvfrom`).
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn poller(&self, cpu: CpuId) -> Poller {
        let Poller { waiter, policy, napi } = &self.poller;
        Poller { waiter: waiter.waiters().add(cpu), policy: *policy, napi: Arc::clone(napi) }
    }
}

impl std::fmt::Debug for Blocking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocking").field("policy", &self.poller.policy).finish_non_exhaustive()
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // Otherwise the queue would keep the listener, and the listener the engine.
        self.receiver.clear_listener(&self.listener);
    }
}

/// Polls the queue of another thread's socket.
#[derive(Debug)]
pub struct Poller {
    waiter: Arc<Waiter>,
    policy: ApplicationPolicy,
    napi: Arc<AtomicU32>,
}

impl Poller {
    /// One call: a single poll, if the queue is known yet.
    ///
    /// # Errors
    /// If the engine was stopped.
    pub fn poll(&self) -> Result<(), WaitError> {
        let policy = ApplicationPolicy {
            // The call needs busy polling to be on; without a timeout it is one pass anyway.
            socket_busy_poll_usecs: self.policy.socket_busy_poll_usecs.max(1),
            ..self.policy
        };
        self.wait(policy, Some(Duration::ZERO), Look(&|| 0)).map(drop)
    }

    fn wait(
        &self,
        policy: ApplicationPolicy,
        timeout: Option<Duration>,
        mut look: Look<'_>,
    ) -> Result<bool, WaitError> {
        let shared = self.waiter.shared();
        let timeout = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let id = shared.instance_of(self.napi.load(Ordering::Relaxed));
        let pass = SocketWait::new(&shared.host, policy, id, timeout);
        self.waiter.drive(pass, &mut look).map(|pass| pass.frames() > 0)
    }
}

struct Look<'a>(&'a dyn Fn() -> u32);

impl Hooks for Look<'_> {
    fn look(&mut self) -> u32 {
        (self.0)()
    }
}
