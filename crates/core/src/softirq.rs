//! Softirq dispatch: which vectors run inline, and which are left to ksoftirqd.
//!
//! [`CpuPolicy`](napkin_policy::CpuPolicy) selects the rules. Since Linux 6.5 pending softirqs run inline even
//! while ksoftirqd is runnable; from 4.9 to 6.4 they did not. The 2018 proposal leaves the network vectors to
//! ksoftirqd, either as posted (its mask names HI and TIMER, and defers the whole pending set) or as meant (the
//! network vectors alone, and only while another thread wants the CPU).

use crate::contract::PendingStep;
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
    /// The dispatch is over. An inline one is done; ksoftirqd's loop has yet to sleep or yield.
    Ended,
    /// Before a dispatch.
    Start,
}

/// One inline dispatch of a CPU's softirqs, after an interrupt or in an application's wait; or the loop of
/// ksoftirqd, which ends only after [`Softirq::stop`].
///
/// A dispatch restarts while vectors become pending, for at most [`dispatch_time`](crate::Limits::dispatch_time)
/// and [`dispatch_passes`](crate::Limits::dispatch_passes), and not once another thread wants the CPU
/// ([`Did::Resched`]); then ksoftirqd takes over.
#[derive(Debug)]
pub struct Softirq<'a, Q> {
    at: At,
    /// Vectors this dispatch may run: all, unless the CPU's policy leaves some to ksoftirqd.
    allowed: u32,
    /// Vectors of this pass still to run.
    vectors: u32,
    net: NetRx<'a, Q>,
    started: Ns,
    passes: u8,
    /// Whether the last network softirq left only instances in *hold* without work.
    held: bool,
    stopping: bool,
    pending_step: PendingStep,
}

impl<'a, Q> Softirq<'a, Q> {
    /// A dispatch in the given context.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[inline]
    pub fn new(host: &'a Host<Q>, cpu: CpuId, context: Context) -> Self {
        host.contract.begin_softirq(cpu, context);
        Softirq {
            at: At::Start,
            allowed: VECTORS,
            vectors: 0,
            net: NetRx::new(host, host.cpu(cpu), context),
            started: 0,
            passes: 0,
            held: false,
            stopping: false,
            pending_step: PendingStep::default(),
        }
    }

    /// The CPU whose softirqs are run; the calling thread may be on another.
    pub fn cpu(&self) -> CpuId {
        self.net.cpu.id
    }

    /// Makes ksoftirqd's loop end with [`Op::Done`] in place of its next sleep.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Reports that another thread wants the CPU, so that the dispatch does not restart. The same as answering
    /// [`Did::Resched`], for steps whose answer carries a result. Between two dispatches of ksoftirqd it applies to
    /// the next one.
    pub fn need_resched(&mut self) {
        self.net.turn.set_resched(true);
    }

    /// The vectors that may run here by the CPU's policy. The rest is left to ksoftirqd.
    fn rules(&self) -> u32 {
        let competition = match self.net.context {
            Context::Ksoftirqd => return VECTORS,
            Context::Interrupt { competition } => competition,
            // An application that runs softirqs itself asks for its own packets: that is no competition.
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

    /// Begins a dispatch and returns the vectors of its first pass, 0 if there is none. First wakes ksoftirqd
    /// (`Err`) for vectors that may not run here.
    #[inline(always)]
    fn start(&mut self, now: Ns) -> Result<u32, Op> {
        self.started = now;
        // The common case, in which no rule has to be evaluated.
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

    /// Whether this dispatch is within its limits of time and passes.
    fn within_limits(&self, now: Ns) -> bool {
        let limits = self.net.cpu.limits();
        now.saturating_sub(self.started) < limits.dispatch_time
            && self.passes < limits.dispatch_passes
    }

    /// Runs vectors, and restarts or ends after the last one of a pass; `None` once it has ended.
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

    /// Whether this dispatch, at the end of a pass, restarts for the vectors that are pending.
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
        self.pending_step.answered();
        let at = if self.net.turn.has_claim() {
            if let Some(op) = self.net.next(now, did) {
                return self.pending_step.returned(op);
            }
            At::NetRx
        } else {
            // At `Start`, `Resched` answers the yield after the last dispatch, and does not concern the next one.
            if did == Did::Resched && self.at != At::Start {
                self.net.turn.set_resched(true);
            }
            self.at
        };
        let op = match self.between_polls(now, at) {
            Some(op) => op,
            None => self.ended(),
        };
        self.pending_step.returned(op)
    }

    fn queue(&mut self) -> &mut Q {
        self.net.turn.queue()
    }
}

impl<Q> Drop for Softirq<'_, Q> {
    /// Cleans up after a dispatch that unwound: puts back its instances and stops being the CPU's runner.
    #[inline]
    fn drop(&mut self) {
        if matches!(self.at, At::Vectors | At::NetRx) {
            self.net.abandon();
            // Also makes the remaining vectors of this pass pending again.
            self.net.cpu.abandon(self.vectors);
        }
    }
}
