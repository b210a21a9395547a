//! The loops of the threads that poll: an instance's own (2020, 2025), and a worker of the pool.

use crate::claim::Claim;
use crate::counters::Owner;
use crate::host::Host;
use crate::idle::IdleCycle;
use crate::instance::{Id, Instance};
use crate::race::{self, Race};
use crate::raised_from::RaisedFrom;
use crate::state::{DISABLE, SCHED, SCHED_THREADED, THREADED};
use crate::step::{Did, Op, Pass, Task};
use crate::turn::{End, Next, Turn};
use crate::{NEVER, Ns};
use napkin_policy::Threaded;

/// The loop of one instance's own thread, `napi/<dev>-<id>`.
///
/// It acts on `SCHED_THREADED` alone, never on `SCHED` (race R3). In threaded busy poll it takes the instance at
/// the first schedule and then keeps it; interrupts stay masked. It ends, with [`Op::Done`], once the mode is no
/// longer the thread's and no token is left for it.
///
/// The mode may be set back meanwhile ([`Host::set`]). So a thread whose pass is done first lets the world know
/// that it has ended, so that a wake-up starts it anew, and then reads the state once more: if the mode is the
/// thread's again or a token is left for it ([`THREADED`],
/// [`SCHED_THREADED`]), it continues with a new pass. Either step alone loses a
/// wake-up.
#[derive(Debug)]
pub struct Kthread<'a, Q> {
    host: &'a Host<Q>,
    instance: &'a Instance<Q>,
    turn: Turn<'a, Q>,
}

impl<'a, Q> Kthread<'a, Q> {
    /// The loop of the thread of `id`. One is enough; of several, one takes each schedule.
    ///
    /// # Panics
    /// If there is no such instance; in debug builds, if it begins inside the step that wakes it.
    pub fn new(host: &'a Host<Q>, id: Id) -> Self {
        host.contract.begin_task(Task::Napi(id));
        Kthread { host, instance: host.instance(id), turn: Turn::idle(Owner::Thread) }
    }

    /// The cycle that the thread repeats in threaded busy poll while nothing arrives. `Some` only when `next` has
    /// just returned the [`Op::Poll`] that begins the cycle.
    pub fn idle_cycle(&self) -> Option<IdleCycle> {
        self.turn.idle_cycle(Owner::Thread, NEVER, Op::Pause)
    }
}

impl<Q> Pass<Q> for Kthread<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        if self.turn.handle_empty_poll(now, did, Owner::Thread) {
            return Op::Pause;
        }
        self.turn.poll(Owner::Thread).unwrap_or_else(|| self.step(now, did))
    }

    fn queue(&mut self) -> &mut Q {
        self.turn.queue()
    }
}

impl<Q> Kthread<'_, Q> {
    /// All steps except those of an empty spin.
    #[inline(never)]
    fn step(&mut self, now: Ns, did: Did) -> Op {
        loop {
            if !self.turn.has_claim() {
                let instance = self.instance;
                let state = instance.state.load();
                if race::on(Race::ThreadQuitsOnDisable) && state.has(DISABLE) {
                    return Op::Done;
                }
                let mine = state.has(SCHED_THREADED) && instance.state.adopt();
                if mine || race::on(Race::ThreadTestsSched) && state.has(SCHED) {
                    let claim = Claim::from_token(self.host, instance);
                    return self.turn.begin(claim, instance.settings.weight());
                }
                let stays = race::on(Race::StopWaitsForSched) && state.has(SCHED);
                return if state.has(THREADED) || stays { Op::Sleep(NEVER) } else { Op::Done };
            }
            let end = match self.turn.next(now, did, Owner::Thread) {
                Next::Op(op) => return op,
                Next::End(end) => end,
            };
            match end {
                End::Released => {}
                End::Again | End::Scheduled if self.turn.work().any() => {
                    self.turn.prepare_next();
                    return Op::Resched;
                }
                End::Again | End::Scheduled => {
                    self.turn.prepare_next();
                    let spins = self.instance.state.load().mode() == Threaded::BusyPoll;
                    return if spins { Op::Pause } else { Op::Resched };
                }
                End::Held => {
                    self.turn.prepare_next();
                    return Op::Yield;
                }
                End::HandOver => {
                    if let Some(claim) = self.turn.take_claim() {
                        claim.instance().counters.handovers.add(1);
                        if let Some(op) = self.host.route(claim, RaisedFrom::Thread) {
                            return op;
                        }
                    }
                }
            }
        }
    }
}

/// The loop of one worker of the shared, unbound pool (compared in the 2020 discussion).
///
/// An instance is a work item: it is taken from the head, polled once, and put back at the tail if it wants more,
/// so that the items share the workers fairly. The pool has as many workers as there are CPUs; [`Op::Wake`] for a
/// new item does not name one. An item that is put back wakes no worker, so a worker that has marked itself idle
/// checks [`Host::work_waits`] once more before it sleeps.
#[derive(Debug)]
pub struct Worker<'a, Q> {
    host: &'a Host<Q>,
    turn: Turn<'a, Q>,
}

impl<'a, Q> Worker<'a, Q> {
    /// The loop of a worker. It never ends by itself: the world abandons it while it sleeps.
    pub fn new(host: &'a Host<Q>) -> Self {
        host.contract.begin_task(Task::Worker);
        Worker { host, turn: Turn::idle(Owner::Worker) }
    }
}

impl<Q> Pass<Q> for Worker<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        loop {
            if !self.turn.has_claim() {
                let Some(id) = self.host.work.pop() else { return Op::Sleep(NEVER) };
                let instance = self.host.instance(id);
                let claim = Claim::from_token(self.host, instance);
                return self.turn.begin(claim, instance.settings.weight());
            }
            let end = match self.turn.next(now, did, Owner::Worker) {
                Next::Op(op) => return op,
                Next::End(end) => end,
            };
            let Some(claim) = self.turn.take_claim() else { continue };
            match end {
                End::Released => {}
                End::Again | End::Scheduled | End::Held => {
                    self.host.queue_work(claim);
                    return if end == End::Held { Op::Yield } else { Op::Resched };
                }
                End::HandOver => {
                    claim.instance().counters.handovers.add(1);
                    if let Some(op) = self.host.route(claim, RaisedFrom::Thread) {
                        return op;
                    }
                }
            }
        }
    }

    fn queue(&mut self) -> &mut Q {
        self.turn.queue()
    }
}
