//! Summarizes a workload's table in one sentence.
//!
//! The sentence compares medians from the table and gives ratios. There is a rule for each kind of workload:
//! `answers` (latency, and the CPU it takes), `overload` (what a receiver gets under overload), `interrupts`
//! (interrupts per packet). `worlds` compares tables of several worlds. `evidence` decides whether figures can be
//! compared; if not, the sentence is *cannot tell*, with the reason.
//! compared at all; where they may not, the sentence is *cannot tell*, and why.

mod answers;
mod evidence;
mod interrupts;
mod overload;
mod worlds;

#[cfg(test)]
pub(crate) use evidence::fixed;

use crate::report::Report;
use crate::report::text::{percent, rate, time};
pub use worlds::{COLUMNS as WORLDS, apart, disagreements, side_by_side};

use evidence::{CPU, Figure, Group, P50, P99, RATE, interrupted};

/// The figures by which the rows of a workload's table are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// Latency, and the CPU that it takes.
    #[default]
    Answers,
    /// The rate of a receiver under overload.
    Overload,
    /// Interrupts per packet.
    Interrupts,
}

/// Returns the conclusion of a report by its workload's rule; `None` if nothing was measured.
pub fn conclude(report: &Report, rule: Rule) -> Option<String> {
    let groups = Group::all(report);
    if groups.iter().all(|group| group.rows.len() == 1) {
        return groups.last().and_then(single_policy);
    }
    match rule {
        Rule::Answers => answers::conclude(&groups),
        Rule::Overload => overload::conclude(&groups),
        Rule::Interrupts => interrupts::conclude(&groups),
    }
}

/// The sentence for a report of a single policy: its own figures.
fn single_policy(group: &Group<'_>) -> Option<String> {
    let only = group.rows.first()?;
    let of = |figure: Figure| only.median(figure);
    let mut parts = Vec::new();
    parts.extend(of(RATE).map(|served| format!("serves {}", rate(served))));
    parts.extend(
        of(P50)
            .zip(of(P99))
            .map(|(p50, p99)| format!("half within {} and 99 % within {}", time(p50), time(p99))),
    );
    parts.extend(of(CPU).map(|busy| format!("for {} of its CPUs", percent(busy))));
    let doubt = only.interrupted().filter(|share| *share > CPU.tolerates);
    let doubt = doubt.map(|share| format!("; {}", interrupted(share))).unwrap_or_default();
    let sentence = format!("{} {}{}{doubt}", only.name(), parts.join(", "), group.at());
    (!parts.is_empty()).then_some(sentence)
}

/// Formats a quotient: below one in per cent, else as a factor.
fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio < 0.01 => format!("{:.2} %", ratio * 100.0),
        _ if ratio < 0.995 => format!("{:.0} %", ratio * 100.0),
        _ if ratio < 9.95 => format!("{ratio:.1}x"),
        _ => format!("{ratio:.0}x"),
    }
}

/// Formats a quotient of CPU time: `45 % of its CPU`, `1.8x its CPU`.
fn of_its_cpu(ratio: f64) -> String {
    let of = if ratio < 0.995 { "of " } else { "" };
    format!("{} {of}its CPU", times(ratio))
}

#[cfg(test)]
mod tests {
    use super::evidence::fixed::{Fixed, report};
    use super::*;

    #[test]
    fn a_single_row_is_described_by_its_own_figures() {
        let row = Fixed::new("base").served(&[1e4]).p50(&[1e4]).p99(&[4e4]).cpu(&[0.35]);
        let sentence =
            conclude(&report("xsk-rr", "engine", vec![row.clone().row()]), Rule::Answers);
        let want = "base serves 10.0 k/s, half within 10.0 us and 99 % within 40.0 us, for 35.0 % of its \
                    CPUs";
        assert_eq!(sentence.as_deref(), Some(want));
        let sentence =
            conclude(&report("xsk-rr", "engine", vec![row.interrupted(0.34).row()]), Rule::Answers);
        assert!(
            sentence
                .is_some_and(|it| it.ends_with("; this host interrupted it for 34 % of the time"))
        );
    }

    #[test]
    fn for_a_single_policy_the_last_load_is_described() {
        let row = |load: u64| Fixed::new("base").load("requests_per_s", load.into());
        let rows = [10, 20].map(|load| row(load).served(&[load as f64]).row());
        let sentence = conclude(&report("memcached", "machine", rows.to_vec()), Rule::Answers);
        assert_eq!(sentence.as_deref(), Some("base serves 20.0/s at requests/s 20"));
    }

    #[test]
    fn nothing_measured_is_nothing_to_learn() {
        let empty = || Fixed::new("base").row();
        for rule in [Rule::Answers, Rule::Overload, Rule::Interrupts] {
            for rows in [Vec::new(), vec![empty()], vec![empty(), empty()]] {
                assert_eq!(conclude(&report("memcached", "machine", rows), rule), None, "{rule:?}");
            }
        }
    }

    #[test]
    fn quotients_are_short() {
        let shown = [0.004, 0.45, 1.0, 1.84, 12.3].map(times);
        assert_eq!(shown, ["0.40 %", "45 %", "1.0x", "1.8x", "12x"]);
        assert_eq!([0.45, 1.8].map(of_its_cpu), ["45 % of its CPU", "1.8x its CPU"]);
    }
}
