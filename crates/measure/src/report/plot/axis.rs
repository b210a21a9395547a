//! A numeric axis: maps values to positions, with ticks at round numbers.

/// Largest number of ticks wanted on a linear axis.
const TICKS: f64 = 7.0;

/// A scale from values to fractions of an axis's length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// A scale that includes all values. A linear one runs from zero, or from the minimum if that is negative, to a
    /// round number. A logarithmic one runs between 1, 2 or 5 times powers of ten, and leaves out values at or
    /// below zero. Without values, it runs from 0 to 1, or from 1 to 10.
    pub fn over(values: impl IntoIterator<Item = f64>, log: bool) -> Scale {
        let shown = values.into_iter().filter(|v| v.is_finite() && (!log || *v > 0.0));
        let bounds = shown.fold(None, |bounds: Option<(f64, f64)>, v| {
            Some(bounds.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        });
        if log {
            let (low, high) = bounds.unwrap_or((1.0, 10.0));
            let (low, high) = (round_down(low), round_up(high));
            // A single round value would give an empty range.
            let high = if high > low { high } else { low * 10.0 };
            return Scale { low, high, log };
        }
        let (low, high) = bounds.unwrap_or((0.0, 1.0));
        let (low, high) = (low.min(0.0), high.max(0.0));
        let high = if high > low { high } else { low + 1.0 };
        let step = step(high - low);
        Scale { low: (low / step).floor() * step, high: (high / step).ceil() * step, log }
    }

    /// The position of a value: 0 at the lower end and 1 at the upper; `None` if it is not finite, or not positive
    /// on a logarithmic axis.
    pub fn place(self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        Some(if self.log {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        })
    }

    /// Values of the ticks, ascending.
    pub fn ticks(self) -> Vec<f64> {
        if !self.log {
            let step = step(self.high - self.low);
            let count = ((self.high - self.low) / step).round() as i64;
            let first = (self.low / step).round() as i64;
            return (first..=first + count).map(|k| k as f64 * step).collect();
        }
        let decades = (self.high / self.low).log10();
        let parts: &[f64] = if decades <= 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (from, to) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let all = (from..=to).flat_map(|k| parts.iter().map(move |part| part * 10f64.powi(k)));
        let slack = 1.0 + 1e-9;
        all.filter(|tick| *tick >= self.low / slack && *tick <= self.high * slack).collect()
    }
}

/// 1, 2 or 5 times a power of ten, such that a range has few steps.
fn step(range: f64) -> f64 {
    round_up(range / TICKS)
}

/// The smallest 1, 2 or 5 times a power of ten that is at least a positive value.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    let fits = |part: &f64| part * power >= value * (1.0 - 1e-9);
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * power
}

/// The largest 1, 2 or 5 times a power of ten that is at most a positive value.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    let fits = |part: &f64| part * power <= value * (1.0 + 1e-9);
    [5.0, 2.0, 1.0].into_iter().find(fits).unwrap_or(1.0) * power
}

/// Formats a value: whole numbers in full, others with enough digits to compare.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        // A difference by rounding of binary fractions still counts as whole.
        _ if size >= 1000.0 || (value - value.round()).abs() <= size * 1e-12 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 0.1 => 2,
        // Three significant digits, and at least four decimals.
        _ => (2 - size.log10().floor() as i32).max(4) as usize,
    };
    format!("{value:.digits$}")
}

/// Text of a tick: large numbers in thousands (k) or millions (M).
pub fn tick_text(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-4 {
        let text = format!("{value:.2e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'));
    }
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Ticks are round: six decimals are enough, and hide the rounding of binary fractions.
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-12)
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_ends_at_a_round_number() {
        let scale = Scale::over([13.0, 95.0], false);
        assert_eq!(scale.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert!(near(scale.place(50.0), 0.5) && near(scale.place(0.0), 0.0));
    }

    #[test]
    fn negative_values_widen_a_linear_axis_downwards() {
        let scale = Scale::over([-3.0, 4.0], false);
        assert_eq!(scale.ticks(), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn a_logarithmic_axis_ends_at_round_numbers_and_has_ticks_between_them() {
        let scale = Scale::over([129.0, 10_231.0], true);
        assert_eq!(scale.ticks(), [100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4]);
        assert!(near(scale.place(100.0), 0.0) && near(scale.place(20_000.0), 1.0));
        assert_eq!(scale.place(0.0), None);
        let wide = Scale::over([1.0, 1e6], true);
        assert_eq!(wide.ticks().len(), 7, "decades only");
    }

    #[test]
    fn one_value_none_or_one_that_is_no_number_still_makes_an_axis() {
        for log in [false, true] {
            for values in [vec![], vec![5.0], vec![0.0], vec![f64::NAN], vec![100.0]] {
                let scale = Scale::over(values.clone(), log);
                assert!(scale.ticks().len() >= 2, "{values:?} {log}");
                assert_eq!(scale.place(f64::NAN), None);
            }
        }
    }

    #[test]
    fn numbers_keep_the_digits_that_matter() {
        let values = [0.0, 1.0 + 1e-15, 982_241.0, 4999.7, 20247.5, 117.53, 9.876, 0.0312, -2.5];
        let shown: Vec<_> = values.into_iter().map(number).collect();
        let want = ["0", "1", "982241", "5000", "20248", "117.5", "9.88", "0.0312", "-2.50"];
        assert_eq!(shown, want);
    }

    #[test]
    fn tick_texts_are_short() {
        let texts: Vec<_> = [0.0, 0.30000000000000004, 5.0, 5000.0, 20_000.0, 1.2e6]
            .into_iter()
            .map(tick_text)
            .collect();
        assert_eq!(texts, ["0", "0.3", "5", "5000", "20k", "1.2M"]);
    }
}
