//! Detects the collapse of a curve under load, and compares the modelled collapse with the published one.

use super::{ROUNDING, Verdict};
use crate::cell::{Cell, number};

/// The collapse of a delivered rate under load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Collapse {
    /// The first load at which the rate is below 90 % of its running maximum.
    pub at: f64,
    /// The first later load at which the rate is back above that; `None` if it does not recover.
    pub recovered: Option<f64>,
}

/// Fraction of the running maximum below which a curve counts as collapsed.
const COLLAPSED: f64 = 0.9;

/// The first collapse of a curve of (load, delivered) points; `None` if there is none. The points may be in any
/// order.
pub fn collapse(curve: &[(f64, f64)]) -> Option<Collapse> {
    let mut curve = curve.to_vec();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best = f64::NEG_INFINITY;
    let mut fallen = None;
    for (load, delivered) in curve {
        // While the curve is below, the maximum stays the one from before the collapse.
        let below = delivered < best * COLLAPSED;
        match fallen {
            None if below => fallen = Some(load),
            Some(at) if !below => return Some(Collapse { at, recovered: Some(load) }),
            _ => {}
        }
        best = best.max(delivered);
    }
    fallen.map(|at| Collapse { at, recovered: None })
}

/// Requires collapse and recovery of a curve to be within `within` packets per second of the published ones; if the
/// published curve does not collapse, the modelled one must not either.
pub fn collapse_points(what: &str, cells: &[&Cell], within: f64) -> Verdict {
    // A curve is judged as a whole, including fitted points.
    let judged: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.is_informative()).collect();
    let curve = |value: fn(&Cell) -> Option<f64>| -> Vec<(f64, f64)> {
        judged.iter().filter_map(|cell| Some((cell.load_value?, value(cell)?))).collect()
    };
    let (published, modelled) = (curve(|cell| cell.published), curve(Cell::model));
    let missing = published.len() - modelled.len();
    let (want, got) = (collapse(&published), collapse(&modelled));
    let near = |a: f64, b: f64| (a - b).abs() <= within * (1.0 + ROUNDING);
    let agree = match (want, got) {
        (None, None) => true,
        (Some(want), Some(got)) => {
            near(want.at, got.at)
                && match (want.recovered, got.recovered) {
                    (Some(a), Some(b)) => near(a, b),
                    (None, None) => true,
                    _ => false,
                }
        }
        _ => false,
    };
    let mut text = points(got);
    if missing > 0 {
        text.push_str(&format!("; {missing} of {} loads were not modelled", published.len()));
    }
    Verdict {
        what: what.to_owned(),
        asked: format!("as published within {}/s: {}", number(within), points(want)),
        got: text,
        met: agree && missing == 0 && !published.is_empty(),
        ..Verdict::default()
    }
}

fn points(collapse: Option<Collapse>) -> String {
    match collapse {
        None => "no collapse".to_owned(),
        Some(Collapse { at, recovered: None }) => {
            format!("collapse at {}/s and no recovery", number(at))
        }
        Some(Collapse { at, recovered: Some(back) }) => {
            format!("collapse at {}/s, recovery at {}/s", number(at), number(back))
        }
    }
}
