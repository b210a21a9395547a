//! Rates on the command line: `200000`, `200k`, `1M`.

/// Parses a whole rate per second, which may be 0; `None` if the text is not a rate.
pub fn whole_rate(text: &str) -> Option<u64> {
    let number = text.trim();
    let (digits, scale) = match number.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => number.strip_suffix('M').map_or((number, 1), |digits| (digits, 1_000_000)),
    };
    // `parse` would accept a leading plus sign.
    let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| whole)?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_and_have_units() {
        for (text, rate) in
            [("200000", 200_000), ("200k", 200_000), (" 2K", 2_000), ("1M", 1_000_000), ("0", 0)]
        {
            assert_eq!(whole_rate(text), Some(rate), "{text}");
        }
        for wrong in ["", "k", "+1", "-1", "1.5k", "1G", "99999999999999999999", "20000000000000M"]
        {
            assert_eq!(whole_rate(wrong), None, "{wrong}");
        }
    }
}
