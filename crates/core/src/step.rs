//! The protocol between the core and a world: steps, their answers, and the passes that issue them.
//!
//! A pass (a softirq dispatch, a thread's loop, a wait ...) is driven by calling `next` with the outcome of the
//! last step; it returns the next single step. Between two calls the world may charge time, deliver an interrupt or
//! switch threads; the core does nothing there.

use crate::instance::{CpuId, Id};
use crate::vector::Vector;
use crate::{Ns, Pressure, Queue, Work};

/// A single step for the world to take. The first four act on the queue that [`Pass::queue`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Poll the queue; answer [`Did::Polled`].
    Poll {
        /// The instance that the pass owns.
        id: Id,
        /// At most this many frames.
        budget: u16,
    },
    /// Deliver the frames of the poll; answer [`Did::Delivered`]. The world wakes the threads that wait for a
    /// socket that got a frame, and calls [`EpollContext::follow`](crate::EpollContext::follow) of its epoll
    /// context, at every delivery.
    Deliver(Id),
    /// Mask the queue's interrupt; answer [`Did::Ok`].
    Mask(Id),
    /// Unmask the queue's interrupt; answer [`Did::Unmasked`].
    Unmask(Id),
    /// Arrange for [`Host::timer`](crate::Host::timer) to be called at that time; answer `Ok`. The deadline is
    /// stored already; the world moves its own timer only if that would fire later. What waits for it is the
    /// world's choice: [`Host::next_deadline`](crate::Host::next_deadline).
    Arm {
        /// The instance whose fallback timer it is.
        id: Id,
        /// Nanoseconds of the world's clock.
        at: Ns,
    },
    /// Wake a task; answer `Ok`.
    ///
    /// The task runs on another thread, and the step is done once that thread is bound to run. A wake-up that comes
    /// while the task runs must be remembered, and taken before the task sleeps or ends. A task's pass
    /// ([`Kthread`](crate::Kthread), [`Worker`](crate::Worker), ksoftirqd's [`Softirq`](crate::Softirq)) sleeps and
    /// does not end, so that it hangs if it is run nested in the pass that asked for it. Debug builds panic if a
    /// task begins there, unless [`Host::contexts_share_a_thread`](crate::Host::contexts_share_a_thread) was
    /// called.
    Wake(Task),
    /// A softirq of this CPU is pending: run it on the way out of this interrupt. Answer `Ok`, continue until
    /// [`Op::Done`], and only then run a [`Softirq`](crate::Softirq) in
    /// [`Context::Interrupt`](crate::Context::Interrupt), on the same thread. Debug builds panic if it begins
    /// earlier. ([`Host::timer`](crate::Host::timer) returns this step outside any pass.)
    Raise(CpuId),
    /// A softirq of this CPU is pending: the calling application runs it now. Answer `Ok`.
    RunHere(CpuId),
    /// Run the handler of a vector that the core does not handle; answer `Ok`.
    Vector(CpuId, Vector),
    /// Check how many events (or frames) wait for the application; answer [`Did::Events`], [`Did::Interrupted`], or
    /// [`Did::Resched`] where there are none and another thread wants the CPU.
    Look,
    /// A point to switch threads if the scheduler wants to (`cond_resched`); answer `Ok`, or [`Did::Resched`] if
    /// the world knows that it switched.
    Resched,
    /// The poll found nothing: let other runnable threads run (`sched_yield`). Answer `Ok`.
    Yield,
    /// The poll of an owner that spins by design found nothing (`cpu_relax`). Answer `Ok`.
    Pause,
    /// Sleep until woken, or until that time. Answer `Ok`.
    Sleep(Ns),
    /// The pass has ended.
    Done,
}

/// The answer to a step.
// Larger than a register on purpose: an answer that fits into one is packed and unpacked at each step, even where
// the pass is inlined into the loop that drives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(16))]
pub enum Did {
    /// The first call: there was no step yet.
    Start,
    /// The step is done and has no result.
    Ok,
    /// The poll's work.
    Polled(Work),
    /// The receivers' pressure.
    Delivered(Pressure),
    /// Whether work was waiting when the interrupt was unmasked.
    Unmasked(bool),
    /// The number of events that wait.
    Events(u32),
    /// Done, and another thread wants this CPU (`need_resched`). It may answer any step in place of `Ok`, and a
    /// look in place of `Events(0)`; a busy-poll session then releases the instance.
    Resched,
    /// A signal ended the sleep or the look.
    Interrupted,
}

impl Did {
    /// The number of events that a look found; `None` if a signal ended it.
    #[inline]
    pub(crate) fn events(self) -> Option<u32> {
        match self {
            Did::Events(events) => Some(events),
            Did::Resched => Some(0),
            Did::Interrupted => None,
            _ => unexpected("Look", "Events"),
        }
    }
}

/// Panics because of a world's mistake: a step got an answer of the wrong kind. (The message does not show that
/// answer, because every answer would have to be kept in memory for it.)
#[cold]
#[inline(never)]
pub(crate) fn unexpected(step: &str, answer: &str) -> ! {
    unreachable!("Op::{step} is to be answered by Did::{answer}")
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
///
/// A pass belongs to one thread at a time; passes do not know of each other. Any number of threads may run passes
/// of one CPU at once, even two interrupts or two softirqs, and need no lock: of several softirqs one finds
/// something to run, and the others end. (Overlaps that a real CPU rules out, such as two interrupts at once, are
/// for the world to rule out if its figures depend on it.) One ksoftirqd per CPU and one thread per instance are
/// enough.
///
/// Between two steps a pass may move to another thread, but not between an [`Op::Wake`] or [`Op::Raise`] and its
/// answer: debug builds remember the unanswered step on the thread that got it.
///
/// # A pass that is lost
/// A pass that is dropped before [`Op::Done`], for example because its thread panics, leaves an instance that it
/// owned to the softirq of its CPU; so may an abandoned [`Disable`](crate::Disable). That softirq is then pending
/// without a step that reports it, so the world runs a [`Softirq`](crate::Softirq) of every CPU once. An
/// [`Op::Wake`], [`Op::Raise`] or [`Op::RunHere`] that was already returned is still to be taken, and a thread that
/// continues begins a new pass.
pub trait Pass<Q> {
    /// Returns the next step, given the outcome of the last one.
    fn next(&mut self, now: Ns, did: Did) -> Op;

    /// The queue of the step [`Op::Poll`], [`Op::Deliver`], [`Op::Mask`] or [`Op::Unmask`] that
    /// `next` has just returned.
    ///
    /// # Panics
    /// After any other step: nothing is owned then.
    fn queue(&mut self) -> &mut Q;

    /// Takes the step that `next` has just returned, if it is one of those four, by calling the queue's method of
    /// that name. `None` for any other step, which is the world's to take.
    #[inline]
    fn on_queue(&mut self, op: Op, now: Ns) -> Option<Did>
    where
        Q: Queue,
    {
        Some(match op {
            Op::Poll { budget, .. } => Did::Polled(self.queue().poll(budget, now)),
            Op::Deliver(_) => Did::Delivered(self.queue().deliver(now)),
            Op::Mask(_) => {
                self.queue().mask();
                Did::Ok
            }
            Op::Unmask(_) => Did::Unmasked(self.queue().unmask(now)),
            _ => return None,
        })
    }

    /// Takes all steps to the end: those four by [`on_queue`](Self::on_queue), every other by `world`, which
    /// returns the answer, or `None` to leave the pass, as a thread does that is stopped while it sleeps. `clock`
    /// is read before each step.
    ///
    /// Returns the [`Op::Raise`] that occurred, if any: the softirq to run now, after the pass. A world that
    /// charges time or takes interrupts between two steps calls [`next`](Self::next) itself.
    #[must_use = "the softirq that is to run now"]
    fn drive(
        &mut self,
        clock: impl Fn() -> Ns,
        mut world: impl FnMut(Op) -> Option<Did>,
    ) -> Option<Op>
    where
        Self: Sized,
        Q: Queue,
    {
        let (mut did, mut raised) = (Did::Start, None);
        loop {
            let now = clock();
            let op = self.next(now, did);
            let answer = match op {
                Op::Done => None,
                Op::Raise(_) => {
                    raised = Some(op);
                    Some(Did::Ok)
                }
                _ => self.on_queue(op, now).or_else(|| world(op)),
            };
            match answer {
                Some(answer) => did = answer,
                None => return raised,
            }
        }
    }
}
