//! Uncertainty of the model: intervals of its figures, and the stability of the order of two policies, when all
//! constants that were not measured are drawn at random.
//!
//! Each draw takes all fitted and assumed constants of the profile from their ranges (`Profile::drawn` of
//! `napkin-machine`), and its own seeds. The constants are drawn independently, although a fit would allow only
//! some combinations: the intervals are rather too wide than too narrow. Errors of the modelled mechanisms are not
//! included.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Share of the draws that an interval omits at each end.
const TAIL: f64 = 0.05;

/// The minimum share of the draws that must agree on an order for the model to assert it.
pub const MIN_AGREEMENT: f64 = 0.9;

/// The interval that contains nine of ten draws of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end, in the figure's unit: a twentieth of the draws is below.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Draws in which the figure was modelled.
    pub draws: usize,
}

impl Interval {
    /// The interval of some values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Interval> {
        values.sort_by(f64::total_cmp);
        let at =
            |part: f64| values.get((part * (values.len() - 1) as f64).round() as usize).copied();
        if values.is_empty() {
            return None;
        }
        Some(Interval { low: at(TAIL)?, high: at(1.0 - TAIL)?, draws: values.len() })
    }
}

/// Two configurations, and the stability of their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The one with the smaller figure in the undrawn model.
    pub low: String,
    /// The one with the larger figure.
    pub high: String,
    /// Share of the draws with the same order.
    pub kept: f64,
}

/// All pairs of configurations for one quantity and load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// The table, if the experiment has several.
    pub table: String,
    /// The quantity compared, such as `p99`.
    pub quantity: String,
    /// The load, as in the table; empty if there is only one.
    pub load: String,
    /// Number of pairs whose modelled figures differ.
    pub pairs: usize,
    /// Mean share, over all pairs, of draws that keep the order.
    pub kept: f64,
    /// Pairs whose order fewer than [`MIN_AGREEMENT`] of the draws keep, the least stable first.
    pub untold: Vec<Pair>,
}

/// Stability of the orders over a number of draws.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Uncertainty {
    /// Number of draws.
    pub draws: usize,
    /// Orders of configurations, for each quantity and load with at least two of them.
    pub orders: Vec<Orders>,
}

/// One figure, as modelled and in each draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn<'a> {
    /// The table, if there are several.
    pub table: &'a str,
    /// The quantity compared, such as `p99`.
    pub quantity: &'a str,
    /// The load, as in the table; empty if there is only one.
    pub load: &'a str,
    /// The configuration: a policy, by its name in the table.
    pub config: &'a str,
    /// The figure without a draw, which defines the order.
    pub value: Option<f64>,
    /// The figure in each draw; `None` if it was not modelled. Infinite if it is known to exceed all others: two
    /// infinite figures have no order.
    pub draws: Vec<Option<f64>>,
}

impl Drawn<'_> {
    fn quantity_and_load(&self) -> (&str, &str, &str) {
        (self.table, self.quantity, self.load)
    }

    /// Counts the draws that keep the order of two figures; `None` if they have no order.
    fn pair(&self, other: &Drawn<'_>) -> Option<Pair> {
        let (one, two) = (self.value?, other.value?);
        if one == two || self.config == other.config {
            return None;
        }
        let (low, high) = if one < two { (self, other) } else { (other, self) };
        let both = low.draws.iter().zip(&high.draws);
        let all: Vec<(f64, f64)> =
            both.filter_map(|(low, high)| Some(((*low)?, (*high)?))).collect();
        let kept = all.iter().filter(|(low, high)| low < high).count();
        (!all.is_empty()).then(|| Pair {
            low: low.config.to_owned(),
            high: high.config.to_owned(),
            kept: kept as f64 / all.len() as f64,
        })
    }
}

impl Uncertainty {
    /// Evaluates the orders over `draws` draws.
    pub fn of(figures: &[Drawn<'_>], draws: usize) -> Uncertainty {
        let mut seen = BTreeSet::new();
        let mut orders = Vec::new();
        for (first, figure) in figures.iter().enumerate() {
            if !seen.insert(figure.quantity_and_load()) {
                continue;
            }
            let same: Vec<&Drawn<'_>> = figures[first..]
                .iter()
                .filter(|it| it.quantity_and_load() == figure.quantity_and_load())
                .collect();
            let mut pairs = Vec::new();
            for (place, one) in same.iter().enumerate() {
                pairs.extend(same[place + 1..].iter().filter_map(|other| one.pair(other)));
            }
            if pairs.is_empty() {
                continue;
            }
            let kept = pairs.iter().map(|pair| pair.kept).sum::<f64>() / pairs.len() as f64;
            let count = pairs.len();
            let mut untold: Vec<Pair> =
                pairs.into_iter().filter(|pair| pair.kept < MIN_AGREEMENT).collect();
            untold.sort_by(|a, b| a.kept.total_cmp(&b.kept));
            let [table, quantity, load] =
                [figure.table, figure.quantity, figure.load].map(str::to_owned);
            orders.push(Orders { table, quantity, load, pairs: count, kept, untold });
        }
        Uncertainty { draws, orders }
    }

    /// One line of text per quantity and load.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.orders.iter().map(Orders::to_string)
    }
}

/// Most unstable pairs that a line names.
const NAMED: usize = 6;

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        let parts = [&self.table, &self.quantity, &self.load];
        let parts = parts.into_iter().filter(|part| !part.is_empty()).map(String::as_str);
        write!(
            f,
            "{}: {} of {} pairs keep their order in {} or more of the draws ({} of all)",
            parts.collect::<Vec<_>>().join(", "),
            self.pairs - self.untold.len(),
            self.pairs,
            percent(MIN_AGREEMENT),
            percent(self.kept)
        )?;
        for (place, pair) in self.untold.iter().take(NAMED).enumerate() {
            let before =
                if place == 0 { "; no difference that the model can tell: " } else { ", " };
            write!(f, "{before}{} < {} ({})", pair.low, pair.high, percent(pair.kept))?;
        }
        match self.untold.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_draws_reverse_is_not_asserted() {
        let figure = |config, value, draws: &dyn Fn(i32) -> f64| Drawn {
            table: "",
            quantity: "p99",
            load: "200K",
            config,
            value: Some(value),
            draws: (0..20).map(|i| Some(draws(i))).collect(),
        };
        let figures = [
            figure("base", 30.0, &|i| 30.0 + f64::from(i)),
            figure("defer20", 50.0, &|i| 60.0 + f64::from(i)),
            figure("fullbusy", 29.0, &|_| 39.5),
        ];
        let uncertainty = Uncertainty::of(&figures, 20);
        let [orders] = &uncertainty.orders[..] else { panic!("{uncertainty:?}") };
        assert_eq!(orders.pairs, 3);
        assert!((orders.kept - (1.0 + 1.0 + 0.5) / 3.0).abs() < 1e-12);
        let want = "p99, 200K: 2 of 3 pairs keep their order in 90 % or more of the draws (83 % of all); no \
                    difference that the model can tell: fullbusy < base (50 %)";
        assert_eq!(uncertainty.lines().collect::<Vec<_>>(), [want]);
        let values = figures[0].draws.iter().flatten().copied().collect();
        let interval = Interval::of(values).unwrap();
        assert_eq!((interval.low, interval.high, interval.draws), (31.0, 48.0, 20));
    }

    #[test]
    fn a_figure_that_no_draw_modelled_has_no_interval_and_no_order() {
        let lost = |config, value| Drawn {
            table: "",
            quantity: "p99",
            load: "",
            config,
            value: Some(value),
            draws: vec![None],
        };
        assert!(Uncertainty::of(&[lost("a", 1.0), lost("b", 2.0)], 1).orders.is_empty());
        assert_eq!(Interval::of(Vec::new()), None);
    }
}
