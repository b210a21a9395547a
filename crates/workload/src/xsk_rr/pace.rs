//! The workload's loads: the rate of the packets, and for how long the application is busy after each reply.

use napkin_policy::{MICROSECOND, Ns};
use serde_json::{Map, Value, json};

/// A rate, given as a period like the tool's option, and the application's delay after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The document's name for the rate, in packets per second.
    pub name: u32,
    /// Nanoseconds between packets.
    pub period: Ns,
    /// Nanoseconds for which the application does not receive after a reply.
    pub delay: Ns,
}

/// The document's five workloads. "12K" is a period of 80 us, so each workload with a delay leaves about 2 us of
/// slack, or 1 us at a period of 31 us.
pub const PACES: [Pace; 5] = [
    Pace { name: 12_000, period: 80 * MICROSECOND, delay: 0 },
    Pace { name: 32_000, period: 31 * MICROSECOND, delay: 30 * MICROSECOND },
    Pace { name: 125_000, period: 8 * MICROSECOND, delay: 6 * MICROSECOND },
    Pace { name: 12_000, period: 80 * MICROSECOND, delay: 78 * MICROSECOND },
    Pace { name: 25_000, period: 40 * MICROSECOND, delay: 38 * MICROSECOND },
];

impl Pace {
    /// Returns the document's pace of that name and delay, if there is one; otherwise one with exactly this rate.
    pub(super) fn of(name: u32, delay: Ns) -> Pace {
        let published = PACES.iter().find(|pace| pace.name == name && pace.delay == delay);
        let exactly = Pace { name, period: 1_000_000_000 / u64::from(name).max(1), delay };
        published.copied().unwrap_or(exactly)
    }

    /// Returns the parameters for the report.
    pub(super) fn load(self) -> Map<String, Value> {
        let Pace { name, period, delay } = self;
        Map::from_iter([
            ("frames_per_s".to_owned(), json!(name)),
            ("period_ns".to_owned(), json!(period)),
            ("delay_ns".to_owned(), json!(delay)),
        ])
    }
}

/// Explains the two kinds of percentiles in a report.
pub(super) fn of_percentiles(span: &str) -> String {
    format!(
        "p5..p99.9 are percentiles of the time from {span}; \"p5\"..\"p99\" are the 2025 document's \
         estimator (a truncating mean of the fastest p %)"
    )
}

/// Returns remarks on these paces, for the report.
pub(super) fn notes(paces: &[Pace]) -> Vec<String> {
    let published = || paces.iter().filter(|pace| PACES.contains(pace));
    let mut notes: Vec<String> = Vec::new();
    for pace in published() {
        // The actual rate differs from the name.
        let actual = (1e9 / pace.period as f64).round();
        let note = format!(
            "{}/s is the document's name for a period of {} us ({actual}/s)",
            pace.name,
            pace.period / MICROSECOND
        );
        if actual != f64::from(pace.name) && !notes.contains(&note) {
            notes.push(note);
        }
    }
    if published().any(|pace| pace.delay > 0) {
        notes.push(
            "the document's rows with a delay run at 75-97 % load: this machine's own gaps exceed their slack, \
             so they are reported and not judged"
                .into(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_whose_name_is_not_its_rate_says_so() {
        let text = |paces: &[Pace]| notes(paces).join("\n");
        assert_eq!(
            text(&PACES[..1]),
            "12000/s is the document's name for a period of 80 us (12500/s)"
        );
        assert_eq!(text(&PACES).matches("12000/s is").count(), 1, "once for both");
        assert!(text(&PACES[1..2]).contains("75-97 % load"));
        let own = Pace { name: 12_000, period: 83_333, delay: u64::MAX };
        assert_eq!(text(&[own]), "", "as it was asked for");
    }

    #[test]
    fn a_rate_of_the_document_s_has_its_period() {
        assert_eq!(Pace::of(32_000, 30_000), PACES[1]);
        assert_eq!(Pace::of(32_000, 0).period, 31_250);
    }
}
