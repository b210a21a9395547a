//! Times on the command line.
//!
//! Not those in a policy's text, which the core reads.

use std::time::Duration;

/// A setting in nanoseconds: a bare number is in nanoseconds, as on the kernel's netlink.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    read(text, &units, 1).ok_or_else(|| {
        "give a whole number with ns, us, ms or s, or none for nanoseconds, as in 20us".into()
    })
}

/// A length of time: a bare number is in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    read(text, &units, 1_000).map(Duration::from_millis).ok_or_else(|| {
        "give a whole number with ms, s, m or h, or none for seconds, as in 10s".into()
    })
}

fn read(text: &str, units: &[(&str, u64)], bare: u64) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let unit = match suffix {
        "" => bare,
        _ => units.iter().find(|(name, _)| *name == suffix)?.1,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_in_nanoseconds_unless_it_says_otherwise() {
        assert_eq!(nanoseconds("15000"), Ok(15_000));
        assert_eq!(nanoseconds("20us"), Ok(20_000));
        assert_eq!(nanoseconds("1s"), Ok(1_000_000_000));
        for wrong in ["", "us", "-1", "1.5ms", "20 us", "99999999999s", "1m"] {
            assert!(nanoseconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_is_in_seconds_unless_it_says_otherwise() {
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1_500)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
        assert!(duration("2us").is_err());
    }
}
