//! Signals on their way to a program: kept for a moment, until it is known who else got them.

use std::time::{Duration, Instant};

use rustix::process::{Pid, getpgid};

use super::witness::{Place, Witness};
use napkin_os::signals::{ReceivedSignal, Signals};

/// How long whoever signals a whole group, one process after the other, may need for the next one.
const WINDOW: Duration = Duration::from_millis(50);

/// The longest that a signal is kept, on a machine so busy that the sender may be waiting for a CPU.
const LONGEST: Duration = Duration::from_millis(250);

/// A machine is busy on which an answer takes longer than this.
const PROMPT: Duration = Duration::from_millis(10);

/// Who else got a signal that came to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// Nobody that is known.
    None,
    /// The process group.
    Group,
    /// Processes outside it, too: all of the control group, or of the machine.
    All,
}

impl Reached {
    /// Whether a process got it.
    pub(super) fn has(self, pid: Pid) -> bool {
        match self {
            Reached::None => false,
            Reached::Group => getpgid(Some(pid)).ok() == getpgid(None).ok(),
            Reached::All => true,
        }
    }
}

/// A signal that is kept.
#[derive(Debug, Clone, Copy)]
struct Kept {
    came: ReceivedSignal,
    since: Instant,
    until: Instant,
}

/// Signals that came and are not decided.
#[derive(Debug)]
pub(super) struct Passing {
    /// Without one, for lack of processes or descriptors, everything is passed on.
    group: Option<Witness>,
    apart: Option<Witness>,
    kept: Vec<Kept>,
}

impl Passing {
    /// To a program that was started just now. It is for the calling thread, and ends with it.
    pub(super) fn new(signals: &Signals) -> Passing {
        let witness = |place| Witness::start(place, signals).ok();
        Passing { group: witness(Place::Group), apart: witness(Place::Apart), kept: Vec::new() }
    }

    /// The processes that this needs, which are not the program's.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        [&self.group, &self.apart].into_iter().flatten().map(Witness::pid)
    }

    /// Keeps a signal. The same from the same sender is one with it: `timeout` signals the process
    /// and then its group. What stops a process and what continues it undo each other, as they do in
    /// the kernel, and so with the witnesses, while they are pending.
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

    /// When the next one is to be decided.
    pub(super) fn next(&self) -> Option<Instant> {
        self.kept.iter().map(|kept| kept.until).min()
    }

    /// Decides those whose time has come, in the order in which they came: none overtakes one that is kept longer.
    pub(super) fn decide(&mut self, now: Instant) -> Vec<(ReceivedSignal, Reached)> {
        if self.next().is_none_or(|next| next > now) {
            return Vec::new();
        }
        // One that has ended, or was stopped, tells of nothing: then everything is passed on.
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
        // Asked 20 ms ago, and the answer is here now: the first is kept for another while.
        assert_eq!(passing.decide(before(20)), []);
        // The second's time has come, the first's has not.
        assert_eq!(passing.decide(now), []);
        let later = now + Duration::from_millis(400);
        let order = passing.decide(later).into_iter().map(|(came, _)| came.signal);
        assert_eq!(order.collect::<Vec<_>>(), [libc::SIGTERM, libc::SIGWINCH]);
    }
}
