//! Threads: what they are, how they are scheduled, what they run.

use napkin_core::{Id, Ns};

use crate::events::Event;
use crate::host::execution::Execution;
use crate::host::segment::Segment;
use crate::machine::Machine;
use crate::net::wait::Wait;
use crate::sched::id::{Affinity, Class, Role, State, ThreadId};

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

/// A thread of the kernel or of an application: who it is, what it is in, what it waits for.
#[derive(Debug)]
pub(crate) struct Thread<'a> {
    name: String,
    role: Role,
    pub(super) class: Class,
    pub(super) affinity: Affinity,
    pub(super) cpu: u16,
    pub(super) state: State,
    /// Woken while it was awake: its next sleep ends at once.
    pub(super) woken: bool,
    pub(super) wake_generation: u32,
    /// What it was at when it lost its CPU.
    pub(super) saved: Option<Segment>,
    /// Virtual run time, its deadline, and its lag while it sleeps.
    pub(super) vruntime: i64,
    pub(super) deadline: i64,
    pub(super) lag: i64,
    pub(super) ran_since_pick: Ns,
    cpu_time: Ns,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
    pub(super) migrations: u64,
    /// The business of the CPU that it runs on.
    pub(crate) execution: Execution<'a>,
    /// The business of its sockets.
    pub(crate) wait: Wait,
}

impl<'a> Thread<'a> {
    /// A thread that sleeps.
    pub(crate) fn new(
        name: String,
        role: Role,
        class: Class,
        affinity: Affinity,
        execution: Execution<'a>,
    ) -> Self {
        Thread {
            name,
            role,
            class,
            affinity,
            cpu: affinity.first,
            state: State::Sleeping,
            woken: false,
            wake_generation: 0,
            saved: None,
            vruntime: 0,
            deadline: 0,
            lag: 0,
            ran_since_pick: 0,
            cpu_time: 0,
            voluntary: 0,
            involuntary: 0,
            migrations: 0,
            execution,
            wait: Wait::default(),
        }
    }

    /// The name that traces show.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// The CPU on which it runs, waits to run, or last ran.
    #[inline]
    pub(crate) fn cpu(&self) -> u16 {
        self.cpu
    }

    /// Whether a wake-up has come since the thread last slept or began to wait.
    #[inline]
    pub(crate) fn woken(&self) -> bool {
        self.woken
    }

    /// Forgets that wake-up. Returns whether there was one.
    #[inline]
    pub(crate) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Goes to sleep. Returns the generation of this sleep, which its timer carries.
    #[inline]
    pub(crate) fn sleep(&mut self) -> u32 {
        self.state = State::Sleeping;
        self.wake_generation = self.wake_generation.wrapping_add(1);
        self.wake_generation
    }

    /// Whether the timer of that generation is for the present sleep.
    #[inline]
    pub(crate) fn sleeps_since(&self, generation: u32) -> bool {
        self.wake_generation == generation
    }

    /// Leaves the CPU for good.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Forgets the piece of work that it was at.
    #[inline]
    pub(crate) fn forget_saved(&mut self) {
        self.saved = None;
    }

    /// Where it may run.
    pub(crate) fn affinity(&self) -> Affinity {
        self.affinity
    }

    /// It has had the CPU for so long: `own`, with nothing on top of it.
    #[inline]
    pub(crate) fn runs(&mut self, time: Ns, own: bool) {
        if own {
            self.execution.used(time);
        }
        self.vruntime += time as i64;
        self.cpu_time += time;
        self.ran_since_pick += time;
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
        self.threads[me].execution.found();
    }

    /// A program begins another round of its loop: all that the last one took is poll if nothing was
    /// found in it. A call that waits does so by itself; a program that looks at memory says so.
    pub fn next_round(&mut self, me: ThreadId) {
        let thread = &mut self.threads[me];
        self.cpus[usize::from(thread.cpu)].in_vain(thread.execution.next_round());
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
        self.threads[thread].cpu_time
    }

    /// Voluntary and involuntary context switches of a thread.
    pub fn thread_switches(&self, thread: ThreadId) -> (u64, u64) {
        let thread = &self.threads[thread];
        (thread.voluntary, thread.involuntary)
    }

    /// Whether a thread is in the pass of a wait.
    pub(crate) fn state_of(&self, thread: ThreadId) -> State {
        self.threads[thread].state
    }
}
