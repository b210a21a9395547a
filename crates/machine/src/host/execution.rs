//! What a thread executes: a program of the user's, or a pass of the core, and how far it has come.
//!
//! A thread carries it from CPU to CPU; only the CPU that it runs on changes it. When the thread gets a CPU,
//! and which, is the scheduler's.

use napkin_core::{
    Context, CpuId, Did, EpollWait, Host, Id, Kthread, Ns, Op, Pass, SocketWait, Softirq, Worker,
};

use crate::host::round::Round;
use crate::host::step::Exec;
use crate::sched::id::Role;
use crate::sched::thread::Program;

/// A pass of the core that a thread is in.
#[derive(Debug)]
pub(super) enum ThreadPass<'a> {
    Softirq(Softirq<'a, ()>),
    Kthread(Kthread<'a, ()>),
    Worker(Worker<'a, ()>),
    Epoll(EpollWait<'a, ()>),
    Socket(SocketWait<'a, ()>),
}

impl<'a> ThreadPass<'a> {
    /// The pass that a thread of the kernel's own runs for ever; `None` for an application's.
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

/// What a thread executes, and how far it has come.
#[derive(Debug)]
pub(crate) struct Execution<'a> {
    /// `None` while it runs, once it has ended, and for a thread of the kernel.
    pub(super) program: Option<Box<dyn Program>>,
    pub(super) pass: Option<ThreadPass<'a>>,
    pub(super) exec: Exec,
    pub(super) round: Round,
    /// User time that a fault adds before the program's next act.
    pub(super) stall: Ns,
}

impl<'a> Execution<'a> {
    fn new(program: Option<Box<dyn Program>>, pass: Option<ThreadPass<'a>>) -> Self {
        let (round, exec) = (Round::default(), Exec::START);
        Execution { program, pass, exec, round, stall: 0 }
    }

    /// A program of an application, from its beginning.
    pub(crate) fn of_program(program: Box<dyn Program>) -> Self {
        Execution::new(Some(program), None)
    }

    /// The loop of a thread of the kernel, from its beginning.
    pub(crate) fn of_kernel(role: Role, host: &'a Host<()>) -> Self {
        Execution::new(None, ThreadPass::of(role, host))
    }

    /// Begins the kernel thread's loop again.
    pub(super) fn restart(&mut self, role: Role, host: &'a Host<()>) {
        self.pass = ThreadPass::of(role, host);
        self.exec = Exec::START;
    }

    /// Whether the thread is in a pass: waiting, or polling.
    #[inline]
    pub(crate) fn in_pass(&self) -> bool {
        self.pass.is_some()
    }

    /// The thread has used so much CPU time with nothing on top of it.
    #[inline]
    pub(crate) fn used(&mut self, time: Ns) {
        self.round.used(time);
    }

    /// The round of its loop has found a frame or an event.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.round.found();
    }

    /// Begins another round of the loop. Returns the CPU time of the last one that was spent polling in vain.
    #[inline]
    pub(crate) fn next_round(&mut self) -> Ns {
        self.round.begins()
    }

    /// Adds user time before the program's next act.
    pub(crate) fn stall(&mut self, time: Ns) {
        self.stall = time;
    }
}
