//! The execution state of a thread: a user's program or a pass of the core, and its progress.
//!
//! A thread carries it from CPU to CPU; only the CPU on which the thread runs changes it. When and where the thread
//! runs is decided by the scheduler.

use napkin_core::{
    Context, CpuId, Did, EpollWait, Host, Id, Kthread, Ns, Op, Pass, SocketWait, Softirq, Worker,
};

use crate::host::round::Round;
use crate::host::step::Exec;
use crate::sched::id::Role;
use crate::sched::thread::Program;

/// The pass of the core that a thread executes.
#[derive(Debug)]
pub(super) enum ThreadPass<'a> {
    Softirq(Softirq<'a, ()>),
    Kthread(Kthread<'a, ()>),
    Worker(Worker<'a, ()>),
    Epoll(EpollWait<'a, ()>),
    Socket(SocketWait<'a, ()>),
}

impl<'a> ThreadPass<'a> {
    /// Creates the pass that a kernel thread runs in a loop; `None` for a thread of an application.
    fn of(role: Role, host: &'a Host<()>) -> Option<Self> {
        Some(match role {
            Role::Ksoftirqd(cpu) => {
                ThreadPass::Softirq(Softirq::new(host, CpuId(cpu), Context::Ksoftirqd))
            }
            Role::Napi(id) => ThreadPass::Kthread(Kthread::new(host, Id(id))),
            Role::Worker => ThreadPass::Worker(Worker::new(host)),
            Role::Application => return None,
        })
    }

    #[inline(always)]
    pub(super) fn next(&mut self, now: Ns, did: Did) -> Op {
        match self {
            ThreadPass::Softirq(pass) => pass.next(now, did),
            ThreadPass::Kthread(pass) => pass.next(now, did),
            ThreadPass::Worker(pass) => pass.next(now, did),
            ThreadPass::Epoll(pass) => pass.next(now, did),
            ThreadPass::Socket(pass) => pass.next(now, did),
        }
    }
}

/// The execution state of a thread.
#[derive(Debug)]
pub(crate) struct Execution<'a> {
    /// `None` while the program is being called, after it has ended, and for kernel threads.
    pub(super) program: Option<Box<dyn Program>>,
    pub(super) pass: Option<ThreadPass<'a>>,
    pub(super) exec: Exec,
    pub(super) round: Round,
    /// Nanoseconds of user time that a fault adds before the program's next act.
    pub(super) stall: Ns,
}

impl<'a> Execution<'a> {
    fn new(program: Option<Box<dyn Program>>, pass: Option<ThreadPass<'a>>) -> Self {
        let (round, exec) = (Round::default(), Exec::START);
        Execution { program, pass, exec, round, stall: 0 }
    }

    /// Creates the state of an application's thread, at the start of its program.
    pub(crate) fn of_program(program: Box<dyn Program>) -> Self {
        Execution::new(Some(program), None)
    }

    /// Creates the state of a kernel thread, at the start of its loop.
    pub(crate) fn of_kernel(role: Role, host: &'a Host<()>) -> Self {
        Execution::new(None, ThreadPass::of(role, host))
    }

    /// Restarts the kernel thread's loop.
    pub(super) fn restart(&mut self, role: Role, host: &'a Host<()>) {
        self.pass = ThreadPass::of(role, host);
        self.exec = Exec::START;
    }

    /// Whether the thread is in a pass: it waits or polls.
    #[inline]
    pub(crate) fn in_pass(&self) -> bool {
        self.pass.is_some()
    }

    /// Adds CPU time that the thread used with no context on top of it.
    #[inline]
    pub(crate) fn used(&mut self, time: Ns) {
        self.round.used(time);
    }

    /// Records that the present round of the loop has found a frame or an event.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.round.found();
    }

    /// Begins another round of the loop. Returns the CPU time of the last one that was empty polling.
    #[inline]
    pub(crate) fn next_round(&mut self) -> Ns {
        self.round.begin_round()
    }

    /// Sets the user time to spend before the program's next act.
    pub(crate) fn stall(&mut self, time: Ns) {
        self.stall = time;
    }
}
