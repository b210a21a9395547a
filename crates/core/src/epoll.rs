//! The epoll context: which instance it follows, how its wait busy polls, and when it suspends.
//!
//! The order of a wait is the kernel's: deliver what is ready (and, if the context prefers busy
//! polling, suspend); with a zero timeout return, for such a wait never busy polls; busy poll; if
//! that found nothing end the suspension and forget the instance; sleep; start over. A context may
//! keep the instance instead ([`EpollPolicy::keep_napi_id`]), which no kernel does.

use crate::busy_loop::{BusyLoop, LoopNext, deadline};
use crate::contract::FollowCheck;
use crate::host::Host;
use crate::idle::IdleCycle;
use crate::instance::Id;
use crate::race::{self, Race};
use crate::raised_from::RaisedFrom;
use crate::step::{Did, Op, Pass};
use crate::suspend::{AfterLeave, Registration};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{NEVER, Ns};
use napkin_policy::EpollPolicy;

const NONE: u32 = u32::MAX;
// Above the budget's 16 bits.
const PREFER: u32 = 1 << 16;
const KEEP_NAPI_ID: u32 = 1 << 17;
const REGISTERED: u64 = 1 << 63;
/// Stored in place of a registration while a thread of the context is prolonging it.
const PROLONGING: u64 = 1;

/// The busy-poll and suspension state of one epoll context. The ready list and the sleeping thread are the world's.
#[derive(Debug)]
pub struct EpollContext {
    usecs: AtomicU32,
    /// Budget, and the flags above it.
    budget_prefer: AtomicU32,
    /// `net.core.busy_poll`: used where `usecs` is 0.
    default_usecs: u32,
    follows: AtomicU32,
    /// This context's registration with a suspension (instance and epoch), `PROLONGING`, or 0.
    suspends: AtomicU64,
    contract: FollowCheck,
}

/// A context that never busy polls.
impl Default for EpollContext {
    fn default() -> Self {
        EpollContext::new(EpollPolicy::default(), 0)
    }
}

impl EpollContext {
    /// A context that follows no instance yet. `default_usecs` is what the sysctl
    /// `net.core.busy_poll` would hold; 0 switches the default off.
    pub fn new(policy: EpollPolicy, default_usecs: u32) -> Self {
        let context = EpollContext {
            usecs: AtomicU32::new(0),
            budget_prefer: AtomicU32::new(0),
            default_usecs,
            follows: AtomicU32::new(NONE),
            suspends: AtomicU64::new(0),
            contract: FollowCheck::default(),
        };
        context.set(policy);
        context
    }

    /// Changes the parameters (`EPIOCSPARAMS`). Their limits are for the caller to check.
    pub fn set(&self, policy: EpollPolicy) {
        self.usecs.store(policy.busy_poll_usecs, Ordering::Relaxed);
        let prefer = if policy.prefer_busy_poll { PREFER } else { 0 };
        let keep = if policy.keep_napi_id { KEEP_NAPI_ID } else { 0 };
        let bits = u32::from(policy.busy_poll_budget) | prefer | keep;
        self.budget_prefer.store(bits, Ordering::Relaxed);
    }

    /// The parameters (`EPIOCGPARAMS`).
    #[inline]
    pub fn params(&self) -> EpollPolicy {
        let bits = self.budget_prefer.load(Ordering::Relaxed);
        EpollPolicy {
            busy_poll_usecs: self.usecs.load(Ordering::Relaxed),
            busy_poll_budget: bits as u16,
            prefer_busy_poll: bits & PREFER != 0,
            keep_napi_id: bits & KEEP_NAPI_ID != 0,
        }
    }

    /// Whether waits busy poll at all.
    #[inline]
    pub fn busy_polls(&self) -> bool {
        let params = self.params();
        params.busy_poll_usecs != 0 || params.prefer_busy_poll || self.default_usecs != 0
    }

    /// Records the instance whose delivery woke a socket of this context, or that had delivered to a socket when it
    /// was added. A context follows one instance, and the last call wins.
    ///
    /// The world calls it at *every* delivery, in or after [`Op::Deliver`], for the context of each socket that got
    /// a frame (the kernel: `ep_set_busy_poll_napi_id`, from `ep_poll_callback`). An empty busy poll makes the
    /// context forget the instance; without another call no later wait busy polls or suspends, and `suspend20`
    /// silently becomes a timer policy. A debug build counts the waits that find new events after a delivery for
    /// which no context's `follow` was called, less those that find some without a delivery, and panics at a
    /// hundred. Events that have another cause are reported by [`no_delivery`](Self::no_delivery).
    ///
    /// With an id that the host does not have, the next wait that busy polls or suspends panics.
    #[inline]
    pub fn follow(&self, id: Id) {
        self.contract.followed();
        if self.busy_polls() {
            self.follows.store(u32::from(id.0), Ordering::Relaxed);
        }
    }

    /// Reports an event of this context that no delivery caused, such as a waker, or a socket that closes. The
    /// context goes on following its instance. To be called before a look finds the event; only the check of debug
    /// builds uses it (see [`follow`](Self::follow)), which would otherwise take the event for an unreported
    /// delivery.
    #[inline]
    pub fn no_delivery(&self) {
        self.contract.no_delivery();
    }

    /// The instance that the next wait would poll.
    #[inline]
    pub fn follows(&self) -> Option<Id> {
        let id = self.follows.load(Ordering::Relaxed);
        (id != NONE).then_some(Id(id as u16))
    }

    /// Ends the context's suspension at once, because the context goes away or gives up its instance. Returns the
    /// step to take, if any. The world calls it when the application's last handle is dropped, also while it
    /// unwinds.
    #[must_use = "the step that polls what the suspension held back"]
    pub fn close<Q>(&self, host: &Host<Q>, from: RaisedFrom) -> Option<Op> {
        self.follows.store(NONE, Ordering::Relaxed);
        self.resume(host, from)
    }

    /// Ends this context's registration; the last context to leave a suspension has the instance polled.
    fn resume<Q>(&self, host: &Host<Q>, from: RaisedFrom) -> Option<Op> {
        // The common case is none. `PROLONGING` is not 0.
        if self.suspends.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (id, registration) = unpack(self.suspends.swap(0, Ordering::AcqRel))?;
        Self::leave(host, id, registration, from)
    }

    fn leave<Q>(host: &Host<Q>, id: Id, part: Registration, from: RaisedFrom) -> Option<Op> {
        match host.instance(id).suspension.leave(part) {
            AfterLeave::Last => host.schedule(id, from),
            AfterLeave::Others => None,
        }
    }

    /// Suspends the instance after events were found, or prolongs its suspension.
    ///
    /// Several threads may wait on one context, which is counted once. So its registration is taken out of the
    /// context while it is prolonged; if another thread suspends, resumes or closes meanwhile, this thread's
    /// registration is surplus and ends. Otherwise the context would be counted twice and could leave only once,
    /// and its suspension would outlive it (invariant 6). The same would happen if the timer were extended after a
    /// resume or close of the context: `docs/races.md` goes through every order of the two.
    fn suspend<Q>(&self, host: &Host<Q>, id: Id, now: Ns) -> Option<Op> {
        let instance = host.instance(id);
        let timeout = instance.settings.irq_suspend_timeout();
        let until = suspend_until(host, id, now, timeout);
        if timeout == 0 || until <= now {
            return match unpack(self.suspends.load(Ordering::Acquire)) {
                Some((other, _)) if other != id => self.resume(host, RaisedFrom::Application),
                _ => None,
            };
        }
        let held = unpack(self.suspends.swap(PROLONGING, Ordering::AcqRel));
        if let Some((other, part)) = held
            && other != id
        {
            // The context follows another instance now: end its registration with the old one.
            self.put_back(0);
            return Self::leave(host, other, part, RaisedFrom::Application);
        }
        let part = instance.suspension.enter(held.map(|(_, part)| part), until);
        // The timer is extended while the registration is out of the context. A resume or close before it is back
        // finds none, and this thread leaves below, after its own store of the deadline. A later one sees that
        // store, and has the instance polled, which arms the timer anew. Extended last, the timer could overwrite
        // the deadline of that poll, and the queue would wait up to the timeout for a context that no longer
        // suspends it.
        let move_timer = || instance.move_timer(until).then_some(Op::Arm { id, at: until });
        let last = race::on(Race::TimerMovedLast);
        let arm = if last { None } else { move_timer() };
        if !self.put_back(REGISTERED | u64::from(id.0) << 32 | u64::from(part.0)) {
            // While other contexts suspend it the deadline stays, so the world still has to arm its timer.
            return Self::leave(host, id, part, RaisedFrom::Application).or(arm);
        }
        if last { move_timer() } else { arm }
    }

    /// Puts the registration back; `false` if another thread has replaced it meanwhile.
    #[inline]
    fn put_back(&self, packed: u64) -> bool {
        let suspends = &self.suspends;
        suspends.compare_exchange(PROLONGING, packed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// When a suspension ends that a wait with events begins or prolongs: the timeout after the instance's last poll.
/// Counted from the wait itself, as Linux does, a ready list that never runs empty would extend the timer for ever
/// without a poll (race R18).
fn suspend_until<Q>(host: &Host<Q>, id: Id, now: Ns, timeout: Ns) -> Ns {
    let without_poll = host.rules().prolongs_without_poll || race::on(Race::ProlongWithoutPoll);
    let from = if without_poll { now } else { host.instance(id).polled_at() };
    from.saturating_add(timeout)
}

fn unpack(packed: u64) -> Option<(Id, Registration)> {
    (packed & REGISTERED != 0).then_some((Id((packed >> 32) as u16), Registration(packed as u32)))
}

#[derive(Debug)]
enum At<'a, Q> {
    Start,
    Looked,
    Busy(BusyLoop<'a, Q>),
    Polled,
    Resumed,
    Slept,
    Ended,
}

/// One wait of an application (`epoll_wait`).
#[derive(Debug)]
pub struct EpollWait<'a, Q> {
    host: &'a Host<Q>,
    context: &'a EpollContext,
    timeout: Option<Ns>,
    /// Whether the wait returns instead of sleeping.
    spin: bool,
    deadline: Ns,
    at: At<'a, Q>,
    events: u32,
}

impl<'a, Q> EpollWait<'a, Q> {
    /// A wait of at most `timeout` (`None`: for ever; 0: a look that never busy polls). An
    /// application that spins (`spin`) busy polls as the parameters say and then returns where
    /// others would sleep.
    ///
    /// Its steps panic if the context follows an instance that the host does not have.
    pub fn new(
        host: &'a Host<Q>,
        context: &'a EpollContext,
        timeout: Option<Ns>,
        spin: bool,
    ) -> Self {
        EpollWait { host, context, timeout, spin, deadline: NEVER, at: At::Start, events: 0 }
    }

    /// The number of events that the wait found; valid after [`Op::Done`].
    pub fn events(&self) -> u32 {
        self.events
    }

    /// The cycle that this pass repeats while nothing arrives. `Some` only when `next` has just returned the
    /// [`Op::Poll`] that begins the cycle: never while another owner has the instance, nor for a single pass.
    pub fn idle_cycle(&self) -> Option<IdleCycle> {
        match &self.at {
            At::Busy(busy) => busy.idle_cycle(),
            _ => None,
        }
    }

    fn looked(&mut self, now: Ns, did: Did) -> Option<Op> {
        let events = match did.events() {
            Some(events) => events,
            None if race::on(Race::SuspendOnSignal) => 1,
            // A signal: nothing was delivered, so nothing is suspended.
            None => return self.end(),
        };
        let params = self.context.params();
        if events > 0 {
            self.events = events;
            self.at = At::Ended;
            if self.context.follows().is_none() && self.context.busy_polls() {
                self.context.contract.found(self.host);
            }
            let follows = self.context.follows().filter(|_| params.prefer_busy_poll);
            return follows.and_then(|id| self.context.suspend(self.host, id, now));
        }
        self.context.contract.empty();
        if self.timeout == Some(0) || now >= self.deadline {
            return self.end();
        }
        let usecs = match params.busy_poll_usecs {
            0 => self.context.default_usecs,
            usecs => usecs,
        };
        match self.context.follows().filter(|_| self.context.busy_polls()) {
            Some(id) => {
                let params = (usecs, params.busy_poll_budget, params.prefer_busy_poll);
                let busy = BusyLoop::new(self.host, id, params, now, self.deadline);
                self.at = At::Busy(busy);
                Some(self.next(now, Did::Start))
            }
            None => {
                self.at = At::Resumed;
                self.resume().or_else(|| self.sleep())
            }
        }
    }

    /// Follows an empty busy poll: forgets the instance, as the kernel does, unless the context keeps it, and ends
    /// the suspension.
    fn found_nothing(&self) -> Option<Op> {
        if !self.context.params().keep_napi_id {
            self.context.follows.store(NONE, Ordering::Relaxed);
        }
        self.resume()
    }

    /// Ends the suspension of a wait that found nothing, even if the context no longer prefers busy polling: it may
    /// still be registered from before.
    fn resume(&self) -> Option<Op> {
        self.context.resume(self.host, RaisedFrom::Application)
    }

    fn sleep(&mut self) -> Option<Op> {
        if self.spin {
            return self.end();
        }
        self.at = At::Slept;
        Some(Op::Sleep(self.deadline))
    }

    fn end(&mut self) -> Option<Op> {
        self.at = At::Ended;
        None
    }
}

impl<Q> Pass<Q> for EpollWait<'_, Q> {
    /// Called twice per pass of a busy poll: the steps of an empty busy poll are kept apart from the rest, so that
    /// this stays small.
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
        self.step(now, did).unwrap_or(Op::Done)
    }

    fn queue(&mut self) -> &mut Q {
        match &mut self.at {
            At::Busy(busy) => busy.queue(),
            _ => panic!("no step that touches a queue is under way"),
        }
    }
}

impl<Q> EpollWait<'_, Q> {
    /// Handles the look that follows a busy poll.
    fn polled(&mut self, now: Ns, did: Did) -> Option<Op> {
        match did.events() {
            Some(0) => {
                self.at = At::Resumed;
                self.found_nothing().or_else(|| self.sleep())
            }
            None => self.interrupted(),
            Some(_) => self.looked(now, did),
        }
    }

    /// Ends the wait after a signal in a busy poll, which counts as an empty one; only the sleep is left out.
    fn interrupted(&mut self) -> Option<Op> {
        self.at = At::Ended;
        self.found_nothing()
    }

    /// All other steps; `None` after the last.
    #[inline(never)]
    fn step(&mut self, now: Ns, did: Did) -> Option<Op> {
        match &mut self.at {
            At::Busy(busy) => match busy.next(now, did) {
                LoopNext::Op(op) => Some(op),
                LoopNext::Ended => {
                    self.at = At::Polled;
                    Some(Op::Look)
                }
                LoopNext::Interrupted => self.interrupted(),
            },
            At::Start => {
                self.host.contract.check_timer_is_driven(self.host, now);
                self.deadline = deadline(self.timeout, now);
                self.at = At::Looked;
                Some(Op::Look)
            }
            At::Looked => self.looked(now, did),
            At::Polled => self.polled(now, did),
            At::Resumed => self.sleep(),
            At::Slept if did == Did::Interrupted => self.end(),
            At::Slept => {
                self.at = At::Looked;
                Some(Op::Look)
            }
            At::Ended => None,
        }
    }
}
