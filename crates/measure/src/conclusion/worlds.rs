//! Compares the same experiment in several worlds: their rows side by side, and their disagreements.
//!
//! Absolute figures are not comparable between worlds. What can be compared is a policy relative to the reference
//! of the same world and load, and the order of two policies.

use serde_json::{Map, Value};

use super::evidence::{CPU, Evidence, Figure, Group, Order, P50, P99, P999, RATE};
use crate::report::{Column, Report, Row, column};

/// The figures to compare, each with the JSON name of its quotient.
const FIGURES: [(Figure, &str); 5] = [
    (RATE, "achieved_of_reference"),
    (P50, "p50_of_reference"),
    (P99, "p99_of_reference"),
    (P999, "p999_of_reference"),
    (CPU, "cpu_of_reference"),
];

/// Columns of the table.
pub const COLUMNS: [&Column; 17] = [
    column::WORLD,
    column::POLICY,
    column::REQUESTS_PER_S,
    column::BYTES,
    column::OPERATIONS_PER_S,
    column::ACHIEVED,
    column::P50,
    column::P99,
    column::P999,
    column::WORK,
    column::POLL,
    column::BUSY,
    column::RATE_OF_REFERENCE,
    column::P50_OF_REFERENCE,
    column::P99_OF_REFERENCE,
    column::P999_OF_REFERENCE,
    column::CPU_OF_REFERENCE,
];

/// Explains why the rows of these reports cannot be put side by side: the load fields that they share do not
/// distinguish the loads of some report, so that different loads would appear as the same. `None` if they can.
pub fn apart(reports: &[Report]) -> Option<String> {
    let shared = shared_keys(reports);
    let distinct = |report: &Report| {
        let (mut loads, mut parts) = (Vec::new(), Vec::new());
        for load in report.rows.iter().map(|row| &row.load).filter(|it| !it.is_empty()) {
            if !loads.contains(&load) {
                loads.push(load);
                parts.push(common(load, &shared));
            }
        }
        let mut each = parts.iter().enumerate();
        !each.any(|(place, part)| part.is_empty() || parts[..place].contains(part))
    };
    if reports.iter().all(distinct) {
        return None;
    }
    let keys = |report: &Report| {
        let load = report.rows.first().map(|row| &row.load);
        let keys: Vec<&str> = load.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        format!("{}: {}", report.world, keys.join(", "))
    };
    let keys = reports.iter().map(keys).collect::<Vec<_>>().join("; ");
    Some(if shared.is_empty() {
        format!("their loads have nothing in common ({keys})")
    } else {
        let shared = shared.join(", ");
        format!("their loads have only {shared} in common, which does not tell them apart ({keys})")
    })
}

/// The rows of several reports, with those of one policy and load next to each other, and with quotients to the
/// reference of their own world. A load is reduced to the fields that all reports share: see [`apart`].
pub fn side_by_side(reports: &[Report]) -> Vec<Row> {
    let shared = shared_keys(reports);
    let mut rows: Vec<Row> = Vec::new();
    for report in reports {
        let groups = Group::all(report);
        for row in &report.rows {
            let mut row = row.clone();
            let of = |group: &&Group<'_>| group.rows.iter().any(|it| it.load() == &row.load);
            if let Some(group) = groups.iter().find(of) {
                row.figures.extra.extend(quotients(group, &row));
            }
            row.figures.extra.insert("world".to_owned(), report.world.as_str().into());
            row.load = common(&row.load, &shared);
            let alike = |it: &Row| it.load == row.load && it.name == row.name;
            match rows.iter().rposition(alike) {
                Some(place) => rows.insert(place + 1, row),
                None => rows.push(row),
            }
        }
    }
    rows
}

/// The pairs of policies that two worlds put in opposite order by some figure, one sentence each. A pair that one
/// world cannot order is no disagreement. `None` if no two worlds have a pair of policies under the same load.
pub fn disagreements(reports: &[Report]) -> Option<Vec<String>> {
    let shared = shared_keys(reports);
    let load = |it: &Evidence<'_>| common(it.load(), &shared);
    let (mut sentences, mut pairs) = (Vec::new(), false);
    for (number, one) in reports.iter().enumerate() {
        for other in &reports[number + 1..] {
            let (groups, twins) = (Group::all(one), Group::all(other));
            for group in &groups {
                let same =
                    |it: &&Group<'_>| it.rows.first().map(load) == group.rows.first().map(load);
                let Some(twin) = twins.iter().find(same) else { continue };
                let both = |it: &&Evidence<'_>| twin.rows.iter().any(|row| row.name() == it.name());
                pairs |= group.rows.iter().filter(both).count() > 1;
                for (figure, _) in FIGURES {
                    let opposites = opposites(group, twin, figure);
                    sentences.extend(opposites.into_iter().map(|(a, b)| {
                        format!(
                            "{} and {} disagree about {}{}: {a} in {} is {}, in {} it is {}",
                            one.world,
                            other.world,
                            figure.name,
                            group.at(),
                            one.world,
                            against(group, figure, &a, &b),
                            other.world,
                            against(twin, figure, &a, &b)
                        )
                    }));
                }
            }
        }
    }
    pairs.then_some(sentences)
}

/// Formats a quotient: `80 % of base's`.
fn against(group: &Group<'_>, figure: Figure, name: &str, other: &str) -> String {
    let of = |name: &str| group.rows.iter().find(|it| it.name() == name)?.median(figure);
    let ratio = of(name).zip(of(other)).map_or(f64::NAN, |(a, b)| a / b);
    format!("{} of {other}'s", super::times(ratio))
}

/// The pairs whose order `here` is opposite to that `there`.
fn opposites(here: &Group<'_>, there: &Group<'_>, figure: Figure) -> Vec<(String, String)> {
    let order = |group: &Group<'_>, a: &str, b: &str| -> Option<Order> {
        let of = |name: &str| group.rows.iter().find(|it| it.name() == name);
        Some(of(a)?.compare(figure, of(b)?)?.ok()?.0)
    };
    let mut pairs = Vec::new();
    for (number, a) in here.rows.iter().enumerate() {
        for b in &here.rows[number + 1..] {
            let (a, b) = (a.name(), b.name());
            if let (Some(Order::Less), Some(Order::More)) | (Some(Order::More), Some(Order::Less)) =
                (order(here, a, b), order(there, a, b))
            {
                pairs.push((a.to_owned(), b.to_owned()));
            }
        }
    }
    pairs
}

/// A row's figures as fractions of its reference's.
fn quotients(group: &Group<'_>, row: &Row) -> Map<String, Value> {
    let Some(reference) = group.reference() else { return Map::new() };
    let Some(own) = group.rows.iter().find(|it| it.name() == row.name) else { return Map::new() };
    let quotient = |(figure, name): (Figure, &str)| {
        if !own.is_comparable(figure, &reference) {
            return None;
        }
        let ratio = own.median(figure)? / reference.median(figure)?;
        // A reference of 0 gives no quotient.
        ratio.is_finite().then(|| (name.to_owned(), ((ratio * 1e4).round() / 1e4).into()))
    };
    FIGURES.into_iter().filter_map(quotient).collect()
}

/// The part of a load that all reports have.
fn common(load: &Map<String, Value>, shared: &[String]) -> Map<String, Value> {
    let parts = load.iter().filter(|(key, _)| shared.contains(key));
    parts.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The load fields that all reports have.
fn shared_keys(reports: &[Report]) -> Vec<String> {
    let keys = |report: &Report| -> Vec<String> {
        let load = report.rows.first().map(|row| &row.load);
        load.into_iter().flat_map(Map::keys).cloned().collect()
    };
    let all: Vec<_> = reports.iter().map(keys).collect();
    let (first, others) = all.split_first().map_or((Vec::new(), &[][..]), |(a, b)| (a.clone(), b));
    first.into_iter().filter(|key| others.iter().all(|keys| keys.contains(key))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::evidence::fixed::{Fixed, report};
    use super::*;

    fn row(name: &str, p99: f64, cpu: f64) -> Fixed {
        let all = [p99, p99 * 1.01, p99 * 1.02];
        let row = Fixed::new(name).load("requests_per_s", 5.into());
        row.served(&[1e4; 3]).p50(&[1e3; 3]).p99(&all).cpu(&[cpu; 3])
    }

    fn of(world: &str, rows: [Fixed; 2]) -> Report {
        report("memcached", world, rows.map(Fixed::row).to_vec())
    }

    #[test]
    fn rows_of_one_policy_stand_together_with_what_they_are_to_their_own_reference() {
        let mut engine = of("engine", [row("base", 1e4, 0.5), row("fullbusy", 5e3, 1.0)]);
        // A field of only one world does not distinguish loads.
        engine.rows.iter_mut().for_each(|row| {
            row.load.insert("connections".to_owned(), 32.into());
        });
        let mut machine = of("machine", [row("base", 4e4, 0.25), row("fullbusy", 1e4, 1.0)]);
        machine.rows.iter_mut().for_each(|row| {
            row.load = Map::from_iter([("requests_per_s".to_owned(), 5.into())]);
        });
        let rows = side_by_side(&[engine, machine]);
        let ratios = rows.iter().map(|row| {
            let extra = |name: &str| row.figures.extra[name].clone();
            let of = |name: &str| extra(name).as_f64();
            (row.name.as_str(), extra("world"), of("p99_of_reference"), of("cpu_of_reference"))
        });
        assert_eq!(
            ratios.collect::<Vec<_>>(),
            [
                ("base", "engine".into(), Some(1.0), Some(1.0)),
                ("base", "machine".into(), Some(1.0), Some(1.0)),
                ("fullbusy", "engine".into(), Some(0.5), Some(2.0)),
                ("fullbusy", "machine".into(), Some(0.25), Some(4.0)),
            ]
        );
    }

    #[test]
    fn an_opposite_order_is_reported_and_a_doubtful_one_is_not() {
        let engine = |fullbusy: Fixed| of("engine", [row("base", 1e4, 0.5), fullbusy]);
        let machine = of("machine", [row("base", 1e4, 0.5), row("fullbusy", 2e4, 1.0)]);
        let sentences = |fullbusy: Fixed| {
            disagreements(&[engine(fullbusy), machine.clone()]).expect("both have both")
        };
        let want = "engine and machine disagree about p99: base in engine is 2.0x of fullbusy's, in \
                    machine it is 50 % of fullbusy's";
        assert_eq!(sentences(row("fullbusy", 5e3, 1.0)), [want]);
        assert_eq!(sentences(row("fullbusy", 3e4, 1.0)), [] as [&str; 0]);
        assert_eq!(sentences(row("fullbusy", 1e4, 1.0)), [] as [&str; 0], "alike is no order");
        assert_eq!(sentences(row("fullbusy", 5e3, 1.0).interrupted(0.3)), [] as [&str; 0]);
    }

    #[test]
    fn where_no_two_policies_ran_under_one_load_in_both_there_is_no_order_to_agree_in() {
        let engine = of("engine", [row("napkin/base", 1e4, 0.5), row("base", 5e3, 1.0)]);
        let machine = of("machine", [row("base", 1e4, 0.5), row("fullbusy", 2e4, 1.0)]);
        assert_eq!(disagreements(&[engine, machine]), None, "one of them");
        let at = |load: u64, name: &str| row(name, 1e4, 0.5).load("requests_per_s", load.into());
        let other = |load| of("engine", ["base", "fullbusy"].map(|name| at(load, name)));
        assert_eq!(disagreements(&[other(6), other(7)]), None, "under other loads");
        assert_eq!(disagreements(&[other(6), other(6)]), Some(Vec::new()));
    }

    /// A report with rows under these loads.
    fn under(world: &str, loads: &[Value]) -> Report {
        let rows = loads.iter().map(|load| {
            let load = load.as_object().cloned().unwrap_or_default();
            Row { load, ..row("base", 1e4, 0.5).row() }
        });
        report("xsk-rr", world, rows.collect())
    }

    #[test]
    fn loads_without_a_distinguishing_common_field_are_not_put_side_by_side() {
        let engine = under("engine", &[json!({ "times_peak": 1.0 }), json!({ "times_peak": 2.0 })]);
        let machine = under("machine", &[json!({ "packets_per_s": 13_000 })]);
        assert_eq!(
            apart(&[engine, machine]).as_deref(),
            Some("their loads have nothing in common (engine: times_peak; machine: packets_per_s)")
        );
        let engine = |delays: [u64; 2]| {
            let [one, two] = delays;
            let one = json!({ "pace": 12_000, "delay_ns": one });
            under("engine", &[one, json!({ "pace": 32_000, "delay_ns": two })])
        };
        let machine = under("machine", &[json!({ "frames_per_s": 12_000, "delay_ns": 0 })]);
        let want = "their loads have only delay_ns in common, which does not tell them apart (engine: \
                    delay_ns, pace; machine: delay_ns, frames_per_s)";
        assert_eq!(apart(&[engine([0, 0]), machine.clone()]).as_deref(), Some(want));
        assert_eq!(apart(&[engine([0, 30_000]), machine]), None);
    }

    #[test]
    fn what_only_one_world_s_loads_have_is_no_hindrance() {
        let loads =
            ["20000", "max"].map(|rate| json!({ "requests_per_s": rate, "connections": 32 }));
        let linux = under("linux", &loads);
        let loads = ["20000", "max"].map(|rate| json!({ "requests_per_s": rate }));
        assert_eq!(apart(&[linux, under("machine", &loads)]), None);
    }
}
