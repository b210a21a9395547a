//! Times, sizes and worlds on the command line, in the types that options have.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use napkin_policy::{Time, TimeError};
use napkin_workload::World;
use napkin_workload::machine::plan::MAX_VIRTUAL_TIME;

/// A time in nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, TimeError> {
    text.parse().map(|Time(time)| time)
}

/// The virtual time of a run in nanoseconds: above 0 and at most [`MAX_VIRTUAL_TIME`].
pub(crate) fn virtual_time(text: &str) -> Result<u64, String> {
    match nanoseconds(text).map_err(|error| error.to_string())? {
        0 => Err("a run's virtual time is longer than 0".into()),
        time if time > MAX_VIRTUAL_TIME => Err("a run has at most 1h of virtual time".into()),
        time => Ok(time),
    }
}

/// Events a second; `None` for as many as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) Option<u64>);

/// Reads a rate, or `max`.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    match napkin_workload::whole_rate(text) {
        _ if text == "max" => Ok(Rate(None)),
        Some(rate) => Ok(Rate(Some(rate))),
        None => Err("give a whole number a second, as in 20000, 20k or 1M, or max".into()),
    }
}

/// Reads a rate that 32 bits hold; it may be 0.
pub(crate) fn per_second(text: &str) -> Result<u32, String> {
    let rate = napkin_workload::whole_rate(text).and_then(|rate| u32::try_from(rate).ok());
    rate.ok_or_else(|| {
        format!("give a whole number a second, as in 20000, 20k or 1M, of at most {}", u32::MAX)
    })
}

/// Reads a number of parallel runs.
pub(crate) fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "give a whole number of at least 1".to_owned())
}

/// A time as a [`Duration`].
pub(crate) fn duration(text: &str) -> Result<Duration, TimeError> {
    nanoseconds(text).map(Duration::from_nanos)
}

/// Reads such a time between two bounds, both included.
pub(crate) fn within(
    bounds: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text: &str| match duration(text).map_err(|error| error.to_string())? {
        short if short < *bounds.start() => Err(format!("give at least {:?}", bounds.start())),
        long if long > *bounds.end() => Err(format!("give at most {:?}", bounds.end())),
        time => Ok(time),
    }
}

/// A real-time priority.
pub(crate) fn priority(text: &str) -> Result<u8, String> {
    let priority = text.parse::<u8>().ok().filter(|it| (1..=99).contains(it));
    priority.ok_or_else(|| "a SCHED_FIFO priority is 1 to 99".to_owned())
}

/// A number of bytes, with K, M, G or T behind it for powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let form = || "give bytes, with K, M, G or T for powers of 1024, as in 512M".to_owned();
    let unit = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(form()),
    };
    let number: u64 = number.parse().map_err(|_| form())?;
    number.checked_mul(1 << shift).ok_or_else(|| "a size is less than 16 EiB".to_owned())
}

/// Reads a world's name.
pub(crate) fn world() -> impl TypedValueParser<Value = World> {
    let name = |(world, what): &(World, &'static str)| PossibleValue::new(world.name()).help(*what);
    let read = |text: String| {
        let named = World::ALL.into_iter().find(|(world, _)| world.name() == text);
        named.map(|(world, _)| world).ok_or("a world that is listed is one")
    };
    PossibleValuesParser::new(World::ALL.iter().map(name)).try_map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_one_of_the_kernels() {
        assert_eq!(priority("1"), Ok(1));
        assert_eq!(priority("99"), Ok(99));
        for wrong in ["0", "100", "200", "300", "-1", "high", ""] {
            assert_eq!(priority(wrong), Err("a SCHED_FIFO priority is 1 to 99".into()), "{wrong}");
        }
    }

    #[test]
    fn a_rate_may_be_0_and_is_bounded_and_nothing_runs_0_at_a_time() {
        assert_eq!(per_second("0"), Ok(0));
        assert_eq!(per_second("5k"), Ok(5_000));
        assert_eq!(per_second("4294967295"), Ok(u32::MAX));
        for wrong in ["4294967296", "5000M", "max", "-1", ""] {
            let error = per_second(wrong).unwrap_err();
            assert!(error.starts_with("give a whole number a second"), "{wrong}: {error}");
        }
        assert_eq!(jobs("3"), Ok(NonZeroUsize::new(3).unwrap()));
        for wrong in ["0", "-1", "all", ""] {
            assert_eq!(jobs(wrong), Err("give a whole number of at least 1".into()), "{wrong}");
        }
    }

    #[test]
    fn a_time_beyond_its_bounds_is_told_them() {
        let read = within(Duration::from_millis(100)..=Duration::from_secs(60));
        assert_eq!(read("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(read("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(read("99ms"), Err("give at least 100ms".into()));
        assert_eq!(read("61s"), Err("give at most 60s".into()));
        assert!(read("soon").is_err());
    }

    #[test]
    fn a_size_has_one_unit() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("16777215T"), Ok(16_777_215 << 40));
        for wrong in
            ["", "M", "1m", "-1", "1.5G", "1GiB", "1 G", "16777216T", "99999999999999999999"]
        {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
