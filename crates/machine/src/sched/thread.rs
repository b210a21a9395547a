//! Threads: their scheduling state, and the interface of the programs that they run.

use napkin_core::{Id, Ns};

use crate::events::Event;
use crate::host::execution::Execution;
use crate::host::segment::Segment;
use crate::machine::Machine;
use crate::net::wait::Wait;
use crate::sched::id::{Affinity, Class, Role, State, ThreadId};

/// The next action of a program, which is asked again when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Computes in user space for so many nanoseconds.
    User(Ns),
    /// Spends so many nanoseconds in a system call that does not block.
    Kernel(Ns),
    /// Waits in `epoll_wait`; [`Machine::events`] then returns the number of events.
    Epoll {
        /// Timeout in nanoseconds; `None`: no limit.
        timeout: Option<Ns>,
        /// Most events that it returns (`maxevents`); the rest stay ready.
        max_events: u32,
    },
    /// Waits in a receive call on its socket; [`Machine::events`] then returns the number of frames.
    Receive {
        /// Timeout in nanoseconds; `None`: no limit; 0: `MSG_DONTWAIT`.
        timeout: Option<Ns>,
    },
    /// Sleeps until this virtual time, or until [`Machine::wake_thread`].
    Sleep(Ns),
    /// Ends the thread.
    Exit,
}

/// The program of an application's thread: a coroutine that the machine asks for its next act.
pub trait Program: core::fmt::Debug {
    /// Returns the next act. Called when the last one is done, and first when the thread first runs.
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act;
}

/// A thread of the kernel or of an application.
#[derive(Debug)]
pub(crate) struct Thread<'a> {
    name: String,
    role: Role,
    pub(super) class: Class,
    pub(super) affinity: Affinity,
    pub(super) cpu: u16,
    pub(super) state: State,
    /// Whether a wake-up came while it was awake: its next sleep ends at once.
    pub(super) woken: bool,
    pub(super) wake_generation: u32,
    /// The rest of its segment when it lost its CPU.
    pub(super) saved: Option<Segment>,
    /// Virtual run time, virtual deadline, and the lag it had when it went to sleep.
    vruntime_base: i64,
    pub(super) deadline: i64,
    pub(super) lag: i64,
    /// CPU time when the thread was last picked to run.
    picked_at: Ns,
    cpu_time: Ns,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
    pub(super) migrations: u64,
    /// Used by the CPU that it runs on (`host/`).
    pub(crate) execution: Execution<'a>,
    /// Used by the sockets (`net/`).
    pub(crate) wait: Wait,
}

impl<'a> Thread<'a> {
    /// Creates a thread, asleep.
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
            vruntime_base: 0,
            deadline: 0,
            lag: 0,
            picked_at: 0,
            cpu_time: 0,
            voluntary: 0,
            involuntary: 0,
            migrations: 0,
            execution,
            wait: Wait::default(),
        }
    }

    /// Returns the name that traces show.
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

    /// Returns the CPU on which it runs, waits to run, or last ran.
    #[inline]
    pub(crate) fn cpu(&self) -> u16 {
        self.cpu
    }

    /// Whether a wake-up has come since the thread last slept or began to wait.
    #[inline]
    pub(crate) fn woken(&self) -> bool {
        self.woken
    }

    /// Clears the pending wake-up. Returns whether there was one.
    #[inline]
    pub(crate) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Puts it to sleep. Returns the generation of this sleep, which its timer event carries.
    #[inline]
    pub(crate) fn sleep(&mut self) -> u32 {
        self.state = State::Sleeping;
        self.wake_generation = self.wake_generation.wrapping_add(1);
        self.wake_generation
    }

    /// Whether the timer of that generation belongs to the present sleep.
    #[inline]
    pub(crate) fn is_same_sleep(&self, generation: u32) -> bool {
        self.wake_generation == generation
    }

    /// Marks it as ended.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Drops the rest of its segment.
    #[inline]
    pub(crate) fn forget_saved(&mut self) {
        self.saved = None;
    }

    /// Returns the CPUs on which it may run.
    pub(crate) fn affinity(&self) -> Affinity {
        self.affinity
    }

    /// Charges it with CPU time; `own`: no context was on top of it.
    #[inline]
    pub(crate) fn charge(&mut self, time: Ns, own: bool) {
        if own {
            self.execution.used(time);
        }
        self.cpu_time += time;
    }

    /// Virtual run time. As every fair thread is nice 0, it passes as CPU time does.
    #[inline]
    pub(super) fn vruntime(&self) -> i64 {
        self.vruntime_base + self.cpu_time as i64
    }

    #[inline]
    pub(super) fn set_vruntime(&mut self, vruntime: i64) {
        self.vruntime_base = vruntime - self.cpu_time as i64;
    }

    /// Sets the deadline a slice from now, in virtual time.
    pub(super) fn renew_deadline(&mut self, slice: Ns) {
        self.deadline = self.vruntime() + slice as i64;
    }

    /// Starts a new period of [`Thread::ran_since_pick`].
    pub(super) fn pick(&mut self) {
        self.picked_at = self.cpu_time;
    }

    /// CPU time since the scheduler last picked the thread in place of another.
    pub(super) fn ran_since_pick(&self) -> Ns {
        self.cpu_time - self.picked_at
    }
}

impl Machine<'_> {
    /// Wakes a thread from no modelled CPU: by a timer, or to start it.
    pub fn wake_thread(&mut self, thread: ThreadId) {
        if let Some(cpu) = self.wake(thread, None) {
            self.events.schedule(self.now, Event::Reschedule { cpu: cpu as u16 });
        }
    }

    /// Counts the present round of a thread's loop as work, although it found no frame or event: it has sent
    /// something, for example.
    pub fn count_as_work(&mut self, me: ThreadId) {
        self.threads[me].execution.found();
    }

    /// Begins another round of a program's loop: the last round counts as empty polling if it found nothing. A call
    /// that waits does this by itself; a program that polls memory has to call it.
    pub fn next_round(&mut self, me: ThreadId) {
        let thread = &mut self.threads[me];
        self.cpus[usize::from(thread.cpu)].add_empty_poll_time(thread.execution.next_round());
    }

    /// Returns the thread of a CPU's ksoftirqd.
    pub fn ksoftirqd(&self, cpu: u16) -> ThreadId {
        self.kernel_threads.ksoftirqd(usize::from(cpu))
    }

    /// Returns the NAPI thread of an instance.
    pub fn napi_thread(&self, queue: u16) -> Option<ThreadId> {
        self.kernel_threads.napi(Id(queue))
    }

    /// Returns the CPU time of a thread, in nanoseconds.
    pub fn cpu_time(&self, thread: ThreadId) -> Ns {
        self.threads[thread].cpu_time
    }

    /// Returns the voluntary and involuntary context switches of a thread.
    pub fn thread_switches(&self, thread: ThreadId) -> (u64, u64) {
        let thread = &self.threads[thread];
        (thread.voluntary, thread.involuntary)
    }

    /// Returns the scheduling state of a thread.
    pub(crate) fn state_of(&self, thread: ThreadId) -> State {
        self.threads[thread].state
    }
}
