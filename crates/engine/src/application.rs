//! The wait of one application thread for one socket, in an epoll or in the socket itself, as the policy says.

use std::time::Duration;

use napkin_core::CpuId;
use napkin_os::clock;
use napkin_policy::{NEVER, Policy, WaitsIn};
use napkin_stack::{Socket, TcpApplication, TcpWorker};

use crate::{Blocking, Engine, Epoll, Event, Poller, WaitError, Waker};

/// Segments that are taken before the next wait.
const SEGMENTS: usize = 64;

/// One thread of an application that waits for one socket.
#[derive(Debug)]
pub struct ApplicationWait(Waits);

#[derive(Debug)]
enum Waits {
    Epoll(Epoll, Vec<Event>),
    /// Whether another thread is to poll.
    Blocking(Blocking, bool),
}

impl ApplicationWait {
    /// A thread that runs on `cpu` (the engine's own number). It waits in blocking calls if that is where the
    /// policy [waits](Policy::waits_in): if the socket itself busy polls, and no epoll does or a [separate
    /// poller](Self::poller) is to. Otherwise it waits in an epoll.
    ///
    /// # Errors
    /// Parameters or options that the kernel would refuse.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn new(
        engine: &Engine,
        cpu: CpuId,
        socket: &impl Socket,
        policy: &Policy,
    ) -> Result<ApplicationWait, WaitError> {
        match policy.waits_in() {
            Some(WaitsIn::Socket) => ApplicationWait::blocking(engine, cpu, socket, policy),
            Some(WaitsIn::Epoll) | None => ApplicationWait::epoll(engine, cpu, socket, policy),
        }
    }

    /// A thread that waits in an epoll, with the policy's parameters for it.
    ///
    /// # Errors
    /// Parameters that the kernel would refuse.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn epoll(
        engine: &Engine,
        cpu: CpuId,
        socket: &impl Socket,
        policy: &Policy,
    ) -> Result<ApplicationWait, WaitError> {
        let mut epoll = Epoll::new(engine, cpu, policy.epoll)?;
        epoll.set_spin(policy.application.spin);
        epoll.add(socket, 0)?;
        Ok(ApplicationWait(Waits::Epoll(epoll, Vec::with_capacity(1))))
    }

    /// A thread that waits in blocking receive calls, with the policy's options for the socket.
    ///
    /// # Errors
    /// Options that the kernel would refuse.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn blocking(
        engine: &Engine,
        cpu: CpuId,
        socket: &impl Socket,
        policy: &Policy,
    ) -> Result<ApplicationWait, WaitError> {
        let options = policy.application;
        let blocking = Blocking::new(engine, cpu, socket, options)?;
        Ok(ApplicationWait(Waits::Blocking(blocking, options.has_poller())))
    }

    /// Waits until the socket is readable or closed, or a [`Waker`] ends it: `false` after `timeout`
    /// (`None`: for ever; zero: looks, and busy polls once if the socket itself busy polls). In an epoll
    /// of a policy that spins (`application=spin`) it is `false` as soon as the busy poll has found
    /// nothing, or at once where there is none.
    ///
    /// # Errors
    /// If the engine was stopped.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, WaitError> {
        match &mut self.0 {
            Waits::Epoll(epoll, events) => {
                let woken = epoll.wait_or_waker(events, 1, timeout)?;
                Ok(woken || !events.is_empty())
            }
            Waits::Blocking(blocking, _) => blocking.wait(timeout),
        }
    }

    /// Serves TCP connections, waiting for the worker's segments, until `after` returns `false`; it is called after
    /// each wait that brought something.
    ///
    /// # Errors
    /// If the engine was stopped, which is the usual end.
    pub fn serve<A: TcpApplication>(
        &mut self,
        worker: &mut TcpWorker<A::State>,
        application: &mut A,
        mut after: impl FnMut(&TcpWorker<A::State>, &A) -> bool,
    ) -> Result<(), WaitError> {
        loop {
            let deadline = worker.next_deadline();
            let left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
            let ready = self.wait((deadline != NEVER).then_some(left))?;
            let now = clock::now();
            // A wait that spins may return without anything.
            if ready || worker.next_deadline() <= now {
                worker.step(now, SEGMENTS, application);
                if !after(worker, application) {
                    return Ok(());
                }
            }
        }
    }

    /// A handle that ends the wait from another thread, for events outside the engine.
    pub fn waker(&self) -> Waker {
        match &self.0 {
            Waits::Epoll(epoll, _) => epoll.waker(),
            Waits::Blocking(blocking, _) => blocking.waker(),
        }
    }

    /// The handle with which a thread on `cpu` polls the socket's queue, if the policy has a separate thread for
    /// that (`socket-poller=separate`): the thread calls [`Poller::poll`] until the engine stops. This wait does
    /// not busy poll then; without such a thread the policy is one of interrupts and timers.
    pub fn poller(&self, cpu: CpuId) -> Option<Poller> {
        match &self.0 {
            Waits::Blocking(blocking, true) => Some(blocking.poller(cpu)),
            _ => None,
        }
    }
}
