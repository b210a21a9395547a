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
    id: CpuId,
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
    resched: bool,
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
        let (id, cpu) = (cpu, host.cpu(cpu));
        Softirq {
            id,
            cpu,
            context,
            at: At::Start,
            allowed: VECTORS,
            vectors: 0,
            net: NetRx::new(host, cpu, context),
            started: 0,
            passes: 0,
            resched: false,
            held: false,
            stopping: false,
            owed: Owed::default(),
        }
    }

    /// The CPU whose softirqs these are; another may run them.
    pub fn cpu(&self) -> CpuId {
        self.id
    }

    /// Tells ksoftirqd's loop to end: with [`Op::Done`] in place of its next sleep.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Tells the dispatch that another thread wants the CPU, as [`Did::Resched`] does where a step's
    /// answer has room for it: it does not restart.
    pub fn need_resched(&mut self) {
        self.resched = true;
    }

    /// What may run here, by the rules of the CPU; and whether ksoftirqd is to be woken for the
    /// rest.
    #[inline]
    fn rules(&self) -> (u32, bool) {
        // Nearly always, and then nothing else need be asked.
        if self.cpu.runs_all_inline() {
            return (VECTORS, false);
        }
        let competition = match self.context {
            Context::Ksoftirqd => return (VECTORS, false),
            Context::Interrupt { competition } => competition,
            // An application that runs softirqs itself is asking for its own packets.
            Context::Application => false,
        };
        let policy = self.cpu.policy();
        let runnable = self.cpu.ksoftirqd_runnable();
        if runnable && !policy.inline_while_ksoftirqd {
            return (0, false);
        }
        match policy.net_softirq {
            NetSoftirq::Inline => (VECTORS, false),
            NetSoftirq::Ksoftirqd if competition || runnable => (VECTORS & !NET, true),
            NetSoftirq::Ksoftirqd => (VECTORS, false),
            NetSoftirq::KsoftirqdAsPosted if runnable => (0, false),
            NetSoftirq::KsoftirqdAsPosted if self.cpu.pending() & NET_AS_POSTED != 0 => (0, true),
            NetSoftirq::KsoftirqdAsPosted => (VECTORS, false),
        }
    }

    #[inline]
    fn start(&mut self, now: Ns) -> Option<Op> {
        let (allowed, defers) = self.rules();
        self.allowed = allowed;
        self.started = now;
        self.passes = 0;
        self.resched = false;
        self.held = false;
        self.at = At::Ended;
        if let Some(vectors) = self.cpu.begin(allowed) {
            self.vectors = vectors;
            self.at = At::Vectors;
        }
        let wake = defers && self.cpu.pending() & !allowed != 0 && self.cpu.wake_ksoftirqd();
        wake.then_some(Op::Wake(Task::Ksoftirqd(self.id)))
    }

    /// Whether this dispatch may go on.
    fn within_limits(&self, now: Ns) -> bool {
        let limits = self.cpu.limits();
        now.saturating_sub(self.started) < limits.dispatch_time
            && self.passes < limits.dispatch_passes
    }

    /// Runs vectors, and restarts or leaves after the last one of a pass.
    #[inline]
    fn run(&mut self, now: Ns) -> Option<Op> {
        loop {
            if self.vectors == 0 {
                self.passes += 1;
                match self.cpu.end(self.allowed) {
                    Err(pending) if self.restarts(pending, now) => {
                        self.vectors = self.cpu.take_pending(self.allowed);
                        continue;
                    }
                    Err(_) => return self.leave(self.cpu.end_to_ksoftirqd()),
                    Ok(left) => return self.leave(left != 0 && self.cpu.wake_ksoftirqd()),
                }
            }
            let vector = self.vectors.trailing_zeros();
            self.vectors &= self.vectors - 1;
            if vector != Vector::NetRx as u32 {
                return Some(Op::Vector(self.id, Vector::ALL[vector as usize]));
            }
            self.at = At::NetRx;
            match self.net.begin(now) {
                Ok(op) => return Some(op),
                Err(round) => self.round_ended(round),
            }
        }
    }

    #[inline]
    fn round_ended(&mut self, round: Round) {
        self.at = At::Vectors;
        self.held = round == Round::Holding;
    }

    /// Whether this dispatch goes on with what is pending.
    fn restarts(&self, pending: u32, now: Ns) -> bool {
        let only_holders = self.held && pending & !Vector::NetRx.bit() == 0;
        !self.resched && !only_holders && self.within_limits(now)
    }

    /// Ends; ksoftirqd need not wake itself.
    #[inline]
    fn leave(&mut self, wake: bool) -> Option<Op> {
        self.at = At::Ended;
        let wake = wake && self.context != Context::Ksoftirqd;
        wake.then_some(Op::Wake(Task::Ksoftirqd(self.id)))
    }

    /// After a dispatch: inline ones end, ksoftirqd yields or sleeps.
    fn ended(&mut self) -> Option<Op> {
        if self.context != Context::Ksoftirqd {
            return None;
        }
        self.at = At::Start;
        if self.cpu.ksoftirqd_sleeps() {
            return (!self.stopping).then_some(Op::Sleep(NEVER));
        }
        Some(if self.held { Op::Yield } else { Op::Resched })
    }

    /// The steps outside the network softirq; `None` after the last.
    #[inline]
    fn between_rounds(&mut self, now: Ns) -> Option<Op> {
        let mut step = None;
        if self.at == At::Start {
            step = self.start(now);
        }
        if step.is_none() && self.at == At::Vectors {
            step = self.run(now);
        }
        step.or_else(|| self.ended())
    }
}

impl<Q> Pass<Q> for Softirq<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        self.owed.answered();
        if did == Did::Resched {
            self.resched = true;
        }
        if self.at == At::NetRx {
            match self.net.next(now, did) {
                Ok(op) => return self.owed.gives(op),
                Err(round) => self.round_ended(round),
            }
        }
        let op = self.between_rounds(now).unwrap_or(Op::Done);
        self.owed.gives(op)
    }

    fn queue(&mut self) -> &mut Q {
        self.net.queue()
    }
}

impl<Q> Drop for Softirq<'_, Q> {
    /// A context that unwound leaves nothing running.
    #[inline]
    fn drop(&mut self) {
        if matches!(self.at, At::Vectors | At::NetRx) {
            self.net.abandon();
            // The vectors of this pass that were still to run are pending again.
            self.cpu.abandon(self.vectors);
        }
    }
}
