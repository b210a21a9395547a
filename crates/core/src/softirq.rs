//! Softirq dispatch: which vectors run here and now, and what is left to ksoftirqd.
//!
//! Rules of three eras, chosen by [`CpuPolicy`](napkin_policy::CpuPolicy): since Linux 6.5 pending softirqs run
//! inline even while ksoftirqd is runnable; from 4.9 to 6.4 they did not; and the 2018 proposal
//! leaves the network vectors to ksoftirqd, as posted (its mask names HI and TIMER, and takes the
//! whole pending set with it) and as meant (the network vectors alone, and only while another
//! thread wants the CPU).

use crate::contract::Owed;
use crate::cpu::{Context, NET, NET_AS_POSTED, VECTORS};
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
    at: At,
    /// Vectors this dispatch may run: all, unless the CPU's rules leave some to ksoftirqd, which ends it.
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
        Softirq {
            at: At::Start,
            allowed: VECTORS,
            vectors: 0,
            net: NetRx::new(host, host.cpu(cpu), context),
            started: 0,
            passes: 0,
            held: false,
            stopping: false,
            owed: Owed::default(),
        }
    }

    /// The CPU whose softirqs these are; another may run them.
    pub fn cpu(&self) -> CpuId {
        self.net.cpu.id
    }

    /// Tells ksoftirqd's loop to end: with [`Op::Done`] in place of its next sleep.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Tells the dispatch that another thread wants the CPU, as [`Did::Resched`] does where a step's
    /// answer has room for it: it does not restart. Between two dispatches of ksoftirqd it is said of
    /// the next one.
    pub fn need_resched(&mut self) {
        self.net.turn.set_resched(true);
    }

    /// What may run here, by the rules of the CPU. The rest is ksoftirqd's.
    fn rules(&self) -> u32 {
        let competition = match self.net.context {
            Context::Ksoftirqd => return VECTORS,
            Context::Interrupt { competition } => competition,
            // An application that runs softirqs itself is asking for its own packets.
            Context::Application => false,
        };
        let policy = self.net.cpu.policy();
        let runnable = self.net.cpu.ksoftirqd_runnable();
        if runnable && !policy.inline_while_ksoftirqd {
            return 0;
        }
        match policy.net_softirq {
            NetSoftirq::Ksoftirqd if competition || runnable => VECTORS & !NET,
            NetSoftirq::KsoftirqdAsPosted
                if runnable || self.net.cpu.pending() & NET_AS_POSTED != 0 =>
            {
                0
            }
            _ => VECTORS,
        }
    }

    /// Begins a dispatch: the vectors of its first pass; 0 if there is none. Wakes ksoftirqd first for
    /// what may not run here.
    #[inline(always)]
    fn start(&mut self, now: Ns) -> Result<u32, Op> {
        self.started = now;
        // Nearly always, and then nothing else need be asked.
        if self.net.cpu.runs_all_inline() {
            return Ok(self.net.cpu.begin(VECTORS));
        }
        let allowed = self.rules();
        self.allowed = allowed;
        let vectors = self.net.cpu.begin(allowed);
        if allowed != VECTORS
            && self.net.cpu.pending() & !allowed != 0
            && self.net.cpu.wake_ksoftirqd()
        {
            self.vectors = vectors;
            self.at = if vectors == 0 { At::Ended } else { At::Vectors };
            return Err(Op::Wake(Task::Ksoftirqd(self.net.cpu.id)));
        }
        Ok(vectors)
    }

    /// Whether this dispatch may go on.
    fn within_limits(&self, now: Ns) -> bool {
        let limits = self.net.cpu.limits();
        now.saturating_sub(self.started) < limits.dispatch_time
            && self.passes < limits.dispatch_passes
    }

    /// Runs vectors, and restarts or leaves after the last one of a pass; `None` where it has left.
    #[inline(always)]
    fn run(&mut self, now: Ns, mut vectors: u32) -> Option<Op> {
        loop {
            while vectors != 0 {
                let vector = vectors.trailing_zeros();
                vectors &= vectors - 1;
                self.vectors = vectors;
                if vector != Vector::NetRx as u32 {
                    self.at = At::Vectors;
                    return Some(Op::Vector(self.net.cpu.id, Vector::ALL[vector as usize]));
                }
                self.at = At::NetRx;
                match self.net.begin(now) {
                    Ok(op) => return Some(op),
                    Err(round) => self.held = round == Round::Holding,
                }
            }
            let wake = match self.net.cpu.end(self.allowed) {
                Err(pending) if self.restarts(pending, now) => {
                    vectors = self.net.cpu.take_pending(self.allowed);
                    continue;
                }
                Err(_) => self.net.cpu.end_to_ksoftirqd(),
                Ok(left) => left != 0 && self.net.cpu.wake_ksoftirqd(),
            };
            self.at = At::Ended;
            // ksoftirqd need not wake itself.
            if wake && self.net.context != Context::Ksoftirqd {
                return Some(Op::Wake(Task::Ksoftirqd(self.net.cpu.id)));
            }
            return None;
        }
    }

    /// Whether this dispatch, at the end of a pass, goes on with what is pending.
    fn restarts(&mut self, pending: u32, now: Ns) -> bool {
        self.passes += 1;
        let only_holders = self.held && pending & !Vector::NetRx.bit() == 0;
        !self.net.turn.resched() && !only_holders && self.within_limits(now)
    }

    /// After a dispatch: inline ones end, ksoftirqd yields or sleeps.
    #[inline(always)]
    fn ended(&mut self) -> Op {
        if self.net.context != Context::Ksoftirqd {
            self.at = At::Ended;
            return Op::Done;
        }
        self.at = At::Start;
        self.passes = 0;
        self.net.turn.set_resched(false);
        let held = core::mem::take(&mut self.held);
        match (self.net.cpu.ksoftirqd_sleeps(), held) {
            (true, _) if self.stopping => Op::Done,
            (true, _) => Op::Sleep(NEVER),
            (false, true) => Op::Yield,
            (false, false) => Op::Resched,
        }
    }

    /// The steps outside the poll of an instance; `None` where the dispatch is over.
    #[inline(always)]
    fn between_polls(&mut self, now: Ns, at: At) -> Option<Op> {
        let vectors = match at {
            At::NetRx => match self.net.go_on(now) {
                Ok(op) => return Some(op),
                Err(round) => {
                    self.held = round == Round::Holding;
                    self.vectors
                }
            },
            At::Start => match self.start(now) {
                Ok(0) => return None,
                Ok(vectors) => vectors,
                Err(wake) => return Some(wake),
            },
            At::Vectors => self.vectors,
            At::Ended => return None,
        };
        self.run(now, vectors)
    }
}

impl<Q> Pass<Q> for Softirq<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        self.owed.answered();
        let at = if self.net.turn.has_claim() {
            if let Some(op) = self.net.next(now, did) {
                return self.owed.gives(op);
            }
            At::NetRx
        } else {
            // Before a dispatch it answers the step that gave way after the last one.
            if did == Did::Resched && self.at != At::Start {
                self.net.turn.set_resched(true);
            }
            self.at
        };
        let op = match self.between_polls(now, at) {
            Some(op) => op,
            None => self.ended(),
        };
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
            self.net.abandon();
            // The vectors of this pass that were still to run are pending again.
            self.net.cpu.abandon(self.vectors);
        }
    }
}
