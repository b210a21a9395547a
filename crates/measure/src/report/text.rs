//! Formatting of numbers with units, and wrapping of text.

use rustix::fd::AsFd;
use serde_json::Value;
use textwrap::core::Word;
use textwrap::{Options, WordSeparator, WordSplitter};

use super::round::number;

/// Line width where none is known: in a pipe, in a file.
pub const WIDTH: usize = 120;

/// Minimum line width, whatever the terminal reports.
const NARROWEST: usize = 20;

/// Line width of an output: from the environment (`COLUMNS`), else from the terminal, else [`WIDTH`].
pub fn line_width(output: impl AsFd) -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse::<usize>().ok());
    let terminal = || rustix::termios::tcgetwinsize(output).ok().map(|size| size.ws_col.into());
    let width = asked.filter(|width| *width > 0).or_else(terminal).filter(|width| *width > 0);
    width.map_or(WIDTH, |width| width.max(NARROWEST))
}

/// Wraps text to `width` characters, and indents all lines but the first by two blanks. Text without blanks, such
/// as the text of a policy, is broken after commas.
pub fn wrap(text: &str, width: usize) -> String {
    let words =
        WordSeparator::Custom(|line| Box::new(line.split_inclusive([' ', ',']).map(Word::from)));
    let options = Options::new(width.max(NARROWEST)).subsequent_indent("  ").word_separator(words);
    textwrap::fill(text, options)
}

/// Wraps text to `width` characters at blanks only, so that a longer word has a line of its own. `first` precedes
/// the first line, `rest` the others.
pub fn fill(text: &str, width: usize, first: &str, rest: &str) -> String {
    let options = Options::new(width)
        .initial_indent(first)
        .subsequent_indent(rest)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

/// Formats a duration in nanoseconds.
pub fn time(ns: f64) -> String {
    scaled(ns, 1000.0, &[" ns", " us", " ms", " s"])
}

/// Formats a range of durations in nanoseconds; the unit is given once if both are the same.
pub fn time_range(least: f64, most: f64) -> String {
    let (least, most) = (time(least), time(most));
    match (least.split_once(' '), most.split_once(' ')) {
        (Some((number, one)), Some((last, other))) if one == other => format!("{number}..{last}"),
        _ => format!("{least}..{most}"),
    }
}

/// Formats a rate per second.
pub fn rate(per_s: f64) -> String {
    scaled(per_s, 1000.0, &["/s", " k/s", " M/s", " G/s"])
}

/// Formats a fraction in per cent.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Formats a count: exact up to six digits, then rounded.
pub fn count(n: u64) -> String {
    if n < 1_000_000 {
        n.to_string()
    } else {
        scaled(n as f64, 1000.0, &["", " k", " M", " G", " T"])
    }
}

/// Formats a ratio of two counts.
pub fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

/// Formats a value of the report without a unit, and strings without quotes.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(figure) => number(figure),
        other => other.to_string(),
    }
}

/// Formats three significant digits, in the largest unit in which the number is at least 1.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or("");
    // 999.5 would be printed as 1000, so it already takes the next unit.
    while value.abs() >= step - 0.5 {
        let Some(next) = units.next() else { break };
        unit = next;
        value /= step;
    }
    let digits = match value.abs() {
        0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_three_digits_do() {
        let times = [0.0, 7.0, 950.0, 999.6, 12_700.0, 127_000.0, 1_000_000.0, 2e9, 5e12];
        let shown: Vec<_> = times.into_iter().map(time).collect();
        let want = [
            "0 ns", "7.00 ns", "950 ns", "1.00 us", "12.7 us", "127 us", "1.00 ms", "2.00 s",
            "5000 s",
        ];
        assert_eq!(shown, want);
        assert_eq!((rate(32_000.0), rate(99.96)), ("32.0 k/s".into(), "100/s".into()));
        assert_eq!((count(999_999), count(1_234_567)), ("999999".into(), "1.23 M".into()));
        assert_eq!(percent(0.1234), "12.3 %");
    }

    #[test]
    fn a_sentence_is_broken_between_words_and_a_policy_behind_its_commas() {
        assert_eq!(wrap("at least one of them fits", 20), "at least one of them\n  fits");
        let policy = "one: threaded=busy-poll,hold=50us,feedback=on";
        assert_eq!(wrap(policy, 28), "one: threaded=busy-poll,\n  hold=50us,feedback=on");
        assert_eq!(wrap(&"x".repeat(30), 20), format!("{}\n  {}", "x".repeat(18), "x".repeat(12)));
    }

    #[test]
    fn a_filled_text_is_broken_at_blanks_only() {
        assert_eq!(fill("one two-three four", 12, "a: ", "   "), "a: one\n   two-three\n   four");
        let long = "x".repeat(30);
        assert_eq!(fill(&format!("{long} y"), 20, "", "  "), format!("{long}\n  y"));
    }
}
