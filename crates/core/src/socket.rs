//! A receive call on one socket that busy polls (`SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL`,
//! `SO_BUSY_POLL_BUDGET`).

use crate::busy_loop::{BusyLoop, LoopNext, deadline};
use crate::host::Host;
use crate::idle::IdleCycle;
use crate::instance::Id;
use crate::step::{Did, Op, Pass};
use crate::{NEVER, Ns};
use napkin_policy::ApplicationPolicy;

#[derive(Debug)]
enum At<'a, Q> {
    Start,
    Looked,
    Busy(BusyLoop<'a, Q>),
    LookedAgain,
    Slept,
    Ended,
}

/// One receive call: a look, a busy poll if the socket asks for one, and a sleep.
///
/// A non-blocking call polls once. Sockets never suspend interrupts; only epoll contexts do.
#[derive(Debug)]
pub struct SocketWait<'a, Q> {
    host: &'a Host<Q>,
    policy: ApplicationPolicy,
    /// The instance that last delivered to the socket (`SO_INCOMING_NAPI_ID`).
    napi: Option<Id>,
    timeout: Option<Ns>,
    deadline: Ns,
    at: At<'a, Q>,
    frames: u32,
}

impl<'a, Q> SocketWait<'a, Q> {
    /// A call that waits at most `timeout` (`None`: for ever; 0: non-blocking).
    ///
    /// Its steps panic if it is to busy poll an instance that the host does not have.
    pub fn new(
        host: &'a Host<Q>,
        policy: ApplicationPolicy,
        napi: Option<Id>,
        timeout: Option<Ns>,
    ) -> Self {
        SocketWait { host, policy, napi, timeout, deadline: NEVER, at: At::Start, frames: 0 }
    }

    /// The number of frames that were waiting; valid after [`Op::Done`]. 0 after a timeout or a signal.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The cycle that this pass repeats while nothing arrives. `Some` only when `next` has just returned the
    /// [`Op::Poll`] that begins the cycle: never while another owner has the instance, nor for a single pass.
    pub fn idle_cycle(&self) -> Option<IdleCycle> {
        match &self.at {
            At::Busy(busy) => busy.idle_cycle(),
            _ => None,
        }
    }

    fn looked(&mut self, now: Ns, did: Did, polled: bool) -> Op {
        let found = did.events();
        let frames = found.unwrap_or(0);
        let nonblocking = self.timeout == Some(0);
        let busy = self.napi.filter(|_| self.policy.socket_busy_polls() && !polled);
        if let (Some(0), Some(id)) = (found, busy)
            && (nonblocking || now < self.deadline)
        {
            let usecs = if nonblocking { 0 } else { self.policy.socket_busy_poll_usecs };
            let prefer = self.policy.socket_prefer_busy_poll;
            let params = (usecs, self.policy.socket_busy_poll_budget, prefer);
            self.at = At::Busy(BusyLoop::new(self.host, id, params, now, self.deadline));
            return self.next(now, Did::Start);
        }
        self.frames = frames;
        if frames > 0 || found.is_none() || nonblocking || now >= self.deadline {
            self.at = At::Ended;
            return Op::Done;
        }
        self.at = At::Slept;
        Op::Sleep(self.deadline)
    }
}

impl<Q> Pass<Q> for SocketWait<'_, Q> {
    #[inline]
    fn next(&mut self, now: Ns, did: Did) -> Op {
        if let At::Busy(busy) = &mut self.at {
            if busy.look_follows(now, did) {
                return Op::Look;
            }
            if let Some(op) = busy.repoll(now, did) {
                return op;
            }
        }
        self.step(now, did)
    }

    fn queue(&mut self) -> &mut Q {
        match &mut self.at {
            At::Busy(busy) => busy.queue(),
            _ => panic!("no step that touches a queue is under way"),
        }
    }
}

impl<Q> SocketWait<'_, Q> {
    /// All steps except those of an empty busy poll.
    #[inline(never)]
    fn step(&mut self, now: Ns, did: Did) -> Op {
        match &mut self.at {
            At::Start => {
                self.deadline = deadline(self.timeout, now);
                self.at = At::Looked;
                Op::Look
            }
            At::Looked => self.looked(now, did, false),
            At::Busy(busy) => match busy.next(now, did) {
                LoopNext::Op(op) => op,
                LoopNext::Ended => {
                    self.at = At::LookedAgain;
                    Op::Look
                }
                LoopNext::Interrupted => self.looked(now, Did::Interrupted, true),
            },
            At::LookedAgain => self.looked(now, did, true),
            At::Slept if did == Did::Interrupted => self.looked(now, did, true),
            At::Slept => {
                self.at = At::Looked;
                Op::Look
            }
            At::Ended => Op::Done,
        }
    }
}
