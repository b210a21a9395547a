//! Writes metrics as text: OpenMetrics 1.0, or Prometheus' text format 0.0.4.
//!
//! The two differ in a counter's name in its `# TYPE` and `# HELP` lines, in the final line, and in the
//! escapes allowed in a help text. A request's `Accept` header selects one.

use std::fmt::Write;

use crate::families::{Family, Kind, Series};

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4, which every scraper accepts.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Selects the format by an `Accept` header: OpenMetrics if it is listed, whatever its weight.
    pub fn accepted(accept: &[u8]) -> Format {
        let accept = accept.to_ascii_lowercase();
        let wanted = b"application/openmetrics-text";
        let named = accept.windows(wanted.len()).any(|part| part == wanted);
        if named { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Its media type, for `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes families as text.
    pub fn write<'a>(self, families: impl IntoIterator<Item = &'a Family>) -> String {
        let mut text = String::new();
        for family in families {
            self.family(&mut text, family);
        }
        if self == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn family(self, text: &mut String, family: &Family) {
        let (kind, suffix) = match family.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
        };
        let name = family.name;
        let described = if self == Format::Prometheus { suffix } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name}{described} {}", escaped(family.help, false));
        let _ = writeln!(text, "# TYPE {name}{described} {kind}");
        for Series { suffix: part, labels, value } in &family.series {
            let _ = write!(text, "{name}{suffix}{part}");
            for (number, (label, value)) in labels.iter().enumerate() {
                let before = if number == 0 { '{' } else { ',' };
                let _ = write!(text, "{before}{label}=\"{}\"", escaped(value, true));
            }
            let close = if labels.is_empty() { "" } else { "}" };
            let _ = writeln!(text, "{close} {value}");
        }
    }
}

/// Escapes backslashes and newlines, and quotes if `quotes` is set.
fn escaped(text: &str, quotes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '"' if quotes => escaped.push_str("\\\""),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls() -> Vec<Family> {
        let labels = vec![("device", "eth0".to_owned()), ("by", "a\"b\\c\nd".to_owned())];
        let counter = Family {
            name: "napkin_polls",
            kind: Kind::Counter,
            help: "Polls.",
            series: vec![Series::new(labels, 12.0)],
        };
        let gauge = Family {
            name: "napkin_up",
            kind: Kind::Gauge,
            help: "Whether.",
            series: vec![Series::new(vec![], 0.5)],
        };
        vec![counter, gauge]
    }

    #[test]
    fn prometheus_has_the_suffix_everywhere() {
        let expected = "\
# HELP napkin_polls_total Polls.
# TYPE napkin_polls_total counter
napkin_polls_total{device=\"eth0\",by=\"a\\\"b\\\\c\\nd\"} 12
# HELP napkin_up Whether.
# TYPE napkin_up gauge
napkin_up 0.5
";
        assert_eq!(Format::Prometheus.write(&polls()), expected);
    }

    #[test]
    fn openmetrics_has_it_on_the_value_alone_and_an_end() {
        let expected = "\
# HELP napkin_polls Polls.
# TYPE napkin_polls counter
napkin_polls_total{device=\"eth0\",by=\"a\\\"b\\\\c\\nd\"} 12
# HELP napkin_up Whether.
# TYPE napkin_up gauge
napkin_up 0.5
# EOF
";
        assert_eq!(Format::OpenMetrics.write(&polls()), expected);
    }

    #[test]
    fn a_reader_that_names_openmetrics_gets_it() {
        let prometheus_3 =
            b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
        assert_eq!(Format::accepted(prometheus_3), Format::OpenMetrics);
        assert_eq!(Format::accepted(b"*/*"), Format::Prometheus);
        assert_eq!(Format::accepted(b""), Format::Prometheus);
    }
}
