//! Decides which signals are passed on to a program: each is held briefly, until it is known which other
//! processes received it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, getpgid};

use super::witness::{Place, Witness};
use napkin_os::signals::{ReceivedSignal, Signals};

/// The time that a sender may need between two processes of a group that it signals one by one.
const WINDOW: Duration = Duration::from_millis(50);

/// The longest time that a signal is held, on a machine so busy that the sender may be waiting for a CPU.
const MAX_HOLD: Duration = Duration::from_millis(250);

/// A machine counts as busy if a witness takes longer than this to answer.
const BUSY_ABOVE: Duration = Duration::from_millis(10);

/// The other receivers of a signal that came to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// No other process, as far as known.
    None,
    /// The process group.
    Group,
    /// Processes outside the group too: all of the control group, or of the machine.
    All,
}

impl Reached {
    /// Whether the signal reached a process.
    pub(super) fn has(self, pid: Pid) -> bool {
        match self {
            Reached::None => false,
            Reached::Group => getpgid(Some(pid)).ok() == getpgid(None).ok(),
            Reached::All => true,
        }
    }
}

/// A signal that is held.
#[derive(Debug, Clone, Copy)]
struct HeldSignal {
    received: ReceivedSignal,
    since: Instant,
    until: Instant,
}

/// Signals that were received and not decided yet.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// `None` for lack of processes or descriptors: then every signal is passed on.
    group: Option<Witness>,
    apart: Option<Witness>,
    held: Vec<HeldSignal>,
}

impl Forwarding {
    /// Starts the witnesses for a program that was started before. They end with the calling thread.
    pub(super) fn new(signals: &Signals) -> Forwarding {
        let witness = |place| Witness::start(place, signals).ok();
        Forwarding { group: witness(Place::Group), apart: witness(Place::Apart), held: Vec::new() }
    }

    /// Process IDs of the witnesses, which do not belong to the program.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        [&self.group, &self.apart].into_iter().flatten().map(Witness::pid)
    }

    /// Holds a signal. A repeat from the same sender counts as one: `timeout` signals the process and then
    /// its group. Stop and continue signals cancel each other while they are held, as pending ones do in the
    /// kernel, and so in the witnesses.
    pub(super) fn hold(&mut self, received: ReceivedSignal, now: Instant) {
        match received.signal {
            libc::SIGCONT => self.held.retain(|held| held.received.signal != libc::SIGTSTP),
            libc::SIGTSTP => self.held.retain(|held| held.received.signal != libc::SIGCONT),
            _ => {}
        }
        if !self.held.iter().any(|held| held.received == received) {
            self.held.push(HeldSignal { received, since: now, until: now + WINDOW });
        }
    }

    /// When the next decision is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }

    /// Decides the signals that are due, in order of arrival: none overtakes one that is held longer.
    pub(super) fn decide(&mut self, now: Instant) -> Vec<(ReceivedSignal, Reached)> {
        if self.next().is_none_or(|next| next > now) {
            return Vec::new();
        }
        // A witness that has ended or was stopped reports nothing: then every signal is passed on.
        for witness in [&mut self.group, &mut self.apart].into_iter().flatten() {
            let _ = witness.ask();
        }
        let busy = now.elapsed() > BUSY_ABOVE;
        let mut decided = Vec::new();
        let (group, apart) = (&mut self.group, &mut self.apart);
        let took = |witness: &mut Option<Witness>, received| {
            witness.as_mut().is_some_and(|witness| witness.claim(received))
        };
        let mut earlier = now;
        self.held.retain_mut(|held| {
            held.until = held.until.max(earlier);
            if held.until > now {
                earlier = held.until;
                return true;
            }
            let reached = match (took(group, held.received), took(apart, held.received)) {
                (_, true) => Reached::All,
                (true, false) => Reached::Group,
                (false, false) => Reached::None,
            };
            if reached == Reached::None && busy && now < held.since + MAX_HOLD {
                held.until = now + WINDOW;
                earlier = held.until;
                return true;
            }
            decided.push((held.received, reached));
            false
        });
        decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_signal_overtakes_one_that_is_kept_longer_on_a_busy_machine() {
        let mut forwarding = Forwarding { group: None, apart: None, held: Vec::new() };
        let received = |signal| ReceivedSignal { signal, code: libc::SI_USER, sender: 1 };
        let now = Instant::now();
        let before = |ms| now - Duration::from_millis(ms);
        forwarding.hold(received(libc::SIGTERM), before(70));
        forwarding.hold(received(libc::SIGWINCH), before(69));
        // Asked 20 ms ago, and the answer arrives now: the first signal is held longer.
        assert_eq!(forwarding.decide(before(20)), []);
        // The second is due, the first is not.
        assert_eq!(forwarding.decide(now), []);
        let later = now + Duration::from_millis(400);
        let order = forwarding.decide(later).into_iter().map(|(received, _)| received.signal);
        assert_eq!(order.collect::<Vec<_>>(), [libc::SIGTERM, libc::SIGWINCH]);
    }
}
