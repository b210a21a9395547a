//! What a workload shows, in words before it runs; and what to learn from its table, in a sentence after.
//!
//! The sentence is drawn from the table's own figures, by a rule for each kind of workload: `answers`
//! (latency, and the CPU that it takes), `overload` (what a receiver gets of too much), `interrupts`
//! (how many a packet takes). `worlds` sets several worlds' tables beside each other. It compares medians and gives ratios. `evidence` says when figures may be
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
pub use worlds::{COLUMNS as WORLDS, disagreements, side_by_side};

use evidence::{CPU, Figure, Group, P50, P99, RATE, interrupted};

/// What a workload does and shows, by its name; empty for one that is not known.
pub fn shows(workload: &str) -> &'static str {
    match workload {
        "flood-ping" => {
            "A client sends the next echo request when it has the reply, and the host answers by itself. \
             Shows what an interrupt for every packet costs, and what is saved by holding it back."
        }
        "udp-sink" => {
            "A program receives datagrams on the CPU that also delivers them, up to several times more \
             than that CPU can take. Shows under which policies it goes on receiving, and which starve it."
        }
        "xsk-rr" => {
            "Frames come at a fixed rate, and a program answers each at once. Shows how soon and how \
             steadily each policy lets it answer, and how much CPU goes into looking for frames."
        }
        "memcached" => {
            "A memcached answers requests at several rates. Shows which policies answer soonest, which \
             answer most, and what CPU they take for it."
        }
        "tcp-rr" => {
            "A thousand connections send a request each and wait for its response. Shows whether a \
             thread for each queue answers more, and sooner, than softirqs do."
        }
        "ssd" => {
            "Clients read from and write to a remote disk at a fixed rate. Shows which policies keep up, \
             and what CPU they take for it."
        }
        _ => "",
    }
}

/// What to learn from a report; `None` where nothing was measured, or of a workload that is not known.
pub fn conclude(report: &Report) -> Option<String> {
    let groups = Group::all(report);
    if groups.iter().all(|group| group.rows.len() == 1) {
        return groups.last().and_then(alone);
    }
    match report.workload.as_str() {
        "flood-ping" => interrupts::conclude(&groups),
        "udp-sink" => overload::conclude(&groups),
        "xsk-rr" | "memcached" | "tcp-rr" | "ssd" => answers::conclude(&groups),
        _ => None,
    }
}

/// Of one policy: its own figures.
fn alone(group: &Group<'_>) -> Option<String> {
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
    let doubt = only.interrupted().filter(|share| *share > CPU.bears);
    let doubt = doubt.map(|share| format!("; {}", interrupted(share))).unwrap_or_default();
    let told = format!("{} {}{}{doubt}", only.name(), parts.join(", "), group.at());
    (!parts.is_empty()).then_some(told)
}

/// A quotient for people: shares below one in per cent.
fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio < 0.01 => format!("{:.2} %", ratio * 100.0),
        _ if ratio < 0.995 => format!("{:.0} %", ratio * 100.0),
        _ if ratio < 9.95 => format!("{ratio:.1}x"),
        _ => format!("{ratio:.0}x"),
    }
}

/// A quotient of CPU time: `45 % of its CPU`, `1.8x its CPU`.
fn of_its_cpu(ratio: f64) -> String {
    let of = if ratio < 0.995 { "of " } else { "" };
    format!("{} {of}its CPU", times(ratio))
}

#[cfg(test)]
mod tests {
    use super::evidence::fixed::{Fixed, report};
    use super::*;

    #[test]
    fn every_workload_says_what_it_shows() {
        for name in ["flood-ping", "udp-sink", "xsk-rr"] {
            assert!(shows(name).contains("Shows "), "{name}");
        }
        assert_eq!(shows("weather"), "");
    }

    #[test]
    fn a_single_row_is_told_in_its_own_figures() {
        let row = Fixed::new("base").served(&[1e4]).p50(&[1e4]).p99(&[4e4]).cpu(&[0.35]);
        let told = conclude(&report("xsk-rr", "engine", vec![row.clone().row()]));
        let want = "base serves 10.0 k/s, half within 10.0 us and 99 % within 40.0 us, for 35.0 % of its \
                    CPUs";
        assert_eq!(told.as_deref(), Some(want));
        let told = conclude(&report("xsk-rr", "engine", vec![row.interrupted(0.34).row()]));
        assert!(
            told.is_some_and(|it| it.ends_with("; this host interrupted it for 34 % of the time"))
        );
    }

    #[test]
    fn of_one_policy_the_last_load_is_told() {
        let row = |load: u64| Fixed::new("base").load("requests_per_s", load.into());
        let rows = [10, 20].map(|load| row(load).served(&[load as f64]).row());
        let told = conclude(&report("memcached", "machine", rows.to_vec()));
        assert_eq!(told.as_deref(), Some("base serves 20.0/s at requests/s 20"));
    }

    #[test]
    fn nothing_measured_is_nothing_to_learn() {
        assert_eq!(conclude(&report("memcached", "machine", Vec::new())), None);
        let empty = || Fixed::new("base").row();
        assert_eq!(conclude(&report("memcached", "machine", vec![empty()])), None);
        assert_eq!(conclude(&report("memcached", "machine", vec![empty(), empty()])), None);
        assert_eq!(conclude(&report("weather", "engine", vec![empty(), empty()])), None);
    }

    #[test]
    fn quotients_are_short() {
        let shown = [0.004, 0.45, 1.0, 1.84, 12.3].map(times);
        assert_eq!(shown, ["0.40 %", "45 %", "1.0x", "1.8x", "12x"]);
        assert_eq!([0.45, 1.8].map(of_its_cpu), ["45 % of its CPU", "1.8x its CPU"]);
    }
}
