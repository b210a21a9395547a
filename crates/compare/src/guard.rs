//! The guard of a slice: a condition on the service's own figures, or a command that must not fail.
//!
//! A condition is checked every tenth of a second, over the last second. It is broken when more requests exceed its
//! limit than chance explains: of n timed requests, p99 allows n / 100 plus three standard deviations, and fewer
//! than three never break it. So a few requests suffice for large deviations, and small ones need many. A limit
//! relative to the reference uses a percentile of the reference's requests, beyond which ten of them must lie.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use napkin_kernel::count::latency::Histogram;
use napkin_policy::Time;
use thiserror::Error;

/// A condition or command that ends a slice at once and excludes its policy from the rest.
#[derive(Debug, Clone, PartialEq)]
pub enum Guard {
    /// A bound on a figure of the service.
    Condition(Condition),
    /// A command for `sh -c` that is run repeatedly; an exit code other than 0 breaks the guard.
    Command(String),
}

/// A bound on a figure of the service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Condition {
    /// A latency percentile, as a fraction (0.99 for p99), must stay below the bound.
    Latency(f64, Bound),
    /// The answers per second must stay above the bound.
    Rate(Bound),
}

/// The value of a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// A multiple of the figure under the reference.
    Times(f64),
    /// In nanoseconds, or answers per second.
    Absolute(f64),
}

/// Why a text is no valid guard.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a guard of {given:?}: {why}")]
pub struct GuardError {
    given: String,
    why: &'static str,
}

impl FromStr for Guard {
    type Err = GuardError;

    fn from_str(text: &str) -> Result<Guard, GuardError> {
        let wrong = |why| GuardError { given: text.into(), why };
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(wrong("give a condition, as in 'p99<2x', or a command"));
        }
        let Some((name, less, bound)) = parts(trimmed) else {
            return Ok(Guard::Command(trimmed.into()));
        };
        if name == "rate" {
            if less {
                return Err(wrong(
                    "a rate is guarded from below, as in 'rate>0.9x' or 'rate>5000'",
                ));
            }
            let bound = match bound.strip_suffix('x') {
                Some(times) => number(times).map(Bound::Times),
                None => number(bound).map(Bound::Absolute),
            };
            let bound = bound.ok_or(wrong(
                "after '>' comes a factor of the reference, as in 0.9x, or answers a second, as in 5000",
            ))?;
            return Ok(Guard::Condition(Condition::Rate(bound)));
        }
        if !less {
            return Err(wrong("a latency is guarded from above, as in 'p99<2x' or 'p99<500us'"));
        }
        let percent = name.get(1..).and_then(number).filter(|it| (1.0..100.0).contains(it));
        let percent = percent.ok_or(wrong("a percentile is from p1 to below p100, as in p99.9"))?;
        let bound = match bound.strip_suffix('x') {
            Some(times) => number(times).map(Bound::Times),
            None => {
                let above_zero = |Time(ns): Time| (ns > 0).then_some(Bound::Absolute(ns as f64));
                bound.parse().ok().and_then(above_zero)
            }
        };
        let bound = bound.ok_or(wrong(
            "after '<' comes a factor of the reference, as in 2x, or a time above 0, as in 500us",
        ))?;
        Ok(Guard::Condition(Condition::Latency(percent / 100.0, bound)))
    }
}

/// Splits a condition into its name, whether the operator is `<`, and its bound. `None` for anything else, which is
/// a command; a command may contain redirections.
fn parts(text: &str) -> Option<(&str, bool, &str)> {
    let at = text.find(['<', '>'])?;
    let (name, rest) = text.split_at(at);
    let name = name.trim();
    let percentile = name
        .strip_prefix('p')
        .is_some_and(|it| !it.is_empty() && it.chars().all(|it| it.is_ascii_digit() || it == '.'));
    (percentile || name == "rate").then(|| (name, rest.starts_with('<'), rest[1..].trim()))
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|it: &f64| it.is_finite() && *it > 0.0)
}

impl Guard {
    /// Whether the guard is relative to a reference that has no requests: such a guard could never break.
    pub(crate) fn lacks(&self, reference: &Reference) -> bool {
        let relative = matches!(
            self,
            Guard::Condition(
                Condition::Latency(_, Bound::Times(_)) | Condition::Rate(Bound::Times(_))
            )
        );
        relative && reference.whole.count() == 0
    }

    /// Why the reference has too few requests for the percentile that the guard multiplies, or `None` if it has
    /// enough: with a handful, the percentile is one random request.
    pub(crate) fn too_few(&self, reference: &Reference) -> Option<String> {
        let Guard::Condition(Condition::Latency(part, Bound::Times(_))) = *self else {
            return None;
        };
        let whole = &reference.whole;
        whole.known_quantile(part).is_none().then(|| {
            format!(
                "{} requests before the change do not tell a {}, beyond which ten must lie",
                whole.count(),
                percentile(part)
            )
        })
    }
}

/// A percentile's name, as `p99.9`.
fn percentile(part: f64) -> String {
    format!("p{}", (part * 1e6).round() / 1e4)
}

/// The figures under the reference.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reference {
    pub(crate) whole: Histogram,
    pub(crate) answers_per_s: f64,
    /// Answers per second to requests that came through the device's instances, and all other sends per second; the
    /// first is 0 if unknown.
    pub(crate) device_per_s: f64,
    pub(crate) others_per_s: f64,
    /// Minimum length of a silence that counts; under a measure's load also twice the longest silence of the
    /// reference.
    pub(crate) patience: Duration,
}

/// Whether `beyond` of `count` requests over the limit are more than chance explains, if the fraction `part` must
/// stay within it.
fn breaks(beyond: f64, count: f64, part: f64) -> bool {
    let allowed = count * (1.0 - part);
    beyond >= Condition::FEWEST as f64 && beyond > allowed + 3.0 * allowed.sqrt()
}

impl Condition {
    /// The least number of requests beyond a limit that can break a condition, whatever the percentile.
    pub(crate) const FEWEST: u64 = 3;

    /// Whether this many requests, or these answers, suffice to judge the condition; with fewer it can never break.
    pub(crate) fn is_judged(&self, count: u64, answered: Option<(f64, f64)>) -> bool {
        match *self {
            Condition::Latency(part, _) => breaks(count as f64, count as f64, part),
            Condition::Rate(_) => answered.is_some(),
        }
    }

    /// The fewest requests by which the condition can be judged; 0 for a rate, which is judged by time.
    pub(crate) fn fewest(&self) -> u64 {
        // p1 needs the most: some 90000.
        match self {
            Condition::Latency(..) => {
                (0..100_000).find(|count| self.is_judged(*count, None)).unwrap_or(100_000)
            }
            Condition::Rate(_) => 0,
        }
    }

    /// Why the condition is broken, or `None`. `answered` is a number of answers and of seconds, if these suffice
    /// to judge a rate.
    pub(crate) fn broken(
        &self,
        whole: &Histogram,
        answered: Option<(f64, f64)>,
        reference: &Reference,
    ) -> Option<String> {
        match *self {
            Condition::Latency(part, bound) => {
                let limit = match bound {
                    Bound::Absolute(ns) => ns,
                    Bound::Times(times) => times * reference.whole.known_quantile(part)?,
                };
                let (count, beyond) = (whole.count() as f64, whole.above(limit) as f64);
                breaks(beyond, count, part).then(|| {
                    let limit = napkin_measure::report::text::time(limit);
                    format!("{beyond} of {count} requests took more than {limit}")
                })
            }
            Condition::Rate(bound) => {
                let (answers, seconds) = answered?;
                let limit = match bound {
                    Bound::Absolute(rate) => rate,
                    Bound::Times(times) => times * reference.answers_per_s,
                };
                let due = limit * seconds;
                // Less than the limit by three standard deviations of a count.
                let broken = answers < due - 3.0 * due.sqrt();
                let rate = answers / seconds;
                broken.then(|| format!("{rate:.0} answers a second, below {limit:.0}"))
            }
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |bound: &Bound, time: bool| match *bound {
            Bound::Times(times) => format!("{times}x"),
            Bound::Absolute(ns) if time => Time(ns as u64).to_string(),
            Bound::Absolute(rate) => rate.to_string(),
        };
        match self {
            Guard::Command(command) => f.write_str(command),
            Guard::Condition(Condition::Rate(limit)) => write!(f, "rate>{}", bound(limit, false)),
            Guard::Condition(Condition::Latency(part, limit)) => {
                write!(f, "{}<{}", percentile(*part), bound(limit, true))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        match text.parse() {
            Ok(Guard::Command(command)) => Ok(format!("command: {command}")),
            Ok(guard) => Ok(guard.to_string()),
            Err(error) => Err(GuardError::to_string(&error)),
        }
    }

    #[test]
    fn a_guard_is_a_condition_or_a_command() {
        for (text, guard) in [
            ("p99<2x", "p99<2x"),
            (" p99.9 < 500us ", "p99.9<500us"),
            ("rate>0.9x", "rate>0.9x"),
            ("rate > 5000", "rate>5000"),
            ("./healthy >/dev/null", "command: ./healthy >/dev/null"),
            ("pgrep -x nginx > /dev/null", "command: pgrep -x nginx > /dev/null"),
        ] {
            assert_eq!(read(text), Ok(guard.into()));
        }
        for (text, why) in [
            ("", "give a condition"),
            ("p99>2x", "from above"),
            ("rate<1x", "from below"),
            ("p100<2x", "below p100"),
            ("p99<fast", "a time"),
            ("p99<0x", "a time"),
            ("rate>-1", "answers a second"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_relative_guard_lacks_the_requests_that_it_compares_with() {
        let lacks = |text: &str| {
            let guard: Guard = text.parse().expect(text);
            guard.lacks(&Reference::default())
        };
        assert!(lacks("p99<2x") && lacks("rate>0.9x"));
        assert!(!lacks("p99<500us") && !lacks("rate>5000") && !lacks("./healthy"));
    }

    #[test]
    fn a_percentile_that_the_reference_does_not_tell_is_none_to_compare_with() {
        let too_few = |text: &str| {
            let guard: Guard = text.parse().expect(text);
            guard.too_few(&Reference::default())
        };
        let why = "0 requests before the change do not tell a p99.9, beyond which ten must lie";
        assert_eq!(too_few("p99.9<2x").as_deref(), Some(why));
        for other in ["p99<500us", "rate>0.9x", "rate>5000", "./healthy"] {
            assert_eq!(too_few(other), None);
        }
    }

    #[test]
    fn too_few_requests_or_too_short_a_time_judge_nothing() {
        let condition = |text: &str| match text.parse() {
            Ok(Guard::Condition(condition)) => condition,
            other => panic!("{other:?}"),
        };
        for (text, fewest) in [("p99<1us", 3), ("p50<1us", 19), ("p99.9<2x", 3)] {
            let condition = condition(text);
            assert_eq!(condition.fewest(), fewest, "{text}");
            assert!(condition.is_judged(fewest, None) && !condition.is_judged(fewest - 1, None));
            assert!(!condition.is_judged(0, Some((1_000.0, 0.5))));
        }
        assert!(condition("p1<1us").fewest() < 100_000);
        let rate = condition("rate>1000000");
        assert!(rate.is_judged(0, Some((0.0, 0.5))) && !rate.is_judged(1_000, None));
    }

    #[test]
    fn a_rate_is_broken_by_what_chance_does_not_explain() {
        let reference = Reference { answers_per_s: 20_000.0, ..Reference::default() };
        let condition = Condition::Rate(Bound::Times(0.9));
        let broken = |answered| condition.broken(&Histogram::default(), answered, &reference);
        assert_eq!(broken(None), None, "too little to judge by");
        assert_eq!(broken(Some((3_600.0, 0.2))), None, "just the limit");
        assert_eq!(broken(Some((3_450.0, 0.2))), None, "within three deviations");
        let why = broken(Some((2_000.0, 0.2))).expect("half of it");
        assert_eq!(why, "10000 answers a second, below 18000");
    }
}
