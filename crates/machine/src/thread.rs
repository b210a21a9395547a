//! Threads: what they are, how they are scheduled, what they run.

use napkin_core::{CpuId, Did, EpollWait, Id, Kthread, Ns, Op, Pass, SocketWait, Softirq, Worker};

use crate::cpu::{Segment, Use};
use crate::events::Event;
use crate::machine::Machine;
use crate::perform::Next;
use crate::round::Round;

/// A thread's place in its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// What a program does next. It is asked again when that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Computes in user space.
    User(Ns),
    /// Is in a system call that does not block.
    Kernel(Ns),
    /// Waits in `epoll_wait` for at most so many events; [`Machine::events`] says how many came.
    Epoll {
        /// `None`: for ever.
        timeout: Option<Ns>,
        /// `maxevents`.
        max_events: u32,
    },
    /// Waits in a receive call on its socket; [`Machine::events`] says how many frames came.
    Receive {
        /// `None`: for ever; 0: `MSG_DONTWAIT`.
        timeout: Option<Ns>,
    },
    /// Sleeps until that time, or until [`Machine::wake_thread`].
    Sleep(Ns),
    /// Ends.
    Exit,
}

/// What a thread of an application runs: a coroutine that the machine asks for its next act.
pub trait Program: core::fmt::Debug {
    /// The next act.
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act;
}

/// Where a thread may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// The first CPU.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

impl Affinity {
    /// One CPU.
    pub const fn pinned(cpu: u16) -> Self {
        Affinity { first: cpu, last: cpu }
    }

    pub(crate) fn allows(self, cpu: u16) -> bool {
        (self.first..=self.last).contains(&cpu)
    }

    pub(crate) fn one(self) -> bool {
        self.first == self.last
    }
}

/// How a thread competes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_FIFO` at a priority.
    Fifo(u8),
    /// `SCHED_OTHER`, nice 0.
    Fair,
}

/// Who a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A CPU's ksoftirqd.
    Ksoftirqd(u16),
    /// An instance's own thread.
    Napi(u16),
    /// A worker of the shared pool.
    Worker,
    /// An application's.
    Application,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Sleeping,
    Queued,
    Running,
    Ended,
}

/// A pass of the core that a thread is in.
#[derive(Debug)]
pub(crate) enum ThreadPass<'a> {
    Softirq(Softirq<'a, ()>),
    Kthread(Kthread<'a, ()>),
    Worker(Worker<'a, ()>),
    Epoll(EpollWait<'a, ()>),
    Socket(SocketWait<'a, ()>),
}

impl ThreadPass<'_> {
    #[inline]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Op {
        match self {
            ThreadPass::Softirq(pass) => pass.next(now, did),
            ThreadPass::Kthread(pass) => pass.next(now, did),
            ThreadPass::Worker(pass) => pass.next(now, did),
            ThreadPass::Epoll(pass) => pass.next(now, did),
            ThreadPass::Socket(pass) => pass.next(now, did),
        }
    }
}

/// How far the execution of a pass's step has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exec {
    pub(crate) did: Did,
    pub(crate) op: Option<Op>,
    /// The queue that the last step was about that touched one: what follows from its answer does, too.
    pub(crate) queue: u16,
    /// Part of the step that comes next.
    pub(crate) stage: u8,
    /// Frames and completions that the poll under way has taken.
    pub(crate) rx: u16,
    pub(crate) tx: u16,
    /// Its driver asks for another, whatever the frames.
    pub(crate) again: bool,
    /// Whom to wake at the end of a part.
    pub(crate) wakes: Option<ThreadId>,
    /// Bottom halves are disabled: a pending softirq waits, and so does another thread.
    pub(crate) bh_disabled: bool,
    /// The session under way has claimed the instance.
    pub(crate) claimed: bool,
}

impl Exec {
    /// The next step.
    #[inline]
    pub(crate) fn begin(&mut self, op: Op) {
        self.op = Some(op);
        self.stage = 0;
        if let Op::Poll { id, .. }
        | Op::Deliver(id)
        | Op::Mask(id)
        | Op::Unmask(id)
        | Op::Arm { id, .. } = op
        {
            self.queue = id.0;
        }
    }

    /// Its next part begins once this is paid.
    #[inline]
    pub(crate) fn pay(&mut self, time: Ns, class: Use) -> Next {
        self.stage += 1;
        Next::Spend(time, class)
    }

    pub(crate) const START: Exec = Exec {
        did: Did::Start,
        op: None,
        queue: u16::MAX,
        stage: 0,
        rx: 0,
        tx: 0,
        again: false,
        wakes: None,
        bh_disabled: false,
        claimed: false,
    };
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread<'a> {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) class: Class,
    pub(crate) affinity: Affinity,
    pub(crate) cpu: u16,
    pub(crate) state: State,
    /// Woken while it was awake: its next sleep ends at once.
    pub(crate) woken: bool,
    pub(crate) wake_generation: u32,
    pub(crate) program: Option<Box<dyn Program>>,
    pub(crate) pass: Option<ThreadPass<'a>>,
    pub(crate) exec: Exec,
    /// What it was at when it lost its CPU.
    pub(crate) saved: Option<Segment>,
    /// Its epoll context, if it has one.
    pub(crate) epoll: Option<u32>,
    /// Its socket, if it receives without epoll.
    pub(crate) socket: Option<u32>,
    pub(crate) max_events: u32,
    /// What its last wait found.
    pub(crate) events: u32,
    pub(crate) interrupted: bool,
    pub(crate) round: Round,
    /// It computes for so long when it next runs: a fault.
    pub(crate) stall: Ns,
    /// Virtual run time, its deadline, and its lag while it sleeps.
    pub(crate) vruntime: i64,
    pub(crate) deadline: i64,
    pub(crate) lag: i64,
    pub(crate) picked_at: Ns,
    pub(crate) ran_since_pick: Ns,
    pub(crate) cpu_time: Ns,
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    pub(crate) migrations: u64,
}

impl<'a> Thread<'a> {
    pub(crate) fn new(name: String, role: Role, class: Class, affinity: Affinity) -> Self {
        Thread {
            name,
            role,
            class,
            affinity,
            cpu: affinity.first,
            state: State::Sleeping,
            woken: false,
            wake_generation: 0,
            program: None,
            pass: None,
            exec: Exec::START,
            saved: None,
            epoll: None,
            socket: None,
            max_events: 0,
            events: 0,
            interrupted: false,
            round: Round::default(),
            stall: 0,
            vruntime: 0,
            deadline: 0,
            lag: 0,
            picked_at: 0,
            ran_since_pick: 0,
            cpu_time: 0,
            voluntary: 0,
            involuntary: 0,
            migrations: 0,
        }
    }

    /// The pass that a thread of the kernel's own runs for ever.
    pub(crate) fn loops(role: Role, host: &'a napkin_core::Host<()>) -> Option<ThreadPass<'a>> {
        Some(match role {
            Role::Ksoftirqd(cpu) => {
                ThreadPass::Softirq(Softirq::new(host, CpuId(cpu), napkin_core::Context::Ksoftirqd))
            }
            Role::Napi(id) => ThreadPass::Kthread(Kthread::new(host, Id(id))),
            Role::Worker => ThreadPass::Worker(Worker::new(host)),
            Role::Application => return None,
        })
    }
}

impl Machine<'_> {
    /// Wakes a thread from outside of any CPU: a timer, a start.
    pub fn wake_thread(&mut self, thread: ThreadId) {
        if let Some(cpu) = self.wake(thread, None) {
            self.events.at(self.now, Event::Reschedule { cpu: cpu as u16 });
        }
    }

    /// The CPU time a thread has used.
    pub fn cpu_time(&self, thread: ThreadId) -> Ns {
        self.threads[thread.0 as usize].cpu_time
    }

    /// Voluntary and involuntary context switches of a thread.
    pub fn thread_switches(&self, thread: ThreadId) -> (u64, u64) {
        let thread = &self.threads[thread.0 as usize];
        (thread.voluntary, thread.involuntary)
    }

    /// The thread of a CPU's ksoftirqd.
    pub fn ksoftirqd(&self, cpu: u16) -> ThreadId {
        self.ksoftirqds[usize::from(cpu)]
    }

    /// An instance's own thread.
    pub fn napi_thread(&self, queue: u16) -> Option<ThreadId> {
        self.napi_threads[usize::from(queue)]
    }

    /// Whether a thread is in the pass of a wait.
    pub(crate) fn state_of(&self, thread: ThreadId) -> State {
        self.threads[thread.0 as usize].state
    }
}
