//! Detection of a service that no longer answers, in general or through the device, although it has the same load
//! as under the reference.
//!
//! The two are separate because a service may also answer over loopback or another device, which says nothing about
//! the device with the policy. After the programs were attached, the instance of the first request on each
//! connection is unknown. So requests through the device count as unanswered only if an excess of other answers
//! does not make up for them.

use std::time::{Duration, Instant};

use napkin_kernel::count::latency::{Part, Reading};

use crate::guard::Reference;

/// Shortest silence that ends a slice, if [`ENOUGH`] answers were due in that time by the reference's rate.
const SILENCE: Duration = Duration::from_millis(500);
/// Number of answers that must be missing.
const ENOUGH: f64 = 20.0;
/// Most of the silence for which due answers are counted: at a low rate, a longer silence proves nothing.
const BACK: Duration = Duration::from_secs(1);
/// Number of missing answers from which silence is suspected and timing continues.
const SUSPECT_MISSING: f64 = 3.0;
/// Other answers make up for the device's if they exceed the reference's rate by this fraction of the device's
/// rate.
const MADE_UP: f64 = 0.25;

/// Counts of answers so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Answered {
    /// Sends on all connections.
    sends: u64,
    /// Answers to requests that came through the device's instances.
    device: u64,
}

impl Answered {
    pub(crate) fn of(reading: &Reading) -> Answered {
        let of_device = reading.instances.iter().filter(|(id, _)| **id != 0);
        let device = of_device.map(|(_, parts)| parts.of(Part::Service).count()).sum();
        Answered { sends: reading.sends, device }
    }

    /// All other sends. They include the answers to requests through an instance that is not read (of another
    /// device, or just created), which no count by instance has.
    fn others(self) -> u64 {
        self.sends.saturating_sub(self.device)
    }

    /// Answers per second to requests through the device, and other sends per second, if these are the counts of
    /// `seconds`.
    pub(crate) fn rates(self, seconds: f64) -> [f64; 2] {
        [self.device, self.others()].map(|count| count as f64 / seconds.max(1e-9))
    }
}

/// The state of the detection.
#[derive(Debug)]
pub(crate) struct Silence<'a> {
    due: &'a Reference,
    /// Whether the service has its load: with a load that a measure brings, only while that runs.
    loaded: bool,
    /// The first look, and the time of the last change of each count, with the counts then.
    first: Option<Answered>,
    all: Option<(Instant, Answered)>,
    device: Option<(Instant, Answered)>,
    /// Length of the silence of the device before the last pause, and the number of other sends in it.
    before: (Duration, u64),
    last: Option<(Instant, Answered)>,
    longest: Duration,
}

impl<'a> Silence<'a> {
    pub(crate) fn new(due: &'a Reference, loaded: bool) -> Silence<'a> {
        let (before, longest) = ((Duration::ZERO, 0), Duration::ZERO);
        Silence { due, loaded, first: None, all: None, device: None, before, last: None, longest }
    }

    /// Restarts the detection, with or without load from now on.
    pub(crate) fn set_loaded(&mut self, loaded: bool) {
        *self = Silence { longest: self.longest, ..Silence::new(self.due, loaded) };
    }

    /// Pauses the observation. Silences of the device add up across pauses: a single turn may be too short for an
    /// answer to be missing.
    pub(crate) fn pause(&mut self) {
        self.before = self.total_device_silence().unwrap_or(self.before);
        (self.all, self.device, self.last) = (None, None, None);
    }

    /// Takes the counts at this moment.
    pub(crate) fn record(&mut self, now: Instant, answered: Answered) {
        let first = *self.first.get_or_insert(answered);
        let all = self.all.get_or_insert((now, answered));
        let mut longest = now - all.0;
        if all.1.sends != answered.sends {
            *all = (now, answered);
        }
        let device = self.device.get_or_insert((now, answered));
        // A service that was never asked through the device has no silence there.
        if answered.device != first.device {
            longest = longest.max(now - device.0);
        }
        if device.1.device != answered.device {
            *device = (now, answered);
            self.before = (Duration::ZERO, 0);
        }
        self.last = Some((now, answered));
        if self.loaded {
            self.longest = self.longest.max(longest);
        }
    }

    /// The longest time without an answer under load, at the resolution of the looks.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Length of the current silence of the device, and the number of other sends in it; since the last pause.
    fn device_silence(&self) -> Option<(Duration, u64)> {
        let ((now, answered), (since, then)) = (self.last?, self.device?);
        Some((now - since, answered.others().saturating_sub(then.others())))
    }

    /// The same, including the time before pauses.
    fn total_device_silence(&self) -> Option<(Duration, u64)> {
        let (silent, others) = self.device_silence()?;
        Some((silent + self.before.0, others + self.before.1))
    }

    /// The length of a silence, unless other sends make up for it.
    fn missed(&self, (silent, others): (Duration, u64)) -> Option<Duration> {
        let Reference { device_per_s, others_per_s, .. } = self.due;
        let made_up = (others_per_s + MADE_UP * device_per_s) * silent.as_secs_f64();
        ((others as f64) < made_up).then_some(silent)
    }

    /// Whether requests through the device may already be waiting for answers, so that timing must continue.
    pub(crate) fn suspects(&self) -> bool {
        let due = self.due.device_per_s;
        let missing = |silent: Duration| due * silent.as_secs_f64() >= SUSPECT_MISSING;
        let missed = self.total_device_silence().and_then(|it| self.missed(it));
        self.loaded && due >= ENOUGH && missed.is_some_and(missing)
    }

    /// Why the slice must end. Time before a pause does not count: after each pause the instance of the first
    /// request on a connection is unknown, and in a short turn there may be no second one.
    pub(crate) fn broken(&self) -> Option<String> {
        if !self.loaded {
            return None;
        }
        let patience = SILENCE.max(self.due.patience);
        let reason = |silent: Duration, which: &str, per_s: f64| {
            let missing = per_s * silent.min(BACK).as_secs_f64();
            (silent >= patience && missing >= ENOUGH).then(|| {
                let seconds = silent.as_secs_f64();
                format!(
                    "nothing {which}was answered for {seconds:.1} s, {per_s:.0} a second before"
                )
            })
        };
        let ((now, _), (since, _)) = (self.last?, self.all?);
        reason(now - since, "", self.due.answers_per_s).or_else(|| {
            let silent = self.missed(self.device_silence()?)?;
            reason(silent, "that came through the device ", self.due.device_per_s)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every tenth of a second at a service that answers at these rates (through the device, other) for this
    /// many tenths; returns the result at the end.
    fn after(due: &Reference, loaded: bool, phases: &[(u32, [u64; 2])]) -> (Option<String>, bool) {
        let (mut silence, mut answered) = (Silence::new(due, loaded), Answered::default());
        let mut now = Instant::now();
        for (tenths, [device, others]) in phases {
            for _ in 0..*tenths {
                now += Duration::from_millis(100);
                answered.device += device / 10;
                answered.sends += (device + others) / 10;
                silence.record(now, answered);
            }
        }
        (silence.broken(), silence.suspects())
    }

    fn due(device_per_s: f64, others_per_s: f64) -> Reference {
        let answers_per_s = device_per_s + others_per_s;
        Reference { answers_per_s, device_per_s, others_per_s, ..Reference::default() }
    }

    #[test]
    fn a_service_that_says_nothing_is_told_and_one_that_is_seldom_asked_is_not() {
        let reason =
            |due: &Reference, silent| after(due, true, &[(5, [1_000, 0]), (silent, [0, 0])]).0;
        let busy = due(1_000.0, 0.0);
        assert_eq!(reason(&busy, 4), None);
        let why = "nothing was answered for 0.5 s, 1000 a second before";
        assert_eq!(reason(&busy, 5).as_deref(), Some(why));
        assert_eq!(reason(&due(30.0, 0.0), 5), None, "15 are due");
        assert!(reason(&due(30.0, 0.0), 10).is_some());
        assert_eq!(reason(&due(10.0, 0.0), 100), None);
        assert_eq!(reason(&Reference::default(), 100), None, "nobody asked");
        let patience = Duration::from_secs(2);
        let slow = Reference { patience, ..busy };
        assert!(reason(&slow, 19).is_none() && reason(&slow, 20).is_some());
    }

    #[test]
    fn answers_over_loopback_do_not_hide_a_device_that_is_silent() {
        let both = due(1_000.0, 5_000.0);
        let (why, suspects) = after(&both, true, &[(5, [1_000, 5_000]), (5, [0, 5_000])]);
        let expected =
            "nothing that came through the device was answered for 0.5 s, 1000 a second before";
        assert_eq!((why.as_deref(), suspects), (Some(expected), true));
        assert!(after(&both, true, &[(6, [0, 5_000])]).0.is_some(), "from the beginning on");
        // After the programs were attached, the instance of some requests is unknown.
        assert_eq!(after(&both, true, &[(20, [0, 6_000])]), (None, false));
        assert_eq!(after(&both, true, &[(20, [1_000, 5_000])]), (None, false));
        assert_eq!(after(&due(0.0, 5_000.0), true, &[(20, [0, 5_000])]), (None, false));
    }

    #[test]
    fn answers_through_an_instance_that_is_not_read_make_up_for_the_device_s() {
        let reading = Reading { sends: 1_000, ..Reading::default() };
        assert_eq!(Answered::of(&reading).rates(2.0), [0.0, 500.0]);
    }

    #[test]
    fn where_it_is_looked_in_turns_the_times_without_an_answer_add_up_to_a_suspicion() {
        let due_rarely = due(45.0, 20_000.0);
        let mut silence = Silence::new(&due_rarely, true);
        let (mut now, mut answered) = (Instant::now(), Answered::default());
        let mut turn = |silence: &mut Silence<'_>, device: u64| {
            for answers in [0, device, 0] {
                now += Duration::from_millis(25);
                answered.device += answers;
                answered.sends += 500 + answers;
                silence.record(now, answered);
            }
        };
        // Two answers are missing per turn.
        for suspects in [false, true] {
            turn(&mut silence, 0);
            assert_eq!((silence.suspects(), silence.broken()), (suspects, None));
            silence.pause();
        }
        turn(&mut silence, 1);
        assert!(!silence.suspects(), "there was one");
        silence.pause();
        turn(&mut silence, 0);
        assert!(silence.suspects(), "the end of the turn before counts");
    }

    #[test]
    fn it_counts_only_while_the_service_is_asked() {
        let busy = due(1_000.0, 0.0);
        assert_eq!(after(&busy, false, &[(20, [0, 0])]), (None, false));
        let mut silence = Silence::new(&busy, false);
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        (0..20).for_each(|it| silence.record(at(it), Answered::default()));
        silence.set_loaded(true);
        (20..25).for_each(|it| silence.record(at(it), Answered::default()));
        assert_eq!((silence.broken(), silence.longest()), (None, Duration::from_millis(400)));
        silence.record(at(25), Answered::default());
        assert!(silence.broken().is_some());
        silence.pause();
        silence.record(at(40), Answered::default());
        assert_eq!((silence.broken(), silence.longest()), (None, Duration::from_millis(500)));
    }
}
