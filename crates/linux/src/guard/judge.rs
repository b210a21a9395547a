//! Decides from periodic readings of its counters whether an instance starves. Pure.
//!
//! The kernel promises that no packet waits for longer than `irq-suspend-timeout`: the suspension's timer then
//! has the instance polled. It breaks the promise if each wait finds another descriptor ready and restarts that
//! timer. So an instance starves if
//! - it was not polled for longer than its timeout and [`MARGIN`], and its timer did not fire either;
//! - and its suspension was prolonged meanwhile: the timer was armed again, the last time no longer than the
//!   timeout ago (otherwise it has expired, or is about to).
//!
//! An idle instance is not polled either, but its suspension is not prolonged.

use std::collections::BTreeMap;
use std::time::Duration;

use napkin_kernel::count::Counts;

/// The interval between two readings.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// The time beyond its timeout for which an instance may go without a poll.
///
/// A suspension begins at the wait that follows a poll, which shows up one reading late, and its timer and the
/// softirq after it may be late by the kernel's tick (10 ms at most). An arming that shows up more than two
/// readings after the last poll cannot be the first one: it prolongs the suspension.
pub(super) const MARGIN: Duration = Duration::from_millis(40);

/// The maximum delay of a reading that still counts.
///
/// A pause of the whole host (by a hypervisor or the firmware) looks like starvation at the first reading after
/// it: nothing has polled, and the program has just prolonged the suspension. But the reader was paused as
/// well.
const MAX_DELAY: Duration = Duration::from_millis(10);

/// Returns how much of the time since the last reading counts: nothing if the reading came later than the
/// requested `wait` and the CPU time that the reader itself has used since.
pub(super) fn counted(step: Duration, wait: Duration, used: Duration) -> Duration {
    let late = step.saturating_sub(wait).saturating_sub(used) > MAX_DELAY;
    if late { Duration::ZERO } else { step }
}

/// The state of the watched instances.
#[derive(Debug, Default)]
pub(super) struct Judge {
    seen: BTreeMap<u32, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The numbers of polls, and of expiries of the timer.
    alive: (u64, u64),
    armed: u64,
    /// The time since `alive` last changed.
    silent: Duration,
    /// The value of `silent` when the timer was last seen to be armed.
    armed_at: Option<Duration>,
}

impl Judge {
    /// Processes a reading of an instance with `timeout`, `step` after the previous reading. Returns how long
    /// the instance was not polled, if it starves. Never reports starvation for a `step` of 0, which does not
    /// count ([`counted`]).
    ///
    /// A step counts for two [`TICK`]s at most, even if the reader meant to wait longer.
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
        // The first reading says nothing about the time before it.
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

    /// Drops the state of all instances but these.
    pub(super) fn keep(&mut self, is_present: impl Fn(u32) -> bool) {
        self.seen.retain(|napi_id, _| is_present(*napi_id));
    }

    /// Drops the state of an instance whose settings have changed.
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

    /// Returns the number of the first reading at which an instance starves; `of` returns the counts of each
    /// reading.
    fn first(timeout: Duration, of: impl Fn(u64) -> Counts) -> Option<u64> {
        let mut judge = Judge::default();
        (0..100).find(|number| judge.reading(7, &of(*number), timeout, TICK).is_some())
    }

    #[test]
    fn a_suspension_that_is_prolonged_without_a_poll_starves_its_instance() {
        // The timeout of 20 ms and the margin of 40 ms are exceeded at the fourth reading after the first.
        assert_eq!(first(TIMEOUT, |number| counts(9, 1_000 * number, 3)), Some(4));
        assert_eq!(first(10 * TIMEOUT, |number| counts(9, 1_000 * number, 3)), Some(13));
        // Armed rarely, but always before the timer fires.
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
        // And a suspension that was prolonged, then left to expire.
        assert_eq!(first(TIMEOUT, |number| counts(9, number.min(2), 0)), None);
    }

    /// Returns the first reading at which an instance starves whose suspension is prolonged all the time; each
    /// reading is late by this many milliseconds.
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
            // The program polls at every third reading, wherever the pause is.
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
        // A reader that uses much CPU time for the reading itself is not late.
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
