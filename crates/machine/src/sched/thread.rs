//! Threads: what they are, how they are scheduled, what they run.

use napkin_core::{CpuId, Did, EpollWait, Id, Kthread, Ns, Op, Pass, SocketWait, Softirq, Worker};

use crate::events::Event;
use crate::host::segment::Segment;
use crate::host::step::Exec;
use crate::machine::Machine;
use crate::sched::id::{Affinity, Class, Role, State, ThreadId};
use crate::sched::round::Round;

/// What a program does next. It is asked again when that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Computes in user space.
    User(Ns),
    /// Is in a system call that does not block.
    Kernel(Ns),
    /// Waits in `epoll_wait` for at most so many events; [`Machine::events`] says how many came.
    Epoll {
        /// For so many nanoseconds at most; `None`: for ever.
        timeout: Option<Ns>,
        /// How many events it takes at most (`maxevents`); the rest stay ready.
        max_events: u32,
    },
    /// Waits in a receive call on its socket; [`Machine::events`] says how many frames came.
    Receive {
        /// `None`: for ever; 0: `MSG_DONTWAIT`.
        timeout: Option<Ns>,
    },
    /// Sleeps until that time, or until [`Machine::wake_thread`].
    Sleep(Ns),
    /// Ends the thread, for good.
    Exit,
}

/// What a thread of an application runs: a coroutine that the machine asks for its next act.
pub trait Program: core::fmt::Debug {
    /// Asked when the last act is over (at the start: when the thread first runs): what it does next.
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act;
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
    #[inline(always)]
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

/// A thread of the kernel or of an application: who it is, what it is in, what it waits for.
#[derive(Debug)]
pub(crate) struct Thread<'a> {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(super) class: Class,
    pub(super) affinity: Affinity,
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
    pub(super) vruntime: i64,
    pub(super) deadline: i64,
    pub(super) lag: i64,
    pub(super) ran_since_pick: Ns,
    pub(super) cpu_time: Ns,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
    pub(super) migrations: u64,
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
            ran_since_pick: 0,
            cpu_time: 0,
            voluntary: 0,
            involuntary: 0,
            migrations: 0,
        }
    }

    /// Where it may run.
    pub(crate) fn affinity(&self) -> Affinity {
        self.affinity
    }

    /// It has had the CPU for so long: `own`, with nothing on top of it.
    #[inline]
    pub(crate) fn runs(&mut self, time: Ns, own: bool) {
        if own {
            self.round.used(time);
        }
        self.vruntime += time as i64;
        self.cpu_time += time;
        self.ran_since_pick += time;
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

    /// A thread has done something of use without a frame or an event, as sending is.
    pub fn achieved(&mut self, me: ThreadId) {
        self.threads[me.0 as usize].round.found();
    }

    /// A program begins another round of its loop: all that the last one took is poll if nothing was
    /// found in it. A call that waits does so by itself; a program that looks at memory says so.
    pub fn next_round(&mut self, me: ThreadId) {
        let thread = &mut self.threads[me.0 as usize];
        self.cpus[usize::from(thread.cpu)].in_vain(thread.round.begins());
    }

    /// The thread of a CPU's ksoftirqd.
    pub fn ksoftirqd(&self, cpu: u16) -> ThreadId {
        self.kernel_threads.ksoftirqd(usize::from(cpu))
    }

    /// An instance's own thread.
    pub fn napi_thread(&self, queue: u16) -> Option<ThreadId> {
        self.kernel_threads.napi(Id(queue))
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

    /// Whether a thread is in the pass of a wait.
    pub(crate) fn state_of(&self, thread: ThreadId) -> State {
        self.threads[thread.0 as usize].state
    }
}
