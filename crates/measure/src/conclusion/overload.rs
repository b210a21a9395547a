//! The conclusion for a receiver under overload: which policy still receives.

use super::evidence::{
    Evidence, Group, Inconclusive, Order, RATE, cannot_tell, least, most, worse,
};
use super::times;

/// The sentence for the load under which the best and the worst policy differ most.
pub(super) fn conclude(groups: &[Group<'_>]) -> Option<String> {
    let (mut doubt, mut sentences) = (None, Vec::new());
    for group in groups.iter().filter(|group| group.rows.len() > 1) {
        let (rows, unsound, _) = group.usable(RATE);
        let compared = match (most(&rows, RATE), least(&rows, RATE)) {
            (Some(best), Some(worst)) if rows.len() > 1 => compare(&best, &worst, group),
            _ => None,
        };
        let (of_this, unsure) = match compared {
            Some(Ok(of_this)) => (Some(of_this), None),
            Some(Err(unsure)) => (None, Some(unsure)),
            None => (None, None),
        };
        sentences.extend(of_this);
        doubt = doubt.into_iter().chain(unsound).chain(unsure).reduce(worse);
    }
    let remark =
        doubt.as_ref().map(|doubt| format!(" (of some rows nothing can be told: {doubt})"));
    let furthest = sentences.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    match furthest {
        Some((_, sentence)) => Some(format!("{sentence}{}", remark.unwrap_or_default())),
        None => doubt.map(|doubt| cannot_tell(&doubt)),
    }
}

/// The ratio of the best to the worst, and the sentence about it.
fn compare(
    best: &Evidence<'_>,
    worst: &Evidence<'_>,
    group: &Group<'_>,
) -> Option<Result<(f64, String), Inconclusive>> {
    let compared = best.compare(RATE, worst)?;
    let (most, least, at) = (best.shown(RATE), worst.shown(RATE), group.at());
    let (best, worst) = (best.name(), worst.name());
    Some(compared.map(|(order, ratio)| {
        let sentence = match order {
            Order::More if ratio.is_finite() => {
                let many = times(ratio);
                format!("{best} receives {many} as many as {worst} ({most} against {least}){at}")
            }
            Order::More => format!("{best} receives {most}, and {worst} nothing{at}"),
            Order::Alike | Order::Less => {
                format!("all policies receive about as many ({least} to {most}){at}")
            }
        };
        (ratio, sentence)
    }))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::fixed::{Fixed, report};
    use super::super::{Rule, conclude};

    fn row(name: &str, times: f64, served: [f64; 3]) -> Fixed {
        Fixed::new(name).load("times_peak", times.into()).offered(times * 25e3).served(&served)
    }

    fn conclusion(rows: impl IntoIterator<Item = Fixed>) -> Option<String> {
        conclude(
            &report("udp-sink", "engine", rows.into_iter().map(Fixed::row).collect()),
            Rule::Overload,
        )
    }

    #[test]
    fn the_load_with_the_largest_difference_is_reported() {
        let rows = [
            row("base", 0.5, [12.5e3; 3]),
            row("feedback", 0.5, [12.5e3; 3]),
            row("base", 2.0, [700.0, 800.0, 750.0]),
            row("feedback", 2.0, [24.0e3, 24.5e3, 24.4e3]),
            row("base", 4.0, [20e3; 3]),
            row("feedback", 4.0, [24e3; 3]),
        ];
        let want =
            "feedback receives 33x as many as base (24.4 k/s against 750/s) at times peak 2.0";
        assert_eq!(conclusion(rows).as_deref(), Some(want));
    }

    #[test]
    fn a_rate_of_zero_gives_no_ratio_and_equal_rates_are_reported() {
        let rows = [row("base", 4.0, [0.0; 3]), row("feedback", 4.0, [24.4e3; 3])];
        assert_eq!(
            conclusion(rows).as_deref(),
            Some("feedback receives 24.4 k/s, and base nothing")
        );
        let rows = [row("base", 4.0, [24.0e3; 3]), row("feedback", 4.0, [24.4e3; 3])];
        let want = "all policies receive about as many (24.0 k/s to 24.4 k/s)";
        assert_eq!(conclusion(rows).as_deref(), Some(want));
        let rows = [row("base", 4.0, [0.0; 3]), row("feedback", 4.0, [0.0; 3])];
        assert_eq!(
            conclusion(rows).as_deref(),
            Some("all policies receive about as many (0/s to 0/s)")
        );
    }

    #[test]
    fn an_interruption_by_the_host_prevents_a_conclusion() {
        let rows = [row("base", 4.0, [750.0; 3]), row("feedback", 4.0, [9e3; 3])];
        let [base, feedback] = rows;
        let conclusion = conclusion([base.interrupted(0.3), feedback.interrupted(0.41)]);
        let want = "cannot tell: this host interrupted it for 41 % of the time";
        assert_eq!(conclusion.as_deref(), Some(want));
        let rows = [
            row("base", 2.0, [750.0; 3]),
            row("feedback", 2.0, [9e3; 3]),
            row("base", 4.0, [1.0; 3]).interrupted(0.3),
            row("feedback", 4.0, [9e3; 3]),
        ];
        let want = "feedback receives 12x as many as base (9.00 k/s against 750/s) at times peak 2.0 (of \
                    some rows nothing can be told: this host interrupted it for 30 % of the time)";
        assert_eq!(super::tests::conclusion(rows).as_deref(), Some(want));
    }
}
