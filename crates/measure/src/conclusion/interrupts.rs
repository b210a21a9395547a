//! The conclusion for floods of requests: the policy that takes the fewest interrupts, and its CPU cost.

use super::evidence::{CPU, Evidence, Group, INTERRUPTS, Inconclusive, Order, RATE};
use super::evidence::{cannot_tell, least, most};
use super::{of_its_cpu, times};

/// Uses the first closed loop, in which the policy decides about interrupts; without one, the first load with two
/// rows.
pub(super) fn conclude(groups: &[Group<'_>]) -> Option<String> {
    let two = || groups.iter().filter(|group| group.rows.len() > 1);
    let group = two().find(|group| group.offered().is_none()).or_else(|| two().next())?;
    let conclusion = fewest(group).or_else(|| answers_most(group))?;
    Some(conclusion.unwrap_or_else(|doubt| cannot_tell(&doubt)))
}

/// Compares interrupts per packet, if they were counted.
fn fewest(group: &Group<'_>) -> Option<Result<String, Inconclusive>> {
    let best = least(&group.rows, INTERRUPTS)?;
    let reference = group.reference()?;
    let compared = match best.compare(INTERRUPTS, &reference)? {
        Ok((order, _)) => order,
        Err(doubt) => return Some(Err(doubt)),
    };
    let shown = |row: &Evidence<'_>| row.shown(INTERRUPTS);
    Some(Ok(match compared {
        Order::Less => {
            let cpu = match best.compare(CPU, &reference) {
                Some(Ok((Order::Alike, _))) => ", for as much CPU".to_owned(),
                Some(Ok((_, ratio))) => format!(", for {}", of_its_cpu(ratio)),
                Some(Err(doubt)) => format!("; what CPU that costs is unknown: {doubt}"),
                None => String::new(),
            };
            let (few, many, at) = (shown(&best), shown(&reference), group.at());
            let (best, reference) = (best.name(), reference.name());
            format!(
                "{best} takes {few} interrupts a packet where {reference} takes {many}{at}{cpu}"
            )
        }
        Order::Alike | Order::More => format!(
            "no policy takes fewer interrupts a packet than {} ({})",
            reference.name(),
            shown(&reference)
        ),
    }))
}

/// Compares rates, if there are no interrupt counts.
fn answers_most(group: &Group<'_>) -> Option<Result<String, Inconclusive>> {
    let (rows, doubt, _) = group.usable(RATE);
    if rows.len() < 2 {
        return doubt.map(Err);
    }
    let (best, reference) = (most(&rows, RATE)?, Group { load: None, rows: rows.clone() });
    let reference = reference.reference()?;
    Some(best.compare(RATE, &reference)?.map(|(order, ratio)| match order {
        Order::More => {
            let (best, reference) = (best.name(), reference.name());
            format!("{best} answers {} as many as {reference}{}", times(ratio), group.at())
        }
        Order::Alike | Order::Less => {
            format!("no policy answers more than {} ({})", reference.name(), reference.shown(RATE))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::fixed::{Fixed, report};
    use super::super::{Rule, conclude};

    fn row(name: &str, interrupts: f64, cpu: f64) -> Fixed {
        let row = Fixed::new(name).load("client", "flood".into()).served(&[6e3; 3]);
        row.interrupts(&[interrupts; 3]).cpu(&[cpu; 3])
    }

    fn conclusion(rows: impl IntoIterator<Item = Fixed>) -> Option<String> {
        conclude(
            &report("flood-ping", "engine", rows.into_iter().map(Fixed::row).collect()),
            Rule::Interrupts,
        )
    }

    #[test]
    fn fewer_interrupts_have_their_price() {
        let rows = [row("base", 1.0, 0.25), row("hold1000", 0.004, 0.5)];
        let want =
            "hold1000 takes 0.004 interrupts a packet where base takes 1.000, for 2.0x its CPU";
        assert_eq!(conclusion(rows).as_deref(), Some(want));
    }

    #[test]
    fn counts_are_compared_even_if_times_cannot_be() {
        let rows = [row("base", 1.0, 0.25), row("hold1000", 0.004, 0.5).interrupted(0.34)];
        let want = "hold1000 takes 0.004 interrupts a packet where base takes 1.000; what CPU that costs \
                    is unknown: this host interrupted it for 34 % of the time";
        assert_eq!(conclusion(rows).as_deref(), Some(want));
    }

    #[test]
    fn the_control_is_another_load() {
        let extreme = |row: Fixed| row.load("client", "extreme".into()).offered(4e5);
        let rows = [
            row("base", 1.0, 0.25),
            row("hold1000", 0.004, 0.25),
            extreme(row("base", 0.001, 1.0)),
            extreme(row("hold1000", 0.0, 1.0)),
        ];
        let want = "hold1000 takes 0.004 interrupts a packet where base takes 1.000 at client flood, for \
                    as much CPU";
        assert_eq!(conclusion(rows).as_deref(), Some(want));
    }

    #[test]
    fn without_interrupts_answers_are_compared() {
        let row = |name: &str, served: f64| Fixed::new(name).served(&[served; 3]);
        let rows = [row("base", 1e4), row("threaded", 2e4)];
        assert_eq!(conclusion(rows).as_deref(), Some("threaded answers 2.0x as many as base"));
        let rows = [row("base", 1e4), row("threaded", 1e4)];
        assert_eq!(
            conclusion(rows).as_deref(),
            Some("no policy answers more than base (10.0 k/s)")
        );
        let rows = [row("base", 1e4).interrupted(0.5), row("threaded", 1e4)];
        assert!(
            conclusion(rows).is_some_and(|it| it.starts_with("cannot tell: this host interrupted"))
        );
    }
}
