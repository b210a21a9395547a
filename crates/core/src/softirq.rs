//! Softirq dispatch: which vectors run here and now, and what is left to ksoftirqd.
//!
//! Rules of three eras, chosen by [`CpuPolicy`](napkin_policy::CpuPolicy): since Linux 6.5 pending softirqs run
//! inline even while ksoftirqd is runnable; from 4.9 to 6.4 they did not; and the 2018 proposal
//! leaves the network vectors to ksoftirqd, as posted (its mask names HI and TIMER, and takes the
//! whole pending set with it) and as meant (the network vectors alone, and only while another
//! thread wants the CPU).

use crate::contract::Owed;
use crate::cpu::{Context, Cpu, NET, NET_AS_POSTED, VECTORS};
use crate::host::Host;
use crate::instance::CpuId;
use crate::net_rx::{NetRx, Round};
use crate::step::{Did, Op, Pass, Task};
use crate::vector::Vector;
use crate::{NEVER, Ns};
use napkin_policy::NetSoftirq;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the network softirq.
    NetRx,
    /// Between two vectors of a pass.
    Vectors,
    /// The dispatch is over: an inline one for good, ksoftirqd's but for its sleep.
    Ended,
    /// Before a dispatch.
    Start,
}

/// One dispatch of a CPU's softirqs: inline after an interrupt or in an application's wait, which
/// ends; or the loop of ksoftirqd, which ends only when told ([`Softirq::stop`]).
///
/// A dispatch restarts while vectors become pending, for at most
/// [`dispatch_time`](crate::Limits::dispatch_time) and
/// [`dispatch_passes`](crate::Limits::dispatch_passes), and not once another thread wants the CPU
/// ([`Did::Resched`]); then ksoftirqd goes on.
#[derive(Debug)]
pub struct Softirq<'a, Q> {
    cpu: &'a Cpu,
    context: Context,
    at: At,
    /// Vectors this dispatch may run.
    allowed: u32,
    /// Vectors of this pass still to run.
    vectors: u32,
    net: NetRx<'a, Q>,
    started: Ns,
    passes: u8,
    /// The last network softirq met nothing but holders without work.
    held: bool,
    stopping: bool,
    owed: Owed,
}

impl<'a, Q> Softirq<'a, Q> {
    /// A dispatch in the given context.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[inline]
    pub fn new(host: &'a Host<Q>, cpu: CpuId, context: Context) -> Self {
        host.contract.softirq(cpu, context);
        let cpu = host.cpu(cpu);
        Softirq {
            cpu,
            context,
            at: At::Start,
            allowed: VECTORS,
            vectors: 0,
            net: NetRx::new(host, context.owner()),
            started: 0,
            passes: 0,
            held: false,
            stopping: false,
            owed: Owed::default(),
        }
    }

    /// The CPU whose softirqs these are; another may run them.
    pub fn cpu(&self) -> CpuId {
        self.cpu.id
    }

    /// Tells ksoftirqd's loop to end: with [`Op::Done`] in place of its next sleep.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Tells the dispatch that another thread wants the CPU, as [`Did::Resched`] does where a step's
    /// answer has room for it: it does not restart.
    pub fn need_resched(&mut self) {
        self.net.turn.set_resched(true);
    }

    /// What may run here, by the rules of the CPU. The rest is ksoftirqd's.
    #[inline]
    fn rules(&self) -> u32 {
        // Nearly always, and then nothing else need be asked.
        if self.cpu.runs_all_inline() {
            return VECTORS;
        }
        let competition = match self.context {
            Context::Ksoftirqd => return VECTORS,
            Context::Interrupt { competition } => competition,
            // An application that runs softirqs itself is asking for its own packets.
            Context::Application => false,
        };
        let policy = self.cpu.policy();
        let runnable = self.cpu.ksoftirqd_runnable();
        if runnable && !policy.inline_while_ksoftirqd {
            return 0;
        }
        match policy.net_softirq {
            NetSoftirq::Ksoftirqd if competition || runnable => VECTORS & !NET,
            NetSoftirq::KsoftirqdAsPosted
                if runnable || self.cpu.pending() & NET_AS_POSTED != 0 =>
            {
                0
            }
            _ => VECTORS,
        }
    }

    /// Begins a dispatch, and wakes ksoftirqd for what it may not run.
    #[inline]
    fn start(&mut self, now: Ns) -> Option<Op> {
        self.allowed = self.rules();
        self.started = now;
        self.net.turn.set_resched(false);
        self.at = At::Ended;
        if let Some(vectors) = self.cpu.begin(self.allowed) {
            self.vectors = vectors;
            self.at = At::Vectors;
        }
        let rest = self.allowed != VECTORS && self.cpu.pending() & !self.allowed != 0;
        (rest && self.cpu.wake_ksoftirqd()).then_some(Op::Wake(Task::Ksoftirqd(self.cpu.id)))
    }

    /// Whether this dispatch may go on.
    fn within_limits(&self, now: Ns) -> bool {
        let limits = self.cpu.limits();
        now.saturating_sub(self.started) < limits.dispatch_time
            && self.passes < limits.dispatch_passes
    }

    /// Runs vectors, and restarts or leaves after the last one of a pass.
    #[inline]
    fn run(&mut self, now: Ns) -> Op {
        self.at = At::Vectors;
        loop {
            while self.vectors != 0 {
                let vector = self.vectors.trailing_zeros();
                self.vectors &= self.vectors - 1;
                if vector != Vector::NetRx as u32 {
                    return Op::Vector(self.cpu.id, Vector::ALL[vector as usize]);
                }
                match self.net.begin(self.cpu, now) {
                    Ok(op) => {
                        self.at = At::NetRx;
                        return op;
                    }
                    Err(round) => self.held = round == Round::Holding,
                }
            }
            self.passes += 1;
            let wake = match self.cpu.end(self.allowed) {
                Err(pending) if self.restarts(pending, now) => {
                    self.vectors = self.cpu.take_pending(self.allowed);
                    continue;
                }
                Err(_) => self.cpu.end_to_ksoftirqd(),
                Ok(left) => left != 0 && self.cpu.wake_ksoftirqd(),
            };
            self.at = At::Ended;
            // ksoftirqd need not wake itself.
            if wake && self.context != Context::Ksoftirqd {
                return Op::Wake(Task::Ksoftirqd(self.cpu.id));
            }
            return self.ended();
        }
    }

    /// Whether this dispatch goes on with what is pending.
    fn restarts(&self, pending: u32, now: Ns) -> bool {
        let only_holders = self.held && pending & !Vector::NetRx.bit() == 0;
        !self.net.turn.resched() && !only_holders && self.within_limits(now)
    }

    /// After a dispatch: inline ones end, ksoftirqd yields or sleeps.
    fn ended(&mut self) -> Op {
        if self.context != Context::Ksoftirqd {
            return Op::Done;
        }
        self.at = At::Start;
        self.passes = 0;
        let held = core::mem::take(&mut self.held);
        match (self.cpu.ksoftirqd_sleeps(), held) {
            (true, _) if self.stopping => Op::Done,
            (true, _) => Op::Sleep(NEVER),
            (false, true) => Op::Yield,
            (false, false) => Op::Resched,
        }
    }

    /// The steps outside the poll of an instance.
    #[inline]
    fn between_polls(&mut self, now: Ns, did: Did) -> Op {
        if did == Did::Resched {
            self.net.turn.set_resched(true);
        }
        match self.at {
            At::Start => {
                if let Some(wake) = self.start(now) {
                    return wake;
                }
                if self.at == At::Ended {
                    return self.ended();
                }
            }
            At::NetRx => match self.net.go_on(self.cpu, now) {
                Ok(op) => return op,
                Err(round) => self.held = round == Round::Holding,
            },
            At::Vectors => {}
            At::Ended => return self.ended(),
        }
        self.run(now)
    }
}

impl<Q> Pass<Q> for Softirq<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        self.owed.answered();
        if self.net.turn.has_claim()
            && let Some(op) = self.net.next(self.cpu, self.context, now, did)
        {
            return self.owed.gives(op);
        }
        let op = self.between_polls(now, did);
        self.owed.gives(op)
    }

    fn queue(&mut self) -> &mut Q {
        self.net.turn.queue()
    }
}

impl<Q> Drop for Softirq<'_, Q> {
    /// A context that unwound leaves nothing running.
    #[inline]
    fn drop(&mut self) {
        if matches!(self.at, At::Vectors | At::NetRx) {
            self.net.abandon(self.cpu);
            // The vectors of this pass that were still to run are pending again.
            self.cpu.abandon(self.vectors);
        }
    }
}
