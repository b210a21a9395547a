//! The four threads of `xsk_rr`, a round-trip tool over AF_XDP sockets.
//!
//! Frames pass through rings in memory. A call ([`Kick`]) makes the kernel poll the queue behind a ring, unless the
//! policy makes such calls unnecessary. A thread with an empty ring spins: it repeats the call, or checks the ring
//! again. The fill and completion rings, which never run dry at these rates, are not modelled.

use std::cell::RefCell;
use std::rc::Rc;

use napkin_core::Ns;
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};
use napkin_policy::{Policy, Threaded, WaitsIn};

use napkin_machine::profile::Profile;

/// Bytes of a frame on the wire, including preamble, checksum and gap; the document does not state a size.
pub(super) const BYTES: u32 = 128;

/// Width of a bucket of round-trip times in nanoseconds, as the tool counts them.
pub(super) const BUCKET_NS: u64 = 100;

/// Number of these buckets; the last one takes everything longer.
pub(super) const BUCKETS: usize = 20_000;

/// Number of buckets of receive calls: the last begins at 2^31 ns.
pub(super) const CALL_BUCKETS: usize = 32;

/// How a thread gets its queue polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kick {
    /// Nothing (the tool's `-n`): another context polls anyway.
    Never,
    /// A non-blocking call that busy polls (`SO_BUSY_POLL`): one pass, in the calling thread.
    Poll,
    /// A call that wakes the driver, which schedules the queue's instance.
    Wake,
    /// A wait in epoll, for policies that busy poll there.
    Epoll,
}

impl Kick {
    /// Returns the sending thread's kick under a policy. A separate polling thread also sends; with it, as with a
    /// queue's own thread that polls without end, no call is needed.
    pub(super) fn sending(policy: &Policy) -> Kick {
        match (policy.instance.threaded, policy.waits_in()) {
            (Threaded::BusyPoll, _) => Kick::Never,
            (_, Some(WaitsIn::Socket)) if policy.application.has_poller() => Kick::Never,
            (_, Some(WaitsIn::Socket)) => Kick::Poll,
            (_, Some(WaitsIn::Epoll) | None) => Kick::Wake,
        }
    }

    /// Returns the receiving thread's kick when its ring is empty.
    pub(super) fn receiving(policy: &Policy) -> Kick {
        match Kick::sending(policy) {
            Kick::Wake if policy.waits_in() == Some(WaitsIn::Epoll) => Kick::Epoll,
            kick => kick,
        }
    }
}

/// The cost of each of the tool's steps, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    /// Reading one descriptor and its frame.
    pub work: Ns,
    /// One call that gets the queue polled, without the poll itself.
    pub kick: Ns,
    /// One look at an empty ring and at the clock.
    pub look: Ns,
    /// From a frame's stamp to its descriptor in the ring.
    pub send: Ns,
    /// Variation of each step in either direction, in thousandths. Loops of fixed length would run in lockstep,
    /// which two real CPUs never do.
    pub jitter: u64,
}

impl Steps {
    /// Reads the steps of a profile, which must have the section `xsk-rr`.
    pub(super) fn of(profile: &Profile) -> Steps {
        Steps {
            work: profile.time("xsk-rr.work"),
            kick: profile.time("xsk-rr.kick"),
            look: profile.time("xsk-rr.look"),
            send: profile.time("xsk-rr.send"),
            jitter: (profile.ratio("xsk-rr.jitter") * 1e3) as u64,
        }
    }

    /// Returns a step's time with its random variation.
    fn vary(&self, machine: &mut Machine<'_>, time: Ns) -> Ns {
        let most = time * self.jitter / 1000;
        if most == 0 { time } else { time - most + machine.rng().below(2 * most + 1) }
    }
}

/// The counts of the tool, and of a tracer of its receive calls, over a window.
#[derive(Debug)]
pub(super) struct Tally {
    /// The start of the window: earlier events do not count.
    pub from: Ns,
    /// The end of the window: frames that are due later do not count.
    pub until: Ns,
    /// Round trips by [`BUCKET_NS`].
    pub round_trips: Vec<u64>,
    /// Receive calls by powers of two of their duration in nanoseconds, without the entry into the kernel.
    pub calls: [u64; CALL_BUCKETS],
    /// Frames that were due by the sender's clock, sent or not.
    pub due: u64,
}

impl Tally {
    /// Returns an empty tally, shared by the programs that count.
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

/// One end of the tool: its rings, and its costs.
#[derive(Debug, Clone)]
pub(super) struct End {
    /// The socket that models its receive ring.
    pub ring: u32,
    /// The queue through which it sends.
    pub queue: u16,
    /// The flow to the other end.
    pub to: u32,
    /// The costs of its steps.
    pub steps: Steps,
    /// The tally of the measured end.
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

/// The state of a thread's call.
#[derive(Debug, Clone, Copy)]
enum Call {
    No,
    Entered,
    Polling(Ns),
}

/// Returns the next act of a call in progress; `None` when it is over.
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

/// Returns a part of a spin that lasts until a deadline. The spin is cut into parts, because an interruption must
/// not lengthen it unless it outlasts the deadline.
fn spin(left: Ns, look: Ns) -> Act {
    Act::User((left / 2).max(look).min(left))
}

/// The receiving thread: a client measures and is then busy for a while, a server answers.
#[derive(Debug)]
pub(super) struct Receiver {
    end: End,
    kick: Kick,
    /// The kick after an answer; a client does not answer.
    answers: Option<Kick>,
    /// Time after a reply in which it does not receive.
    delay: Ns,
    busy_until: Ns,
    call: Call,
    answering: Call,
    /// The frame in process.
    working: Option<Packet>,
    waited: bool,
}

impl Receiver {
    /// Returns the receiver of the measured end.
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

    /// Returns a server's receiver, which answers each frame and then kicks as `answers` says.
    pub(super) fn server(end: End, kick: Kick, answers: Kick) -> Receiver {
        Receiver { answers: Some(answers), ..Receiver::client(end, kick, 0) }
    }

    /// Completes the reading of a frame.
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
            // There is a single socket, which is read next.
            let _ = machine.next_ready(me);
        }
        machine.next_round(me);
        let now = machine.now();
        if now < self.busy_until {
            // This spin stands for the application's computation, so it is not polling.
            machine.count_as_work(me);
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

/// The sending thread: it spins on the clock, and sends a frame one period after it noticed that the previous one
/// was due.
#[derive(Debug)]
pub(super) struct Sender {
    end: End,
    kick: Kick,
    period: Ns,
    due: Ns,
    /// The stamp of the frame in process.
    writing: Option<Ns>,
    call: Call,
    tag: u64,
}

impl Sender {
    /// Returns a sender of one frame per `period` from `start` on.
    pub(super) fn new(end: End, kick: Kick, period: Ns, start: Ns) -> Sender {
        let sender =
            Sender { end, kick, period, due: start, writing: None, call: Call::No, tag: 0 };
        sender.falls_due();
        sender
    }

    /// Counts the next frame if its due time is in the window.
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
            machine.count_as_work(me);
            self.tag += 1;
            self.end.submit(machine, self.tag, stamp);
            if self.kick != Kick::Never {
                self.call = Call::Entered;
                return Act::Kernel(steps.vary(machine, kick));
            }
        }
        // The sender's calls are send calls, which the tracer did not time.
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
            // The due time is at a random point within a look.
            return Act::User(left + machine.rng().below(look.max(1)));
        }
        self.due = now + self.period;
        self.falls_due();
        self.writing = Some(now);
        Act::User(steps.vary(machine, send))
    }
}

/// A thread that only makes receive calls that poll (the tool's `-t`).
#[derive(Debug)]
pub(super) struct Poller {
    end: End,
    call: Call,
}

impl Poller {
    /// Returns a poller for an end's queue.
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
