//! Decides which signals are passed on to a program: each is held briefly, until it is known which other
//! processes received it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, getpgid};

use super::witness::{Place, Witness};
use napkin_os::signals::{ReceivedSignal, Signals};

/// The time that a sender may need between two processes of a group that it signals one by one.
const WINDOW: Duration = Duration::from_millis(50);

/// The longest time that a signal is held, on a machine so busy that the sender may be waiting for a CPU.
const LONGEST: Duration = Duration::from_millis(250);

/// A machine counts as busy if a witness takes longer than this to answer.
const PROMPT: Duration = Duration::from_millis(10);

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
struct Kept {
    came: ReceivedSignal,
    since: Instant,
    until: Instant,
}

/// Signals that were received and not decided yet.
#[derive(Debug)]
pub(super) struct Passing {
    /// `None` for lack of processes or descriptors: then every signal is passed on.
    group: Option<Witness>,
    apart: Option<Witness>,
    kept: Vec<Kept>,
}

impl Passing {
    /// Starts the witnesses for a program that was started before. They end with the calling thread.
    pub(super) fn new(signals: &Signals) -> Passing {
        let witness = |place| Witness::start(place, signals).ok();
        Passing { group: witness(Place::Group), apart: witness(Place::Apart), kept: Vec::new() }
    }

    /// Process IDs of the witnesses, which do not belong to the program.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        [&self.group, &self.apart].into_iter().flatten().map(Witness::pid)
    }

    /// Holds a signal. A repeat from the same sender counts as one: `timeout` signals the process and then
    /// its group. Stop and continue signals cancel each other while they are held, as pending ones do in the
    /// kernel, and so in the witnesses.
    pub(super) fn keep(&mut self, came: ReceivedSignal, now: Instant) {
        match came.signal {
            libc::SIGCONT => self.kept.retain(|kept| kept.came.signal != libc::SIGTSTP),
            libc::SIGTSTP => self.kept.retain(|kept| kept.came.signal != libc::SIGCONT),
            _ => {}
        }
        if !self.kept.iter().any(|kept| kept.came == came) {
            self.kept.push(Kept { came, since: now, until: now + WINDOW });
        }
    }

    /// When the next decision is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.kept.iter().map(|kept| kept.until).min()
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
        let busy = now.elapsed() > PROMPT;
        let mut decided = Vec::new();
        let (group, apart) = (&mut self.group, &mut self.apart);
        let took = |witness: &mut Option<Witness>, came| {
            witness.as_mut().is_some_and(|witness| witness.take(came))
        };
        let mut earlier = now;
        self.kept.retain_mut(|kept| {
            kept.until = kept.until.max(earlier);
            if kept.until > now {
                earlier = kept.until;
                return true;
            }
            let reached = match (took(group, kept.came), took(apart, kept.came)) {
                (_, true) => Reached::All,
                (true, false) => Reached::Group,
                (false, false) => Reached::None,
            };
            if reached == Reached::None && busy && now < kept.since + LONGEST {
                kept.until = now + WINDOW;
                earlier = kept.until;
                return true;
            }
            decided.push((kept.came, reached));
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
        let mut passing = Passing { group: None, apart: None, kept: Vec::new() };
        let came = |signal| ReceivedSignal { signal, code: libc::SI_USER, sender: 1 };
        let now = Instant::now();
        let before = |ms| now - Duration::from_millis(ms);
        passing.keep(came(libc::SIGTERM), before(70));
        passing.keep(came(libc::SIGWINCH), before(69));
        // Asked 20 ms ago, and the answer arrives now: the first signal is held longer.
        assert_eq!(passing.decide(before(20)), []);
        // The second is due, the first is not.
        assert_eq!(passing.decide(now), []);
        let later = now + Duration::from_millis(400);
        let order = passing.decide(later).into_iter().map(|(came, _)| came.signal);
        assert_eq!(order.collect::<Vec<_>>(), [libc::SIGTERM, libc::SIGWINCH]);
    }
}
