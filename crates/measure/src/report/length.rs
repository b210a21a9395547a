//! Formats durations for people: `1 min 10 s`.

/// A duration in its two largest units.
pub fn length(seconds: f64) -> String {
    /// Name, length in seconds, and how many of the next smaller unit it has.
    const UNITS: [(&str, f64, f64); 4] = [
        ("years", 31_557_600.0, 365.25),
        ("days", 86_400.0, 24.0),
        ("h", 3_600.0, 60.0),
        ("min", 60.0, 60.0),
    ];
    if seconds < 0.9995 {
        return format!("{:.0} ms", (seconds * 1e3).max(1.0));
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let smaller = ["days", "h", "min", "s"];
    for ((name, unit, parts), small) in UNITS.into_iter().zip(smaller) {
        // Round first, so that there is never a remainder of 60 s.
        let all = (seconds / unit * parts).round();
        if all >= parts {
            let (whole, rest) = ((all / parts).floor(), all % parts);
            let rest = rest.floor();
            let rest = if rest > 0.0 { format!(" {rest:.0} {small}") } else { String::new() };
            return format!("{whole:.0} {name}{rest}");
        }
    }
    format!("{seconds:.0} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_its_two_largest_units() {
        let lengths = [
            (0.0, "1 ms"),
            (0.0204, "20 ms"),
            (0.9999, "1.0 s"),
            (1.25, "1.2 s"),
            (9.96, "10 s"),
            (59.4, "59 s"),
            (59.6, "1 min"),
            (70.0, "1 min 10 s"),
            (3_599.7, "1 h"),
            (7_500.0, "2 h 5 min"),
            (86_400.0 * 3.5, "3 days 12 h"),
            (31_557_600.0 * 158.0, "158 years"),
        ];
        for (seconds, text) in lengths {
            assert_eq!(length(seconds), text, "{seconds}");
        }
    }
}
