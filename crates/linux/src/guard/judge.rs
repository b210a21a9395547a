//! Whether an instance starves, from its counts read again and again. Pure: readings go in.
//!
//! The kernel promises that nobody waits for longer than `irq-suspend-timeout`: a suspension's timer
//! then has the instance polled. It breaks the promise where each wait finds something else that is
//! ready and starts that timer anew. So an instance starves if
//! - it was not polled for longer than its timeout and [`MARGIN`], and neither did its timer fire;
//! - and meanwhile its suspension was prolonged: the timer was armed again, at last within the
//!   timeout before now (otherwise it has run out, or is about to).
//!
//! An instance on which nothing goes on is not polled either, but nobody prolongs anything there.

use std::collections::BTreeMap;
use std::time::Duration;

use napkin_kernel::count::Counts;

/// Between two readings.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// How much longer than its timeout an instance may go without a poll.
///
/// A suspension begins at the wait that follows a poll, which is seen one reading late, and its timer
/// and the softirq behind it may be late by the kernel's tick (10 ms at most). An arming that is seen
/// more than two readings after the last poll is no longer that first one, but prolongs.
pub(super) const MARGIN: Duration = Duration::from_millis(40);

/// How late a reading may be and still count.
///
/// A pause of the whole host (a hypervisor's, the firmware's) looks like starvation to who reads first
/// after it: nobody has polled, and the program has just prolonged. Whoever reads was paused as well.
const LATE: Duration = Duration::from_millis(10);

/// How much of the time since the last reading counts: none of it if the reading came later than after
/// the `wait` that was asked for and the CPU time that the reader itself has used since.
pub(super) fn counted(step: Duration, wait: Duration, used: Duration) -> Duration {
    let late = step.saturating_sub(wait).saturating_sub(used) > LATE;
    if late { Duration::ZERO } else { step }
}

/// What is remembered of the instances.
#[derive(Debug, Default)]
pub(super) struct Judge {
    seen: BTreeMap<u32, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Polls, and expiries of its timer.
    alive: (u64, u64),
    armed: u64,
    /// How long neither of the first has grown.
    silent: Duration,
    /// How long that was when it was last seen to be armed.
    armed_at: Option<Duration>,
}

impl Judge {
    /// Takes a reading of an instance whose timeout is `timeout`, `step` after the one before; how
    /// long it was not polled, if it starves. With a `step` of 0, which does not count ([`counted`]),
    /// it never does.
    ///
    /// A step counts for two [`TICK`]s at most, however long the reader meant to wait.
    pub(super) fn reading(
        &mut self,
        napi_id: u32,
        counts: &Counts,
        timeout: Duration,
        step: Duration,
    ) -> Option<Duration> {
        let alive = (counts.all().polls, counts.watchdogs.unwrap_or(0));
        let armed = counts.suspensions?;
        let new = Seen { alive, armed, silent: Duration::ZERO, armed_at: None };
        // The first reading says nothing of the time before it.
        let seen = match self.seen.get_mut(&napi_id) {
            Some(seen) if seen.alive == alive => seen,
            _ => {
                self.seen.insert(napi_id, new);
                return None;
            }
        };
        seen.silent = seen.silent.saturating_add(step.min(2 * TICK));
        if seen.armed != armed {
            seen.armed = armed;
            seen.armed_at = Some(seen.silent);
        }
        let prolonged = seen.armed_at.is_some_and(|at| seen.silent.saturating_sub(at) <= timeout);
        let too_long = seen.silent > timeout.saturating_add(MARGIN);
        (prolonged && too_long && !step.is_zero()).then_some(seen.silent)
    }

    /// Forgets all instances but these.
    pub(super) fn keep(&mut self, there: impl Fn(u32) -> bool) {
        self.seen.retain(|napi_id, _| there(*napi_id));
    }

    /// Forgets an instance: what it is set to has changed.
    pub(super) fn forget(&mut self, napi_id: u32) {
        self.seen.remove(&napi_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::count::Polled;

    const TIMEOUT: Duration = Duration::from_millis(20);

    fn counts(polls: u64, suspensions: u64, watchdogs: u64) -> Counts {
        Counts {
            application: Polled { polls, ..Polled::default() },
            suspensions: Some(suspensions),
            watchdogs: Some(watchdogs),
            ..Counts::default()
        }
    }

    /// The first reading, by number, at which an instance starves: the counts of each are given.
    fn first(timeout: Duration, of: impl Fn(u64) -> Counts) -> Option<u64> {
        let mut judge = Judge::default();
        (0..100).find(|number| judge.reading(7, &of(*number), timeout, TICK).is_some())
    }

    #[test]
    fn a_suspension_that_is_prolonged_without_a_poll_starves_its_instance() {
        // 20 ms and 40 ms are over at the reading behind the third.
        assert_eq!(first(TIMEOUT, |number| counts(9, 1_000 * number, 3)), Some(4));
        assert_eq!(first(10 * TIMEOUT, |number| counts(9, 1_000 * number, 3)), Some(13));
        // Seldom, but always before the timer fires.
        assert_eq!(first(10 * TIMEOUT, |number| counts(9, number / 9, 3)), Some(13));
    }

    #[test]
    fn whoever_polls_or_has_nothing_to_do_is_left_alone() {
        assert_eq!(first(TIMEOUT, |number| counts(number, 1_000 * number, 0)), None);
        assert_eq!(first(TIMEOUT, |number| counts(number / 3, 1_000 * number, 0)), None);
        assert_eq!(first(TIMEOUT, |_| counts(9, 50, 0)), None, "idle");
        assert_eq!(first(TIMEOUT, |number| counts(0, 50, number)), None, "its timer fires");
        let uncounted = Counts { suspensions: None, ..counts(9, 0, 0) };
        assert_eq!(first(TIMEOUT, |_| uncounted), None);
    }

    #[test]
    fn one_suspension_after_the_last_poll_is_no_starvation_however_late_its_timer() {
        for armed_at in 0..3 {
            let of = |number| counts(9, u64::from(number >= armed_at), 0);
            assert_eq!(first(TIMEOUT, of), None, "{armed_at}");
        }
        // And one that was prolonged, and then left to run out.
        assert_eq!(first(TIMEOUT, |number| counts(9, number.min(2), 0)), None);
    }

    /// The first reading at which an instance starves that is prolonged all the time: each comes this
    /// much later than it was meant to.
    fn first_of(late: &[u64], polls: impl Fn(usize) -> u64) -> Option<usize> {
        let mut judge = Judge::default();
        (0..late.len()).find(|&number| {
            let step = TICK + Duration::from_millis(late[number]);
            let step = counted(step, TICK, Duration::from_millis(1));
            let counts = counts(polls(number), 1_000 * number as u64, 0);
            judge.reading(7, &counts, TIMEOUT, step).is_some()
        })
    }

    #[test]
    fn a_pause_of_the_whole_host_is_nobody_s_starvation() {
        for pause in [12, 41, 60, 500, 5_000] {
            // The program polls at every third reading, whatever is between them.
            for at in 0..9 {
                let mut late = vec![1; 9];
                late[at] = pause;
                assert_eq!(first_of(&late, |number| number as u64 / 3), None, "{pause} ms, {at}");
            }
            assert_eq!(first_of(&[pause; 50], |_| 9), None, "nothing but pauses: {pause} ms");
        }
    }

    #[test]
    fn a_reading_that_comes_late_does_not_count_and_those_before_it_do() {
        assert_eq!(first_of(&[1; 9], |_| 9), Some(3));
        assert_eq!(first_of(&[11; 9], |_| 9), Some(2), "no later than it may be");
        assert_eq!(first_of(&[1, 60, 1, 60, 1, 60, 1, 60, 1], |_| 9), Some(6));
        // Who needs long for the reading itself is not late.
        let used = Duration::from_millis(80);
        assert_eq!(counted(5 * TICK, TICK, used), 5 * TICK);
        assert_eq!(counted(6 * TICK, TICK, used), Duration::ZERO);
    }

    #[test]
    fn what_was_forgotten_begins_anew() {
        let mut judge = Judge::default();
        let read =
            |judge: &mut Judge, armed| judge.reading(7, &counts(9, armed, 0), TIMEOUT, 2 * TICK);
        assert_eq!([0, 1].map(|armed| read(&mut judge, armed)), [None, None]);
        assert_eq!(read(&mut judge, 2), Some(4 * TICK));
        judge.forget(7);
        assert_eq!([3, 4].map(|armed| read(&mut judge, armed)), [None, None]);
        judge.keep(|napi_id| napi_id != 7);
        assert_eq!([5, 6].map(|armed| read(&mut judge, armed)), [None, None]);
    }
}
