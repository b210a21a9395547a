//! The four threads of `xsk_rr`, a round-trip tool over AF_XDP sockets.
//!
//! Frames go into and come out of rings in memory. What makes somebody poll the queue behind them is
//! a call ([`Kick`]), or nobody need be made to. A thread that finds its ring empty spins: it makes the
//! call again, or looks again. What is not modelled: the fill and completion rings, which never run dry
//! at these rates.

use std::cell::RefCell;
use std::rc::Rc;

use napkin_core::Ns;
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};
use napkin_policy::{Policy, Threaded, WaitsIn};

use napkin_machine::profile::Profile;

/// Bytes of a frame on the wire, preamble, check sum and gap included; the document names no size.
pub(super) const BYTES: u32 = 128;

/// Width of a bucket of round-trip times in nanoseconds, as the tool counts them.
pub(super) const BUCKET_NS: u64 = 100;

/// Number of these buckets; the last one takes all that is longer.
pub(super) const BUCKETS: usize = 20_000;

/// Number of buckets of receive calls: the last begins at 2^31 ns.
pub(super) const CALL_BUCKETS: usize = 32;

/// What a thread does so that its queue is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kick {
    /// Nothing (the tool's `-n`): somebody polls anyway.
    Never,
    /// A non-blocking call that busy polls (`SO_BUSY_POLL`): one pass, in the caller's own thread.
    Poll,
    /// A call that wakes the driver: it schedules the queue's instance.
    Wake,
    /// A wait in epoll, for policies that busy poll there.
    Epoll,
}

impl Kick {
    /// What the thread that sends does under a policy. A thread that polls apart sends, too: with it,
    /// as under a queue's own spinning thread, no call is needed.
    pub(super) fn sending(policy: &Policy) -> Kick {
        match (policy.instance.threaded, policy.waits_in()) {
            (Threaded::BusyPoll, _) => Kick::Never,
            (_, Some(WaitsIn::Socket)) if policy.application.has_poller() => Kick::Never,
            (_, Some(WaitsIn::Socket)) => Kick::Poll,
            (_, Some(WaitsIn::Epoll) | None) => Kick::Wake,
        }
    }

    /// What the thread that receives does when its ring is empty.
    pub(super) fn receiving(policy: &Policy) -> Kick {
        match Kick::sending(policy) {
            Kick::Wake if policy.waits_in() == Some(WaitsIn::Epoll) => Kick::Epoll,
            kick => kick,
        }
    }
}

/// What each of the tool's steps costs, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    /// Reading one descriptor and its frame.
    pub work: Ns,
    /// One call that makes the queue be polled, without the poll.
    pub kick: Ns,
    /// One look at an empty ring and at the clock.
    pub look: Ns,
    /// From a frame's stamp to its descriptor in the ring.
    pub send: Ns,
    /// How much each of them varies either way, in thousandths: loops of fixed lengths would run in
    /// step with each other, which no two CPUs do.
    pub jitter: u64,
}

impl Steps {
    /// Those of a profile, which must have the section `xsk-rr`.
    pub(super) fn of(profile: &Profile) -> Steps {
        Steps {
            work: profile.time("xsk-rr.work"),
            kick: profile.time("xsk-rr.kick"),
            look: profile.time("xsk-rr.look"),
            send: profile.time("xsk-rr.send"),
            jitter: (profile.ratio("xsk-rr.jitter") * 1e3) as u64,
        }
    }

    /// A step's time, this time.
    fn vary(&self, machine: &mut Machine<'_>, time: Ns) -> Ns {
        let most = time * self.jitter / 1000;
        if most == 0 { time } else { time - most + machine.rng().below(2 * most + 1) }
    }
}

/// What the tool, and a tracer of its receive calls, count from a moment on.
#[derive(Debug)]
pub(super) struct Tally {
    /// Nothing before it counts.
    pub from: Ns,
    /// Nothing falls due from here on.
    pub until: Ns,
    /// Round trips by [`BUCKET_NS`].
    pub round_trips: Vec<u64>,
    /// Receive calls by powers of two of their nanoseconds, the entry into the kernel not included.
    pub calls: [u64; CALL_BUCKETS],
    /// Frames that fell due by the sender's clock, sent or not.
    pub due: u64,
}

impl Tally {
    /// Nothing counted yet; shared by the programs that count.
    pub(super) fn new(from: Ns, until: Ns) -> Rc<RefCell<Tally>> {
        let round_trips = vec![0; BUCKETS];
        Rc::new(RefCell::new(Tally { from, until, round_trips, calls: [0; CALL_BUCKETS], due: 0 }))
    }

    fn round_trip(&mut self, now: Ns, time: Ns) {
        if now >= self.from {
            self.round_trips[((time / BUCKET_NS) as usize).min(BUCKETS - 1)] += 1;
        }
    }

    fn call(&mut self, begun: Ns, now: Ns) {
        if begun >= self.from {
            let place = (now - begun).max(1).ilog2() as usize;
            self.calls[place.min(CALL_BUCKETS - 1)] += 1;
        }
    }
}

/// One end of the tool: its rings, and how it gets them polled.
#[derive(Debug, Clone)]
pub(super) struct End {
    /// The socket that is its receive ring.
    pub ring: u32,
    /// The queue through which it sends.
    pub queue: u16,
    /// The flow that leads to the other end.
    pub to: u32,
    /// What its steps cost.
    pub steps: Steps,
    /// Where the measured end counts.
    pub tally: Option<Rc<RefCell<Tally>>>,
}

impl End {
    fn submit(&self, machine: &mut Machine<'_>, tag: u64, stamp: Ns) {
        machine.submit(self.queue, Packet::new(self.to, Kind::Data, BYTES, tag, stamp));
    }

    fn count(&self, count: impl FnOnce(&mut Tally)) {
        if let Some(tally) = &self.tally {
            count(&mut tally.borrow_mut());
        }
    }
}

/// Where a thread is in its call.
#[derive(Debug, Clone, Copy)]
enum Call {
    No,
    Entered,
    Polling(Ns),
}

/// A call under way: its next act, until it is over.
fn call(end: &End, kick: Kick, at: &mut Call, machine: &mut Machine<'_>) -> Option<Act> {
    match *at {
        Call::No => None,
        Call::Entered if kick == Kick::Poll => {
            *at = Call::Polling(machine.now());
            Some(Act::Receive { timeout: Some(0) })
        }
        Call::Entered => {
            machine.kick(end.queue);
            *at = Call::No;
            None
        }
        Call::Polling(begun) => {
            *at = Call::No;
            end.count(|tally| tally.call(begun, machine.now()));
            None
        }
    }
}

/// A part of a spin on the clock that has so long to go. Not all of it at once: what interrupts a
/// spin does not make it longer, unless it outlasts it.
fn spin(left: Ns, look: Ns) -> Act {
    Act::User((left / 2).max(look).min(left))
}

/// The thread that receives: at the client it measures and is then busy for a while, at the server it
/// answers.
#[derive(Debug)]
pub(super) struct Receiver {
    end: End,
    kick: Kick,
    /// What it does once it has answered; a client does not answer.
    answers: Option<Kick>,
    /// For how long it does not receive after a reply.
    delay: Ns,
    busy_until: Ns,
    call: Call,
    answering: Call,
    /// The frame that it is working on.
    working: Option<Packet>,
    waited: bool,
}

impl Receiver {
    /// The receiver of the end that measures.
    pub(super) fn client(end: End, kick: Kick, delay: Ns) -> Receiver {
        let (call, answering) = (Call::No, Call::No);
        let (answers, working) = (None, None);
        Receiver {
            end,
            kick,
            answers,
            delay,
            busy_until: 0,
            call,
            answering,
            working,
            waited: false,
        }
    }

    /// A server's, which answers each frame and has the answer polled for as `answers` says.
    pub(super) fn server(end: End, kick: Kick, answers: Kick) -> Receiver {
        Receiver { answers: Some(answers), ..Receiver::client(end, kick, 0) }
    }

    /// A frame has been read.
    fn done(&mut self, machine: &mut Machine<'_>, packet: Packet) -> Option<Act> {
        let now = machine.now();
        let Some(kick) = self.answers else {
            let time = now - packet.stamp;
            machine.record(time);
            self.end.count(|tally| tally.round_trip(now, time));
            self.busy_until = now + self.delay;
            return None;
        };
        self.end.submit(machine, packet.tag, packet.stamp);
        if kick == Kick::Never {
            return None;
        }
        self.answering = Call::Entered;
        Some(Act::Kernel(self.end.steps.vary(machine, self.end.steps.kick)))
    }
}

impl Program for Receiver {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        if let Some(packet) = self.working.take()
            && let Some(act) = self.done(machine, packet)
        {
            return act;
        }
        let answers = self.answers.unwrap_or(Kick::Never);
        if let Some(act) = call(&self.end, answers, &mut self.answering, machine) {
            return act;
        }
        if let Some(act) = call(&self.end, self.kick, &mut self.call, machine) {
            return act;
        }
        if std::mem::take(&mut self.waited) {
            // Reading follows, whichever socket it is: there is one.
            let _ = machine.next_ready(me);
        }
        machine.next_round(me);
        let now = machine.now();
        if now < self.busy_until {
            // It stands for an application that computes.
            machine.achieved(me);
            return spin(self.busy_until - now, self.end.steps.look);
        }
        let steps = self.end.steps;
        let Steps { work, kick, look, .. } = steps;
        if let Some((packet, extra)) = machine.receive(me, self.end.ring) {
            self.working = Some(packet);
            return Act::User(steps.vary(machine, look + work) + extra);
        }
        match self.kick {
            Kick::Never => Act::User(steps.vary(machine, look)),
            Kick::Poll | Kick::Wake => {
                self.call = Call::Entered;
                Act::Kernel(steps.vary(machine, look + kick))
            }
            Kick::Epoll => {
                self.waited = true;
                Act::Epoll { timeout: None, max_events: 1 }
            }
        }
    }
}

/// The thread that sends: it spins on the clock, and a frame goes out once a period has passed since
/// it saw that the one before was due.
#[derive(Debug)]
pub(super) struct Sender {
    end: End,
    kick: Kick,
    period: Ns,
    due: Ns,
    /// The stamp of the frame that is being written.
    writing: Option<Ns>,
    call: Call,
    tag: u64,
}

impl Sender {
    /// One that sends a frame each `period` from `start` on.
    pub(super) fn new(end: End, kick: Kick, period: Ns, start: Ns) -> Sender {
        let sender =
            Sender { end, kick, period, due: start, writing: None, call: Call::No, tag: 0 };
        sender.falls_due();
        sender
    }

    /// The next frame's time is known.
    fn falls_due(&self) {
        let due = self.due;
        self.end.count(|tally| tally.due += u64::from((tally.from..tally.until).contains(&due)));
    }
}

impl Program for Sender {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        let steps = self.end.steps;
        let Steps { kick, look, send, .. } = steps;
        if let Some(stamp) = self.writing.take() {
            machine.achieved(me);
            self.tag += 1;
            self.end.submit(machine, self.tag, stamp);
            if self.kick != Kick::Never {
                self.call = Call::Entered;
                return Act::Kernel(steps.vary(machine, kick));
            }
        }
        // Its calls are send calls, which nobody timed.
        let unmeasured = End { tally: None, ..self.end.clone() };
        if let Some(act) = call(&unmeasured, self.kick, &mut self.call, machine) {
            return act;
        }
        let now = machine.now();
        if now < self.due {
            machine.next_round(me);
            let left = self.due - now;
            if left > look {
                return spin(left, look);
            }
            // Where in a look the clock passes is anybody's guess.
            return Act::User(left + machine.rng().below(look.max(1)));
        }
        self.due = now + self.period;
        self.falls_due();
        self.writing = Some(now);
        Act::User(steps.vary(machine, send))
    }
}

/// A thread that does nothing but receive calls which poll (the tool's `-t`).
#[derive(Debug)]
pub(super) struct Poller {
    end: End,
    call: Call,
}

impl Poller {
    /// One for an end's queue.
    pub(super) fn new(end: End) -> Poller {
        Poller { end, call: Call::No }
    }
}

impl Program for Poller {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        if let Some(act) = call(&self.end, Kick::Poll, &mut self.call, machine) {
            return act;
        }
        machine.next_round(me);
        self.call = Call::Entered;
        Act::Kernel(self.end.steps.vary(machine, self.end.steps.kick))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_machine::profile::Profile;

    #[test]
    fn a_frame_is_due_by_the_sender_s_clock_and_not_once_it_is_sent() {
        let steps = Steps::of(&Profile::named(crate::schema(), "xsk-2025").expect("built in"));
        let due = |start: Ns| {
            let tally = Tally::new(100, 200);
            let end = End { ring: 0, queue: 0, to: 0, steps, tally: Some(Rc::clone(&tally)) };
            let _sends_nothing_yet = Sender::new(end, Kick::Never, 50, start);
            tally.borrow().due
        };
        assert_eq!([99, 100, 199, 200].map(due), [0, 1, 1, 0]);
    }
}
