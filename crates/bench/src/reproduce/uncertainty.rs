//! How sure the model is: what is left of its figures, and of the order of two policies, when everything
//! that nobody measured is drawn anew.
//!
//! Each draw takes all fitted and assumed constants of the profile from their ranges
//! ([`Profile::drawn`](napkin_machine::profile::Profile::drawn)), and seeds of its own. The constants are
//! drawn independently of each other, although a fit would allow only some of these combinations: the
//! intervals are too wide rather than too narrow. What the mechanisms leave out is not in them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::cell::Cell;

/// Of the draws, the part that an interval leaves out at each end.
const TAIL: f64 = 0.05;

/// An order that fewer of the draws keep is none that the model can tell.
pub const TOLD: f64 = 0.9;

/// Where nine of ten draws put a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end, in the figure's unit: a twentieth of the draws is below.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Draws in which the figure was modelled.
    pub draws: usize,
}

impl Interval {
    fn of(mut values: Vec<f64>) -> Option<Interval> {
        values.sort_by(f64::total_cmp);
        let at =
            |part: f64| values.get((part * (values.len() - 1) as f64).round() as usize).copied();
        if values.is_empty() {
            return None;
        }
        Some(Interval { low: at(TAIL)?, high: at(1.0 - TAIL)?, draws: values.len() })
    }
}

/// Two configurations, and how sure their order is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The one with the smaller figure, as modelled without a draw.
    pub low: String,
    /// The other.
    pub high: String,
    /// The part of the draws with the same order.
    pub kept: f64,
}

/// All pairs of configurations in one quantity under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// The table, where the experiment has several.
    pub table: String,
    /// The quantity.
    pub quantity: String,
    /// The load.
    pub load: String,
    /// Pairs whose modelled figures differ.
    pub pairs: usize,
    /// The mean, over them, of the part of the draws that keeps the order.
    pub kept: f64,
    /// The pairs of which fewer than [`TOLD`] of the draws keep it, the least sure first.
    pub untold: Vec<Pair>,
}

/// What a number of draws left of a reproduction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Uncertainty {
    /// Draws.
    pub draws: usize,
    /// Orders of the configurations, for each quantity and load that more than one of them has.
    pub orders: Vec<Orders>,
}

/// Gives each cell its interval, and says which orders the draws keep. Each of `draws` are the cells of one
/// draw, in the order of `cells`.
pub fn judge(cells: &mut [Cell], draws: &[Vec<Cell>]) -> Uncertainty {
    for (index, cell) in cells.iter_mut().enumerate() {
        let values = draws.iter().filter_map(|draw| draw.get(index)?.model());
        cell.interval = Interval::of(values.collect());
    }
    let mut seen = BTreeSet::new();
    let mut orders = Vec::new();
    for cell in cells.iter() {
        let name = (&cell.table, &cell.quantity, &cell.load);
        if !seen.insert(name) {
            continue;
        }
        let beside: Vec<(usize, &Cell)> = cells
            .iter()
            .enumerate()
            .filter(|(_, other)| (&other.table, &other.quantity, &other.load) == name)
            .filter(|(_, other)| !other.exempt)
            .collect();
        let mut pairs = Vec::new();
        for (place, (i, one)) in beside.iter().enumerate() {
            for (j, other) in &beside[place + 1..] {
                pairs.extend(pair((*i, one), (*j, other), draws));
            }
        }
        if pairs.is_empty() {
            continue;
        }
        let kept = pairs.iter().map(|pair| pair.kept).sum::<f64>() / pairs.len() as f64;
        let mut untold: Vec<Pair> = pairs.iter().filter(|pair| pair.kept < TOLD).cloned().collect();
        untold.sort_by(|a, b| a.kept.total_cmp(&b.kept));
        orders.push(Orders {
            table: cell.table.clone(),
            quantity: cell.quantity.clone(),
            load: cell.load.clone(),
            pairs: pairs.len(),
            kept,
            untold,
        });
    }
    Uncertainty { draws: draws.len(), orders }
}

/// How many draws keep the order of two figures; `None` where there is no order to keep.
fn pair(one: (usize, &Cell), other: (usize, &Cell), draws: &[Vec<Cell>]) -> Option<Pair> {
    let (low, high) = if one.1.model()? <= other.1.model()? { (one, other) } else { (other, one) };
    if one.1.model() == other.1.model() || low.1.config == high.1.config {
        return None;
    }
    let values = |draw: &Vec<Cell>| Some((draw.get(low.0)?.model()?, draw.get(high.0)?.model()?));
    let all: Vec<(f64, f64)> = draws.iter().filter_map(values).collect();
    let kept = all.iter().filter(|(low, high)| low < high).count();
    (!all.is_empty()).then(|| Pair {
        low: low.1.config.clone(),
        high: high.1.config.clone(),
        kept: kept as f64 / all.len() as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::cell::{Modelled, Unit};

    fn row(values: [f64; 3]) -> Vec<Cell> {
        ["base", "defer20", "fullbusy"]
            .into_iter()
            .zip(values)
            .map(|(config, value)| Cell {
                modelled: Modelled::of(&[value], ""),
                ..Cell::new("2024", config, "200K", "p99", Unit::Us)
            })
            .collect()
    }

    #[test]
    fn an_order_that_draws_turn_round_is_not_told() {
        let mut cells = row([30.0, 50.0, 29.0]);
        let draws: Vec<Vec<Cell>> =
            (0..20).map(|i| row([30.0 + f64::from(i), 60.0 + f64::from(i), 39.5])).collect();
        let said = judge(&mut cells, &draws);
        assert_eq!(said.draws, 20);
        let interval = cells[0].interval.unwrap();
        assert_eq!((interval.low, interval.high, interval.draws), (31.0, 48.0, 20));
        let [orders] = &said.orders[..] else { panic!("{said:?}") };
        assert_eq!(orders.pairs, 3);
        let [pair] = &orders.untold[..] else { panic!("{orders:?}") };
        assert_eq!((pair.low.as_str(), pair.high.as_str(), pair.kept), ("fullbusy", "base", 0.5));
        assert!((orders.kept - (1.0 + 1.0 + 0.5) / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_figure_that_no_draw_modelled_has_no_interval_and_no_order() {
        let mut cells = row([1.0, 2.0, 3.0]);
        let lost: Vec<Cell> = row([1.0, 2.0, 3.0])
            .into_iter()
            .map(|cell| Cell { modelled: Modelled::absent("it failed"), ..cell })
            .collect();
        let said = judge(&mut cells, &[lost]);
        assert!(cells.iter().all(|cell| cell.interval.is_none()) && said.orders.is_empty());
    }
}
