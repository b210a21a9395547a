//! A monitor of a service under the policy in force: checks a guard over the last second of requests, and detects a
//! service that no longer answers.
//!
//! At high rates requests are timed in turns: the BPF programs attached, then detached.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use napkin_kernel::count::CountError;
use napkin_kernel::count::latency::{Histogram, Probe, Reading};
use napkin_os::signals::Signals;

use crate::command::{Outcome, Running};
use crate::guard::{Condition, Guard, Reference};
use crate::silence::{Answered, Silence};

/// Interval between looks at the service.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The time that a guard's condition covers.
const BACK: Duration = Duration::from_secs(1);
/// Average number of requests to time per second: more cost the service more and add little.
const TIMED_PER_S: f64 = 10_000.0;
/// Length of a turn in which requests are timed, at higher rates.
pub(crate) const TURN_LENGTH: Duration = Duration::from_millis(50);
/// Shortest and longest pause between turns: each change of turn stops all CPUs several times.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];
/// Number of earlier turns that count towards a rate: 0.2 s of requests.
const TURNS: usize = 4;
/// Seconds of requests needed to judge a rate: without turns, and with turns.
const JUDGED_SECONDS: [f64; 2] = [0.5, 0.15];
/// Time limit of a guard's command.
const GUARD_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two runs of a guard's command.
const GUARD_EVERY: Duration = Duration::from_millis(500);
/// The advice where only time was lacking.
const LONGER: &str = "give a longer time";

/// The pause after each turn of timing at this rate; zero if requests are timed all the time.
pub(crate) fn pause_after_turn(answers_per_s: f64) -> Duration {
    if answers_per_s <= TIMED_PER_S {
        return Duration::ZERO;
    }
    let [shortest, longest] = PAUSES;
    let times =
        (answers_per_s / TIMED_PER_S - 1.0).min(longest.as_secs_f64() / TURN_LENGTH.as_secs_f64());
    TURN_LENGTH.mul_f64(times).max(shortest)
}

/// The state of the monitor for one policy, from the moment that it is in force.
#[derive(Debug)]
pub(crate) struct SliceMonitor<'a> {
    guard: Option<&'a Guard>,
    reference: &'a Reference,
    began: Instant,
    /// Readings of the last second, or of the current turn if there are turns.
    recent: VecDeque<(Instant, Reading)>,
    /// Answers and seconds of the earlier turns.
    turns: VecDeque<(f64, f64)>,
    turn: Turn,
    silence: Silence<'a>,
    command: GuardCommand,
    /// Whether the guard's condition could be judged at least once.
    judged: bool,
    /// The most requests timed within the time that the guard covers.
    most: u64,
}

impl<'a> SliceMonitor<'a> {
    /// Creates a monitor while the programs are attached. Guards compare with `reference`; `due` is the reference
    /// for silence. `loaded` tells whether the service currently has its load, so that silence counts.
    pub(crate) fn new(
        guard: Option<&'a Guard>,
        reference: &'a Reference,
        due: &'a Reference,
        loaded: bool,
    ) -> SliceMonitor<'a> {
        let now = Instant::now();
        SliceMonitor {
            guard,
            reference,
            began: now,
            recent: VecDeque::new(),
            turns: VecDeque::new(),
            turn: Turn { timed: true, since: now, on: Duration::ZERO },
            silence: Silence::new(due, loaded),
            command: GuardCommand { running: None, due: now, last: false, ended: false },
            judged: false,
            most: 0,
        }
    }

    /// Reads the counts since the last look. After each turn the programs are detached for `pause`, if that is not
    /// zero.
    pub(crate) fn look(
        &mut self,
        probe: &mut Probe,
        napi_ids: &[u32],
        pause: Duration,
    ) -> Result<(), CountError> {
        let now = Instant::now();
        if self.turn.timed {
            self.record(now, probe.read(napi_ids)?);
        }
        let answered = self.recent.front().zip(self.recent.back());
        let answered = answered.is_some_and(|(then, now)| now.1.sends > then.1.sends);
        let answered = answered && !self.silence.suspects();
        let passed = now - self.turn.since;
        // While the service is silent, timing continues, until it answers or the slice is ended.
        if !pause.is_zero() && self.turn.timed && passed >= TURN_LENGTH && answered {
            self.turn.pause(probe)?;
        } else if !self.turn.timed && passed >= pause {
            self.turn.resume(probe)?;
            let since = self.turn.since;
            self.begin_turn(since, probe.read(napi_ids)?);
        }
        Ok(())
    }

    /// Takes a reading during a turn.
    fn record(&mut self, now: Instant, reading: Reading) {
        self.silence.record(now, Answered::of(&reading));
        self.recent.push_back((now, reading));
        while self.recent.get(1).is_some_and(|(at, _)| now - *at >= BACK) {
            self.recent.pop_front();
        }
    }

    /// Begins a turn with a reading at its start: otherwise everything before the first look at the turn, half of
    /// it, would not count.
    fn begin_turn(&mut self, since: Instant, reading: Reading) {
        self.turns.extend(self.answered());
        self.recent.clear();
        self.silence.pause();
        if self.turns.len() > TURNS {
            self.turns.pop_front();
        }
        self.recent.push_back((since, reading));
    }

    /// Whether requests are timed in turns: one has ended.
    fn is_in_turns(&self) -> bool {
        !self.turn.timed || !self.turns.is_empty()
    }

    /// Seconds of requests that are needed to judge a rate.
    fn enough(&self) -> f64 {
        JUDGED_SECONDS[usize::from(self.is_in_turns())]
    }

    /// Answers, and the seconds they took, over the readings held.
    fn answered(&self) -> Option<(f64, f64)> {
        let ((first, then), (last, now)) = (self.recent.front()?, self.recent.back()?);
        let answers = now.since(then).answers().unwrap_or(0.0);
        Some((answers, (*last - *first).as_secs_f64()))
    }

    /// Answers and seconds over all turns that count towards a rate; `None` if they are too short.
    fn rate(&self) -> Option<(f64, f64)> {
        let all = self.turns.iter().copied().chain(self.answered());
        let (answers, seconds) = all.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        (seconds >= self.enough()).then_some((answers, seconds))
    }

    /// Restarts the count of the time during which requests are timed.
    pub(crate) fn restart(&mut self) {
        (self.turn.on, self.turn.since) = (Duration::ZERO, Instant::now());
    }

    /// How long requests were timed since [`restart`](Self::restart), in seconds.
    pub(crate) fn timed(&self) -> f64 {
        self.turn.seconds()
    }

    /// Whether requests through the device seem to go unanswered. They may come through instances with new ids, so
    /// a caller that reads by instance must check for those first.
    pub(crate) fn suspects(&self) -> bool {
        self.silence.suspects()
    }

    /// Tells whether the service has its load from now on.
    pub(crate) fn set_loaded(&mut self, loaded: bool) {
        self.silence.set_loaded(loaded);
    }

    /// The longest silence of the service while it had its load.
    pub(crate) fn longest_silence(&self) -> Duration {
        self.silence.longest()
    }

    /// Starts no more runs of the guard's command. Returns whether one is running, which may still break the guard.
    pub(crate) fn waits_for_command(&mut self) -> bool {
        self.command.last = true;
        self.command.running.is_some()
    }

    /// Why the guard was never judged, and what to do about it; `None` if it was. `which` describes the requests
    /// that count, as ` that came through eth0`, and is empty for all of the service's.
    pub(crate) fn unjudged(&self, which: &str) -> Option<String> {
        let condition = match self.guard? {
            Guard::Command(_) if self.command.ended => return None,
            Guard::Command(_) => return Some(format!("its command has not ended once; {LONGER}")),
            Guard::Condition(_) if self.judged => return None,
            Guard::Condition(condition) => condition,
        };
        if let Condition::Rate(_) = condition {
            return Some(format!("a rate is judged by {} s of answers; {LONGER}", self.enough()));
        }
        let (most, fewest) = (self.most, condition.fewest());
        let back = match self.is_in_turns() {
            true => "the time that is looked back at (1 s at most)",
            false => "a second",
        };
        let missing = match most {
            0 => format!("no request{which} was timed"),
            _ => format!(
                "of requests{which} at most {most} were timed in {back}, and it is judged by {fewest} or more"
            ),
        };
        // Beyond the time that the guard covers, waiting longer yields no more requests.
        let mend = if self.began.elapsed() < BACK {
            LONGER
        } else if most >= Condition::FEWEST {
            "give a higher percentile and a time (as in 'p99<5ms'), or a command as guard"
        } else if !which.is_empty() {
            "name the service by --pid, or give a command as guard"
        } else {
            "give a command as guard"
        };
        Some(format!("{missing}; {mend}"))
    }

    /// Why the slice must end, if it must. `which` and `round` are passed to the guard's command; `whole` extracts
    /// the latencies that count from a reading.
    pub(crate) fn broken(
        &mut self,
        which: &str,
        round: usize,
        signals: &Signals,
        whole: impl Fn(&Reading) -> Histogram,
    ) -> io::Result<Option<String>> {
        if let Some(why) = self.silence.broken().or_else(|| self.figures(whole)) {
            return Ok(Some(why));
        }
        match self.guard {
            Some(Guard::Command(command)) => self.command.look(command, which, round, signals),
            _ => Ok(None),
        }
    }

    fn figures(&mut self, whole: impl Fn(&Reading) -> Histogram) -> Option<String> {
        let ((first, then), (last, now)) = (self.recent.front()?, self.recent.back()?);
        let seconds = (*last - *first).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let since = now.since(then);
        let Some(Guard::Condition(condition)) = self.guard else { return None };
        let (whole, rate) = (whole(&since), self.rate());
        self.note_requests(condition, whole.count(), rate);
        let broken = condition.broken(&whole, rate, self.reference);
        broken.map(|why| format!("{}: {why}", Guard::Condition(*condition)))
    }

    /// Records whether the condition can be judged now.
    fn note_requests(&mut self, condition: &Condition, requests: u64, rate: Option<(f64, f64)>) {
        self.most = self.most.max(requests);
        self.judged |= condition.is_judged(requests, rate);
    }
}

/// The current turn: programs attached or detached.
#[derive(Debug)]
struct Turn {
    timed: bool,
    since: Instant,
    /// Total length of the earlier turns with the programs attached.
    on: Duration,
}

impl Turn {
    fn pause(&mut self, probe: &mut Probe) -> Result<(), CountError> {
        self.on += self.since.elapsed();
        let paused = probe.pause();
        (self.timed, self.since) = (false, Instant::now());
        paused
    }

    fn resume(&mut self, probe: &mut Probe) -> Result<(), CountError> {
        probe.resume()?;
        (self.timed, self.since) = (true, Instant::now());
        Ok(())
    }

    /// Total time with the programs attached, in seconds.
    fn seconds(&self) -> f64 {
        let now = if self.timed { self.since.elapsed() } else { Duration::ZERO };
        (self.on + now).as_secs_f64()
    }
}

/// The repeated runs of a guard's command.
#[derive(Debug)]
struct GuardCommand {
    running: Option<Running>,
    due: Instant,
    /// Whether no further run is started.
    last: bool,
    /// Whether a run has ended, by itself or by its time limit.
    ended: bool,
}

impl GuardCommand {
    /// Starts or checks a run; returns why the guard is broken, if it is.
    fn look(
        &mut self,
        command: &str,
        which: &str,
        round: usize,
        signals: &Signals,
    ) -> io::Result<Option<String>> {
        let Some(running) = &mut self.running else {
            if !self.last && Instant::now() >= self.due {
                self.running = Some(Running::start(command, which, round, GUARD_LIMIT, signals)?);
            }
            return Ok(None);
        };
        let Some(outcome) = running.look()? else { return Ok(None) };
        self.running = None;
        self.ended = true;
        self.due = Instant::now() + GUARD_EVERY;
        Ok(match outcome {
            Outcome::Hung => {
                Some(format!("{command:?} did not end within {} s", GUARD_LIMIT.as_secs()))
            }
            Outcome::Ended { status, .. } if status.success() => None,
            Outcome::Ended { status, .. } => Some(format!("{command:?} failed ({status})")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_under_way_in_the_end_is_waited_for_and_none_is_begun_any_more() {
        let signals = Signals::block_termination().expect("they can be blocked");
        let reference = Reference::default();
        let whole = |_: &Reading| Histogram::default();
        for (command, breaks) in [("sleep 0.1; false", true), ("sleep 0.1", false)] {
            let guard = Guard::Command(command.into());
            let mut monitor = SliceMonitor::new(Some(&guard), &reference, &reference, true);
            let mut look = || monitor.broken("base", 0, &signals, whole).expect("it can be run");
            assert_eq!(look(), None);
            assert!(monitor.waits_for_command());
            let mut broken = None;
            while broken.is_none() && monitor.waits_for_command() {
                std::thread::sleep(Duration::from_millis(1));
                broken = monitor.broken("base", 0, &signals, whole).expect("it can be run");
            }
            assert_eq!(broken.is_some(), breaks, "{broken:?}");
            std::thread::sleep(GUARD_EVERY);
            let after = monitor.broken("base", 0, &signals, whole).expect("it can be run");
            assert!(after.is_none() && !monitor.waits_for_command());
            assert_eq!(monitor.unjudged(""), None);
        }
    }

    #[test]
    fn a_guard_that_nothing_came_to_judge_by_is_known() {
        let reference = Reference::default();
        let unjudged = |text: &str, seconds: f64, requests: u64| {
            let guard: Guard = text.parse().expect(text);
            let mut monitor = SliceMonitor::new(Some(&guard), &reference, &reference, true);
            let now = Instant::now();
            let then = now.checked_sub(Duration::from_secs_f64(seconds)).expect("it is long up");
            monitor.began = then;
            monitor.recent.extend([(then, Reading::default()), (now, Reading::default())]);
            assert_eq!(monitor.figures(|_| Histogram::default()), None);
            if let Guard::Condition(condition) = &guard {
                monitor.note_requests(condition, requests, None);
            }
            monitor.unjudged(" that came through va")
        };
        let reason = |text: &str, seconds: f64, requests: u64| {
            unjudged(text, seconds, requests).expect("never judged")
        };
        let none = "no request that came through va was timed";
        let pid = "name the service by --pid, or give a command as guard";
        assert_eq!(reason("p99<1s", 1.0, 0), format!("{none}; {pid}"));
        assert_eq!(reason("p99<1s", 0.2, 0), format!("{none}; give a longer time"));
        let few = |most: u64, fewest: u64| {
            format!(
                "of requests that came through va at most {most} were timed in a second, and it is judged by \
                 {fewest} or more"
            )
        };
        assert_eq!(reason("p99<1s", 1.0, 2), format!("{}; {pid}", few(2, 3)));
        assert_eq!(unjudged("p99<1s", 1.0, 3), None);
        let higher = "give a higher percentile and a time (as in 'p99<5ms'), or a command as guard";
        assert_eq!(reason("p50<1s", 1.0, 18), format!("{}; {higher}", few(18, 19)));
        let rate = "a rate is judged by 0.5 s of answers; give a longer time";
        assert_eq!(reason("rate>1", 0.2, 0), rate);
        assert_eq!(unjudged("rate>1", 1.0, 0), None);
        assert_eq!(reason("true", 1.0, 9), "its command has not ended once; give a longer time");
        let none = SliceMonitor::new(None, &reference, &reference, true);
        assert_eq!(none.unjudged(""), None);
    }

    #[test]
    fn a_rate_of_many_answers_is_judged_by_turns_each_of_which_is_looked_at_twice() {
        let reference = Reference::default();
        let guard: Guard = "rate>1".parse().expect("a guard");
        let mut monitor = SliceMonitor::new(Some(&guard), &reference, &reference, true);
        let (mut now, mut judged) = (Instant::now(), Vec::new());
        for _ in 0..6 {
            monitor.begin_turn(now, Reading::default());
            for _ in 0..2 {
                now += TURN_LENGTH / 2;
                monitor.record(now, Reading::default());
            }
            judged.push(monitor.rate().map(|(_, seconds)| (seconds * 1e3).round()));
            now += pause_after_turn(2.0 * TIMED_PER_S);
        }
        let all = Some(250.0);
        assert_eq!(judged, [None, None, Some(150.0), Some(200.0), all, all]);
        let reason = "a rate is judged by 0.15 s of answers; give a longer time";
        assert_eq!(monitor.unjudged("").as_deref(), Some(reason));
    }

    #[test]
    fn requests_are_timed_in_turns_where_many_come_and_the_longest_rest_is_bounded() {
        assert_eq!([0.0, TIMED_PER_S].map(pause_after_turn), [Duration::ZERO; 2]);
        assert_eq!([TIMED_PER_S + 1.0, f64::INFINITY].map(pause_after_turn), PAUSES);
    }
}
