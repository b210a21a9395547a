//! What a world and the core say to each other.
//!
//! A pass (a softirq dispatch, a thread's loop, a wait ...) is driven by calling `next` with what
//! came of the last step; it answers with the next single step. Between two calls the world may
//! charge time, deliver an interrupt or switch threads; nothing else happens there.

use crate::cpu::Vector;
use crate::instance::{CpuId, Id};
use crate::{Ns, Pressure, Work};

/// The next single thing for a world to do. The first four touch the queue that
/// [`Pass::queue`] gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Poll the queue; answer [`Did::Polled`].
    Poll {
        /// Whose queue.
        id: Id,
        /// At most this many frames.
        budget: u16,
    },
    /// Deliver what the poll took; answer [`Did::Delivered`].
    Deliver(Id),
    /// Mask the queue's interrupt; answer [`Did::Ok`].
    Mask(Id),
    /// Unmask the queue's interrupt; answer [`Did::Unmasked`].
    Unmask(Id),
    /// See to it that [`Host::timer`](crate::Host::timer) is called at that time. The deadline is
    /// stored already; the world touches its own timer only if that would fire later. Answer `Ok`.
    Arm {
        /// Whose timer.
        id: Id,
        /// Nanoseconds of the world's clock.
        at: Ns,
    },
    /// Wake a task; answer `Ok`.
    Wake(Task),
    /// A softirq of this CPU is pending: run it on the way out of this interrupt. Answer `Ok`.
    Raise(CpuId),
    /// A softirq of this CPU is pending: the calling application runs it now. Answer `Ok`.
    RunHere(CpuId),
    /// Run the handler of a vector that is not the core's; answer `Ok`.
    Vector(CpuId, Vector),
    /// Look how many events (or frames) wait for the application; answer [`Did::Events`],
    /// [`Did::Interrupted`], or [`Did::Resched`] where there are none and another thread wants the CPU.
    Look,
    /// A place to switch threads if the scheduler wants to (`cond_resched`); answer `Ok`, or
    /// [`Did::Resched`] where a world knows that it did.
    Resched,
    /// Nothing was found: let others run that want to (`sched_yield`). Answer `Ok`.
    Yield,
    /// Nothing was found by a poller that spins by design (`cpu_relax`). Answer `Ok`.
    Pause,
    /// Sleep until woken, or until that time. Answer `Ok`.
    Sleep(Ns),
    /// The pass has ended.
    Done,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// Nothing yet: the first call.
    Start,
    /// It is done.
    Ok,
    /// The poll's work.
    Polled(Work),
    /// The receivers' pressure.
    Delivered(Pressure),
    /// Whether work was waiting when the interrupt was unmasked.
    Unmasked(bool),
    /// How many events wait.
    Events(u32),
    /// Done, and another thread wants this CPU (`need_resched`). Any step may be answered so in
    /// place of `Ok`, and a look in place of `Events(0)`: a busy-poll session then lets go.
    Resched,
    /// The sleep, or the look, was ended by a signal.
    Interrupted,
}

impl Did {
    /// How many events a look found; `None` if a signal ended it.
    #[inline]
    pub(crate) fn events(self) -> Option<u32> {
        match self {
            Did::Events(events) => Some(events),
            Did::Resched => Some(0),
            Did::Interrupted => None,
            _ => unexpected("Look", self),
        }
    }
}

/// A world's mistake. Out of line, so that the answer need not be in memory for its sake.
#[cold]
pub(crate) fn unexpected(step: &str, did: Did) -> ! {
    unreachable!("{step} answered by {did:?}")
}

/// A task that the core wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// An instance's own thread.
    Napi(Id),
    /// One worker of the shared pool.
    Worker,
    /// A CPU's ksoftirqd.
    Ksoftirqd(CpuId),
}

/// A sequence of steps that one context takes.
pub trait Pass<Q> {
    /// The next step, given what came of the last one.
    fn next(&mut self, now: Ns, did: Did) -> Op;

    /// The queue of the step [`Op::Poll`], [`Op::Deliver`], [`Op::Mask`] or [`Op::Unmask`] that
    /// `next` has just returned.
    ///
    /// # Panics
    /// After any other step: nothing is owned then.
    fn queue(&mut self) -> &mut Q;
}
