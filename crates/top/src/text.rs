//! Formats numbers and names for display: short, of bounded width, and safe for a terminal.

use ratatui_core::text::Span;

/// Stands for an unknown value.
pub(crate) const UNKNOWN: &str = "-";

/// The width of a text on the screen, in columns.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cuts a text to at most `columns` columns, marked by an ellipsis. Never used for numbers.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut kept, mut used) = (String::new(), 0);
    for c in text.chars() {
        let mut bytes = [0; 4];
        let more = width(c.encode_utf8(&mut bytes));
        if used + more + 1 > columns {
            break;
        }
        kept.push(c);
        used += more;
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Formats a rate in at most five characters: `0`, `0.3`, `17`, `9999`, `12.3k`, `4.56M`.
pub(crate) fn rate(rate: Option<f64>) -> String {
    let Some(rate) = rate.filter(|rate| rate.is_finite()) else { return UNKNOWN.into() };
    if rate == 0.0 {
        return "0".into();
    }
    // A rate above 0 is never shown as 0.
    if rate < 0.05 {
        return "<0.1".into();
    }
    if rate < 9.95 {
        return format!("{rate:.1}");
    }
    if rate < 9_999.5 {
        return format!("{rate:.0}");
    }
    let (mut scaled, mut unit) = (rate / 1e3, "k");
    for next in ["M", "G", "T", "P", "E"] {
        if scaled < 999.5 {
            break;
        }
        (scaled, unit) = (scaled / 1e3, next);
    }
    let decimals = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
    format!("{scaled:.decimals$}{unit}")
}

/// Formats nanoseconds as a time in at most five characters: `850ns`, `3.4us`, `34us`, `1.2ms`, `56s`.
pub(crate) fn time(ns: Option<f64>) -> String {
    let Some(ns) = ns.filter(|ns| ns.is_finite()) else { return UNKNOWN.into() };
    let (mut scaled, mut unit) = (ns, "ns");
    for next in ["us", "ms", "s"] {
        if scaled < 999.5 {
            break;
        }
        (scaled, unit) = (scaled / 1e3, next);
    }
    let decimals = usize::from(scaled < 9.95 && unit != "ns");
    format!("{scaled:.decimals$}{unit}")
}

/// Formats a share in at most four characters: `0%`, `<1%`, `37%`, `100%`; more for several CPUs.
pub(crate) fn share(share: Option<f64>) -> String {
    let Some(share) = share.filter(|share| share.is_finite()) else { return UNKNOWN.into() };
    if share > 0.0 && share < 0.005 {
        return "<1%".into();
    }
    format!("{:.0}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_at_most_five_characters_and_is_0_only_if_nothing_happened() {
        for (value, shown) in [
            (0.0, "0"),
            (0.01, "<0.1"),
            (0.3, "0.3"),
            (9.94, "9.9"),
            (9.96, "10"),
            (1_234.4, "1234"),
            (9_999.4, "9999"),
            (9_999.6, "10.0k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (1e9, "1.00G"),
            (u64::MAX as f64 * 10.0, "184E"),
        ] {
            assert_eq!(rate(Some(value)), shown);
            assert!(shown.len() <= 5);
        }
        assert_eq!((rate(None).as_str(), rate(Some(f64::NAN)).as_str()), ("-", "-"));
    }

    #[test]
    fn a_time_has_at_most_five_characters_and_its_unit() {
        for (ns, shown) in [
            (0.0, "0ns"),
            (850.4, "850ns"),
            (999.6, "1.0us"),
            (3_440.0, "3.4us"),
            (9_960.0, "10us"),
            (999_400.0, "999us"),
            (1_234_567.0, "1.2ms"),
            (56e9, "56s"),
        ] {
            assert_eq!(time(Some(ns)), shown);
        }
        assert_eq!((time(None).as_str(), time(Some(f64::INFINITY)).as_str()), ("-", "-"));
    }

    #[test]
    fn a_share_is_in_percent() {
        let shown = [Some(0.0), Some(0.001), Some(0.375), Some(1.0), Some(2.5), None].map(share);
        assert_eq!(shown, ["0%", "<1%", "38%", "100%", "250%", "-"]);
    }

    #[test]
    fn a_text_is_cut_by_columns_and_says_so() {
        assert_eq!(cut("memcached[812]", 14), "memcached[812]");
        assert_eq!(cut("memcached[812]", 6), "memca…");
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("漢字漢字", 4), "漢…");
        assert_eq!((cut("ab", 1).as_str(), cut("ab", 0).as_str()), ("…", ""));
    }

    #[test]
    fn a_name_does_nothing_to_the_terminal() {
        // Sources escape all names, including bidirectional controls.
        let name = napkin_policy::text::escaped("\x1b[2J\u{9b}31m\r\n\u{202e}");
        assert_eq!(name, r"\u{1b}[2J\u{9b}31m\r\n\u{202e}");
        assert!(!name.chars().any(char::is_control));
        assert_eq!((width(&name), width(&cut(&name, 10))), (name.len(), 10));
    }
}
