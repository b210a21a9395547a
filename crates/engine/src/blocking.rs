//! One socket with blocking receive calls that may busy poll (`SO_BUSY_POLL` and its kin).

use napkin_os::rights::Right;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use napkin_core::{CpuId, SocketWait};
use napkin_policy::ApplicationPolicy;
use napkin_stack::{Listener, Receiver, Socket};
use thiserror::Error;

use crate::Engine;
use crate::drive::{self, Ended, Hooks};
use crate::epoll::drained;
use crate::waiter::Waiter;

/// What cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// As the kernel refuses it without the privilege.
    #[error(
        "SO_BUSY_POLL_BUDGET {0} needs CAP_NET_ADMIN: leave it at 0, which is 8, or run privileged"
    )]
    Budget(u16),
    /// As the kernel refuses it without the privilege.
    #[error("SO_PREFER_BUSY_POLL needs CAP_NET_ADMIN: leave it off, or run privileged")]
    Prefer,
    /// Another thread receives there.
    #[error("another thread waits on this socket: give each thread its own")]
    Busy,
    /// The engine was stopped.
    #[error("the engine was stopped")]
    Stopped,
}

/// A socket and the thread that receives from it.
///
/// The thread that polls separately (2025, "separate") has a [`Poller`] of the same socket's queue:
/// see [`Blocking::poller`].
pub struct Blocking<S> {
    socket: S,
    receiver: Arc<Receiver>,
    listener: Arc<dyn Listener>,
    waiter: Arc<Waiter>,
    policy: ApplicationPolicy,
    napi: Arc<AtomicU32>,
}

struct Wakes {
    waiter: Arc<Waiter>,
    napi: Arc<AtomicU32>,
}

impl Listener for Wakes {
    fn readable(&self, napi_id: u32) {
        if self.napi.load(Ordering::Relaxed) != napi_id {
            self.napi.store(napi_id, Ordering::Relaxed);
        }
        self.waiter.wake();
    }

    fn drained(&self, napi_id: u32) {
        drained(self.waiter.shared(), napi_id);
    }
}

impl<S: Socket> Blocking<S> {
    /// Takes a socket, for a thread that runs on `cpu` (the engine's own number). Of the policy the
    /// socket's parts apply.
    ///
    /// # Errors
    /// Options that need a privilege which this process has not.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn new(
        engine: &Engine,
        cpu: CpuId,
        socket: S,
        policy: ApplicationPolicy,
    ) -> Result<Blocking<S>, SocketError> {
        if policy.needs_budget_privilege() && !Right::NetAdmin.held() {
            return Err(SocketError::Budget(policy.socket_busy_poll_budget));
        }
        if policy.needs_prefer_privilege() && !Right::NetAdmin.held() {
            return Err(SocketError::Prefer);
        }
        let shared = Arc::clone(engine.shared());
        assert!(usize::from(cpu.0) < shared.cpus.len(), "no CPU {}", cpu.0);
        let napi = Arc::new(AtomicU32::new(socket.incoming_napi_id()));
        let waiter = Waiter::new(shared, cpu);
        let wakes = Wakes { waiter: Arc::clone(&waiter), napi: Arc::clone(&napi) };
        let (receiver, listener) = (Arc::clone(socket.receiver()), Arc::new(wakes));
        receiver.set_listener(Arc::clone(&listener) as Arc<dyn Listener>);
        Ok(Blocking { socket, receiver, listener, waiter, policy, napi })
    }

    /// The socket itself, for calls that never wait.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Waits until the socket is readable: `false` after `timeout` (`None`: for ever; zero: looks,
    /// and busy polls once if the socket has busy polling).
    ///
    /// # Errors
    /// If another thread waits here, or the engine was stopped.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, SocketError> {
        let receiver = self.socket.receiver();
        if receiver.readable() {
            return Ok(true);
        }
        let look = Look(&|| u32::from(receiver.readable()));
        wait(&self.waiter, self.policy, &self.napi, timeout, look)
    }

    /// Another thread's way to poll the queue that feeds this socket: it receives nothing itself,
    /// its calls only poll (2025: a thread that does nothing but `recvfrom`).
    pub fn poller(&self, cpu: CpuId) -> Poller {
        Poller {
            waiter: Waiter::new(Arc::clone(self.waiter.shared()), cpu),
            policy: self.policy,
            napi: Arc::clone(&self.napi),
        }
    }
}

impl<S> std::fmt::Debug for Blocking<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocking").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<S> Drop for Blocking<S> {
    fn drop(&mut self) {
        // Otherwise the queue would keep the listener, and the listener the engine.
        self.receiver.clear_listener(&self.listener);
    }
}

/// Polls the queue of somebody else's socket.
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
    pub fn poll(&self) -> Result<(), SocketError> {
        let policy = ApplicationPolicy {
            // The call needs busy polling to be on; without a timeout it is one pass anyway.
            socket_busy_poll_usecs: self.policy.socket_busy_poll_usecs.max(1),
            ..self.policy
        };
        wait(&self.waiter, policy, &self.napi, Some(Duration::ZERO), Look(&|| 0)).map(drop)
    }
}

fn wait(
    waiter: &Waiter,
    policy: ApplicationPolicy,
    napi: &AtomicU32,
    timeout: Option<Duration>,
    mut look: Look<'_>,
) -> Result<bool, SocketError> {
    let shared = waiter.shared();
    let timeout = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    let waited = waiter.metered(|meter| {
        let id = shared.instance_of(napi.load(Ordering::Relaxed));
        let mut pass = SocketWait::new(&shared.host, policy, id, timeout);
        let mut ended = drive::drive(shared, &mut pass, meter, &mut look);
        while let Ended::Sleep(deadline) = ended {
            waiter.sleep(deadline, meter);
            if shared.stopping.load(Ordering::Acquire) {
                return Err(SocketError::Stopped);
            }
            ended = drive::resume(shared, &mut pass, meter, &mut look);
        }
        Ok(pass.frames() > 0)
    });
    match waited {
        Some(Ok(_)) if shared.stopping.load(Ordering::Acquire) => Err(SocketError::Stopped),
        Some(result) => result,
        None => Err(SocketError::Busy),
    }
}

struct Look<'a>(&'a dyn Fn() -> u32);

impl Hooks for Look<'_> {
    fn look(&mut self) -> u32 {
        (self.0)()
    }
}
