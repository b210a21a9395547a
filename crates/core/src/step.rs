//! What a world and the core say to each other.
//!
//! A pass (a softirq dispatch, a thread's loop, a wait ...) is driven by calling `next` with what
//! came of the last step; it answers with the next single step. Between two calls the world may
//! charge time, deliver an interrupt or switch threads; nothing else happens there.

use crate::instance::{CpuId, Id};
use crate::vector::Vector;
use crate::{Ns, Pressure, Queue, Work};

/// The next single thing for a world to do. The first four touch the queue that
/// [`Pass::queue`] gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Poll the queue; answer [`Did::Polled`].
    Poll {
        /// The instance that the pass owns.
        id: Id,
        /// At most this many frames.
        budget: u16,
    },
    /// Deliver what the poll took; answer [`Did::Delivered`]. Whoever waits for a socket that got a
    /// frame is woken, and its epoll context told: [`EpollContext::follow`](crate::EpollContext::follow),
    /// at every delivery.
    Deliver(Id),
    /// Mask the queue's interrupt; answer [`Did::Ok`].
    Mask(Id),
    /// Unmask the queue's interrupt; answer [`Did::Unmasked`].
    Unmask(Id),
    /// See to it that [`Host::timer`](crate::Host::timer) is called at that time. The deadline is
    /// stored already; the world touches its own timer only if that would fire later. Who waits for
    /// it is the world's: [`Host::next_deadline`](crate::Host::next_deadline). Answer `Ok`.
    Arm {
        /// The instance whose fallback timer it is.
        id: Id,
        /// Nanoseconds of the world's clock.
        at: Ns,
    },
    /// Wake a task; answer `Ok`.
    ///
    /// It is another thread's business: the step is done when that thread will run. One that comes while
    /// the task runs is remembered, and taken before the task sleeps or ends. A task's pass
    /// ([`Kthread`](crate::Kthread), [`Worker`](crate::Worker), ksoftirqd's
    /// [`Softirq`](crate::Softirq)) sleeps and does not end; run at once, nested in the pass that
    /// asked for it, it hangs. In debug builds a task that begins there panics, unless
    /// [`Host::contexts_share_a_thread`](crate::Host::contexts_share_a_thread).
    Wake(Task),
    /// A softirq of this CPU is pending: run it on the way out of this interrupt. Answer `Ok`, go on
    /// until [`Op::Done`], and only then run a [`Softirq`](crate::Softirq) in
    /// [`Context::Interrupt`](crate::Context::Interrupt), on the same thread. In debug builds one that
    /// begins before panics. (Of [`Host::timer`](crate::Host::timer) it is the answer itself, and no
    /// pass is under way.)
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
// Larger than a register on purpose: an answer that fits into one is put together and taken apart at each
// step, also where the pass is inlined into the loop that drives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(16))]
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
            _ => unexpected("Look", "Events"),
        }
    }
}

/// A world's mistake: a step was not answered by what it asks for. (What it was answered by is not told,
/// for then every answer would have to be kept where it can be shown.)
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
/// A pass belongs to one thread at a time; passes do not know of each other. Any number of threads may
/// run passes of one CPU at once, two interrupts' or two softirqs' included, and no lock is needed
/// around them: of several softirqs one finds something to run, and the others end. (What the real CPU
/// would exclude, such as an interrupt while its softirq is masked, a world excludes for its own
/// figures' sake.) One ksoftirqd a CPU and one thread an instance are enough.
///
/// Between two steps a pass may move to another thread, but not between an [`Op::Wake`] or [`Op::Raise`]
/// and its answer: what is owed is remembered on the thread that was given it, in debug builds.
///
/// # A pass that is lost
/// A pass that is dropped before [`Op::Done`], as where its thread panics, leaves an instance that it owned
/// to the softirq of its CPU, and so may a [`Disable`](crate::Disable) that is given up. That softirq is
/// then pending, and no step says so: the world runs a [`Softirq`](crate::Softirq) of every CPU once. An
/// [`Op::Wake`], [`Op::Raise`] or [`Op::RunHere`] that was given is still taken, and a thread that goes on
/// begins its pass anew.
pub trait Pass<Q> {
    /// The next step, given what came of the last one.
    fn next(&mut self, now: Ns, did: Did) -> Op;

    /// The queue of the step [`Op::Poll`], [`Op::Deliver`], [`Op::Mask`] or [`Op::Unmask`] that
    /// `next` has just returned.
    ///
    /// # Panics
    /// After any other step: nothing is owned then.
    fn queue(&mut self) -> &mut Q;

    /// Takes the step that `next` has just returned, if it is one of those four, by the queue's method
    /// of that name. `None` for any other step, which is the world's.
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

    /// Takes all steps to the end: those four by [`on_queue`](Self::on_queue), every other by `world`,
    /// which answers it, or leaves the pass with `None`, as a thread does that ends in its sleep. `clock`
    /// is read before each step.
    ///
    /// Returns the [`Op::Raise`] that came up: the softirq that is to run now, after the pass. A world
    /// that charges time or takes interrupts between two steps calls [`next`](Self::next) itself.
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
