//! Softirq dispatch: which vectors run here and now, and what is left to ksoftirqd.
//!
//! Rules of three eras, chosen by [`CpuPolicy`](crate::policy::CpuPolicy): since Linux 6.5 pending softirqs run
//! inline even while ksoftirqd is runnable; from 4.9 to 6.4 they did not; and the 2018 proposal
//! leaves the network vectors to ksoftirqd, as posted (its mask names HI and TIMER, and takes the
//! whole pending set with it) and as meant (the network vectors alone, and only while another
//! thread wants the CPU).

use crate::cpu::{Context, Cpu, NET, NET_AS_POSTED, VECTORS, Vector};
use crate::host::{From, Host};
use crate::instance::CpuId;
use crate::net_rx::{NetRx, Round};
use crate::policy::NetSoftirq;
use crate::step::{Did, Op, Pass, Task};
use crate::{NEVER, Ns};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Vectors,
    Slept,
    Ended,
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
    host: &'a Host<Q>,
    id: CpuId,
    cpu: &'a Cpu,
    context: Context,
    at: At,
    /// Vectors this dispatch may run.
    allowed: u32,
    /// Vectors of this pass still to run.
    vectors: u32,
    net: Option<NetRx<'a, Q>>,
    started: Ns,
    passes: u8,
    resched: bool,
    /// The last network softirq met nothing but holders without work.
    held: bool,
    running: bool,
    stopping: bool,
}

impl<'a, Q> Softirq<'a, Q> {
    /// A dispatch in the given context.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[inline]
    pub fn new(host: &'a Host<Q>, cpu: CpuId, context: Context) -> Self {
        Softirq {
            host,
            id: cpu,
            cpu: host.cpu(cpu),
            context,
            at: At::Start,
            allowed: VECTORS,
            vectors: 0,
            net: None,
            started: 0,
            passes: 0,
            resched: false,
            held: false,
            running: false,
            stopping: false,
        }
    }

    /// Tells ksoftirqd's loop to end: with [`Op::Done`] in place of its next sleep.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// What may run here, by the rules of the CPU; and whether ksoftirqd is to be woken for the
    /// rest.
    fn rules(&self) -> (u32, bool) {
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

    fn start(&mut self, now: Ns) -> Op {
        let (allowed, defers) = self.rules();
        self.allowed = allowed;
        self.started = now;
        self.passes = 0;
        self.resched = false;
        self.held = false;
        self.at = At::Ended;
        if let Some(vectors) = self.cpu.begin(allowed) {
            self.running = true;
            self.vectors = vectors;
            self.at = At::Vectors;
        }
        if defers && self.cpu.pending() & !allowed != 0 && self.cpu.wake_ksoftirqd() {
            return Op::Wake(Task::Ksoftirqd(self.id));
        }
        Op::Done
    }

    /// Whether this dispatch may go on.
    fn within_limits(&self, now: Ns) -> bool {
        let limits = self.cpu.limits();
        now.saturating_sub(self.started) < limits.dispatch_time
            && self.passes < limits.dispatch_passes
    }

    /// After the last vector of a pass: restart, or leave.
    fn pass_ended(&mut self, now: Ns) -> Option<Op> {
        self.passes += 1;
        loop {
            let pending = self.cpu.pending() & self.allowed;
            let only_holders = self.held && pending & !Vector::NetRx.bit() == 0;
            if pending != 0 && !self.resched && !only_holders && self.within_limits(now) {
                self.vectors = self.cpu.take_pending(self.allowed);
                return None;
            }
            let wake = if pending != 0 {
                self.cpu.end_to_ksoftirqd()
            } else {
                match self.cpu.end(self.allowed) {
                    // Pending since we looked.
                    None => continue,
                    Some(0) => false,
                    Some(_) => self.cpu.wake_ksoftirqd(),
                }
            };
            self.at = At::Ended;
            self.running = false;
            // ksoftirqd need not wake itself.
            let wake = wake && self.context != Context::Ksoftirqd;
            return wake.then_some(Op::Wake(Task::Ksoftirqd(self.id)));
        }
    }

    fn from(&self) -> From {
        match self.context {
            Context::Interrupt { .. } => From::Interrupt,
            Context::Application => From::Application,
            Context::Ksoftirqd => From::Thread,
        }
    }

    /// After a dispatch: inline ones end, ksoftirqd yields or sleeps.
    fn ended(&mut self) -> Op {
        if self.context != Context::Ksoftirqd {
            return Op::Done;
        }
        self.at = At::Slept;
        if self.cpu.ksoftirqd_sleeps() {
            return if self.stopping { Op::Done } else { Op::Sleep(NEVER) };
        }
        if self.held { Op::Yield } else { Op::Resched }
    }
}

impl<Q> Pass<Q> for Softirq<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        if did == Did::Resched {
            self.resched = true;
        }
        loop {
            match self.at {
                At::Start | At::Slept => match self.start(now) {
                    Op::Done if self.at == At::Ended => {}
                    Op::Done => continue,
                    op => return op,
                },
                At::Vectors => {
                    if let Some(net) = &mut self.net {
                        match net.next(now, did) {
                            Ok(op) => return op,
                            Err(round) => self.held = round == Round::Holding,
                        }
                        self.net = None;
                    }
                    if self.vectors == 0 {
                        if let Some(op) = self.pass_ended(now) {
                            return op;
                        }
                        continue;
                    }
                    let vector = Vector::ALL[self.vectors.trailing_zeros() as usize];
                    self.vectors &= !vector.bit();
                    if vector != Vector::NetRx {
                        return Op::Vector(self.id, vector);
                    }
                    let (owner, from) = (self.context.owner(), self.from());
                    self.net = Some(NetRx::new(self.host, self.id, owner, from, now));
                    continue;
                }
                At::Ended => {}
            }
            return self.ended();
        }
    }

    fn queue(&mut self) -> &mut Q {
        match &mut self.net {
            Some(net) => net.queue(),
            None => panic!("no step that touches a queue is under way"),
        }
    }
}

impl<Q> Drop for Softirq<'_, Q> {
    /// A context that unwound leaves nothing running.
    fn drop(&mut self) {
        if self.running {
            self.net = None;
            // The vectors of this pass that were still to run are pending again.
            self.cpu.abandon(self.vectors);
        }
    }
}
