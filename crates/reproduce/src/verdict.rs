//! Criteria of a reproduction, and whether they are met.
//!
//! Each function takes the cells of one criterion, and judges those that were published, are not exempt, and were
//! not fitted, because a fitted figure proves nothing. A figure that should have been modelled and was not is a
//! miss: omitting it would make a failed run look good. For the same reason, a criterion without figures is not
//! met. Misses are listed, the worst first, and never explained away here.

mod collapse;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Modelled, Unit, number, with_unit};
use napkin_measure::interleave::median;

pub use collapse::{Collapse, collapse, collapse_points};

/// The result of one criterion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The subject of the criterion.
    pub what: String,
    /// The requirement.
    pub asked: String,
    /// The result.
    pub got: String,
    /// Whether the requirement is met.
    pub met: bool,
    /// The misses in words, the worst first; empty if the criterion is not about individual figures.
    pub misses: Vec<String>,
    /// For a criterion about a median, which hides outliers: the figures with the largest errors, the worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<String>,
}

/// The allowed error of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tolerance {
    /// As a fraction of the published figure.
    Relative(f64),
    /// In the figure's own unit; for percentages, in points.
    Absolute(f64),
    /// As a fraction or as a number of events, whichever is larger.
    RelativeOr(f64, f64),
}

impl Tolerance {
    /// The error of a figure in units of the tolerance: up to 1 is within it. Infinite if the figure was not
    /// modelled.
    fn scaled_error(self, cell: &Cell) -> f64 {
        match (cell.published, cell.model()) {
            (Some(published), Some(modelled)) => self.scaled_error_of(published, modelled),
            _ => f64::INFINITY,
        }
    }

    /// Whether a modelled figure is within the tolerance.
    pub fn admits(self, published: f64, modelled: f64) -> bool {
        self.scaled_error_of(published, modelled) <= 1.0 + ROUNDING
    }

    fn scaled_error_of(self, published: f64, modelled: f64) -> f64 {
        let difference = (modelled - published).abs();
        let relative = super::cell::relative(modelled, published);
        let fraction = |limit| relative.map_or(f64::INFINITY, |it| ratio(it.abs(), limit));
        match self {
            Tolerance::Relative(limit) => fraction(limit),
            Tolerance::Absolute(limit) => ratio(difference, limit),
            Tolerance::RelativeOr(limit, events) => fraction(limit).min(ratio(difference, events)),
        }
    }

    fn words(self, unit: Unit) -> String {
        match self {
            Tolerance::Relative(limit) => percent(limit),
            Tolerance::Absolute(limit) if unit == Unit::Percent => {
                format!("{} points", number(limit))
            }
            Tolerance::Absolute(limit) => with_unit(limit, unit),
            Tolerance::RelativeOr(limit, events) => {
                format!("{} or {} events", percent(limit), number(events))
            }
        }
    }
}

/// A quotient in which 0 divided by 0 is 0.
fn ratio(value: f64, limit: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value / limit }
}

/// Slack for rounding: a figure that is off by exactly the tolerance is within it.
const ROUNDING: f64 = 1e-9;

/// Requires at least `share` of the figures to be within the tolerance.
pub fn share_within(what: &str, cells: &[&Cell], tolerance: Tolerance, share: f64) -> Verdict {
    let judged: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.is_judged()).collect();
    let missed = worst_first(&judged, |cell| tolerance.scaled_error(cell));
    let unit = judged.first().map_or(Unit::Count, |cell| cell.unit);
    let within = judged.len() - missed.len();
    Verdict {
        what: what.to_owned(),
        asked: format!(
            "within {} in at least {} of the figures",
            tolerance.words(unit),
            percent(share)
        ),
        got: of(within, judged.len()),
        met: reaches(within, judged.len(), share),
        misses: missed.into_iter().map(Cell::to_string).collect(),
        ..Verdict::default()
    }
}

/// Requires the median of the absolute relative errors to be at most `at_most`.
pub fn median_error(what: &str, cells: &[&Cell], at_most: f64) -> Verdict {
    let judged: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.is_judged()).collect();
    let scaled_error = |cell: &Cell| Tolerance::Relative(at_most).scaled_error(cell);
    // Infinite errors are represented by the largest number, because a median ignores values that are not finite.
    let errors = |of: fn(f64) -> f64| {
        let errors = judged.iter().map(|cell| cell.relative().map_or(f64::MAX, of));
        median(errors).filter(|error| *error < f64::MAX / 4.0)
    };
    let (middle, signed) = (errors(f64::abs), errors(|error| error));
    let within = judged.iter().filter(|cell| scaled_error(cell) <= 1.0 + ROUNDING).count();
    let sentence = |middle: f64| {
        // A median of absolute errors hides a model that is always too low, or always too high.
        let signed =
            signed.map_or(String::new(), |it| format!(", with its sign {}", signed_percent(it)));
        format!(
            "{}{signed}; {within} of {} within {}",
            percent(middle),
            judged.len(),
            percent(at_most)
        )
    };
    Verdict {
        what: format!("{what}, {} figures", judged.len()),
        asked: format!("median error at most {}", percent(at_most)),
        got: middle.map_or("none to be had: too few figures were modelled".to_owned(), sentence),
        met: middle.is_some_and(|error| error <= at_most * (1.0 + ROUNDING)),
        misses: worst_first(&judged, scaled_error).into_iter().map(Cell::to_string).collect(),
        worst: worst(&judged),
    }
}

/// An order of configurations that can be guessed without a model: a description, and the guess of a figure, by
/// which they are sorted in ascending order.
pub type Guess<'a> = (&'a str, &'a dyn Fn(&Cell) -> f64);

/// Judges all pairs of configurations of one load, table and quantity whose published figures differ by more than
/// `gap` (larger relative to smaller), except pairs with two fitted figures. Requires at least `share` of them to
/// be in the published order. With a guess, the machine must also order more of the pairs on which the guess has an
/// opinion than the guess does, unless the guess orders all of them.
pub fn pair_order(
    what: &str,
    cells: &[&Cell],
    gap: f64,
    share: f64,
    guess: Option<Guess<'_>>,
) -> Verdict {
    let informative: Vec<&Cell> =
        cells.iter().copied().filter(|cell| cell.is_informative()).collect();
    let mut pairs = 0;
    let mut misses = Vec::new();
    // Pairs that the guess decides: all, those that the machine orders correctly, and those that the guess does.
    let (mut decided, mut modelled, mut guessed) = (0, 0, 0);
    for (i, one) in informative.iter().enumerate() {
        for other in &informative[i + 1..] {
            let comparable = one.table == other.table
                && one.load == other.load
                && one.quantity == other.quantity
                && one.config != other.config
                && !(one.fitted && other.fitted);
            let Some((low, high)) =
                comparable.then(|| in_published_order(one, other, gap)).flatten()
            else {
                continue;
            };
            pairs += 1;
            let right = matches!((low.model(), high.model()), (Some(l), Some(h)) if l < h);
            if !right {
                misses.push(wrong_order(low, high));
            }
            let opinion = guess.map(|(_, of)| (of(low), of(high))).filter(|(a, b)| a != b);
            if let Some((low, high)) = opinion {
                decided += 1;
                modelled += usize::from(right);
                guessed += usize::from(low < high);
            }
        }
    }
    let right = pairs - misses.len();
    let mut got = of(right, pairs);
    if let Some((words, _)) = guess.filter(|_| decided > 0) {
        got.push_str(&format!(
            "; of the {decided} that {words} orders as well, {modelled}, and it {guessed}"
        ));
    }
    let more = modelled > guessed || guessed == decided;
    Verdict {
        what: what.to_owned(),
        asked: format!(
            "at least {} of the pairs more than {} apart in the published order{}",
            percent(share),
            percent(gap),
            guess.map_or(String::new(), |(words, _)| format!(", and more than {words}"))
        ),
        got,
        met: reaches(right, pairs, share) && more,
        misses,
        ..Verdict::default()
    }
}

/// Requires the correct order of every pair of configurations whose published figures differ by more than `gap`.
pub fn winner(what: &str, cells: &[&Cell], gap: f64) -> Verdict {
    Verdict {
        asked: format!("the right winner of every pair more than {} apart", percent(gap)),
        ..pair_order(what, cells, gap, 1.0, None)
    }
}

/// The two cells in their published order, if they differ by more than the gap.
fn in_published_order<'a>(
    one: &'a Cell,
    other: &'a Cell,
    gap: f64,
) -> Option<(&'a Cell, &'a Cell)> {
    let (a, b) = (one.published?, other.published?);
    let (low, high) = if a <= b { (one, other) } else { (other, one) };
    (a.max(b) > a.min(b) * (1.0 + gap)).then_some((low, high))
}

fn wrong_order(low: &Cell, high: &Cell) -> String {
    let published =
        |cell: &Cell| cell.published.map_or("-".to_owned(), |v| with_unit(v, cell.unit));
    let modelled = |cell: &Cell| {
        cell.model().map_or("not modelled".to_owned(), |value| with_unit(value, cell.unit))
    };
    let at = if low.load.is_empty() { String::new() } else { format!(", {}", low.load) };
    format!(
        "{}{at}: {} is published below {} ({} and {}), modelled {} and {}",
        low.quantity,
        low.config,
        high.config,
        published(low),
        published(high),
        modelled(low),
        modelled(high)
    )
}

/// The figures as quotients by those of one configuration, in the same table, load and quantity; that configuration
/// itself is left out. A quotient counts as fitted only if both of its figures are.
pub fn ratios_to(cells: &[&Cell], base: &str) -> Vec<Cell> {
    let quotient = |cell: &&Cell| {
        let below = cells.iter().find(|other| {
            other.config == base
                && other.table == cell.table
                && other.load == cell.load
                && other.quantity == cell.quantity
        })?;
        let divided = |a: Option<f64>, b: Option<f64>| Some(a? / b.filter(|b| *b != 0.0)?);
        let model = divided(cell.model(), below.model());
        let why =
            [&cell.modelled, &below.modelled].into_iter().find_map(|modelled| match modelled {
                Modelled::Absent { why } => Some(why.as_str()),
                Modelled::Value(_) => None,
            });
        Some(Cell {
            config: format!("{}/{base}", cell.config),
            unit: Unit::Ratio,
            published: divided(cell.published, below.published),
            modelled: Modelled::of(model.as_slice(), why.unwrap_or("the divisor is zero")),
            true_value: None,
            true_grows: false,
            interval: None,
            fitted: cell.fitted && below.fitted,
            exempt: cell.exempt || below.exempt,
            note: None,
            ..(*cell).clone()
        })
    };
    cells.iter().filter(|cell| cell.config != base).filter_map(quotient).collect()
}

/// The excess of each informative row over its configuration's figure at the idle load, published and modelled;
/// rows whose idle row was not published are left out.
pub fn excesses(cells: &[&Cell], idle: &str) -> Vec<Cell> {
    let excess = |cell: &&Cell| {
        let base = cells.iter().find(|other| {
            other.load == idle
                && other.config == cell.config
                && other.table == cell.table
                && other.quantity == cell.quantity
        })?;
        let less = |a: Option<f64>, b: Option<f64>| Some(a? - b?);
        let model = less(cell.model(), base.model());
        Some(Cell {
            quantity: format!("excess of {} over the idle row", cell.quantity),
            published: less(cell.published, base.published),
            modelled: Modelled::of(model.as_slice(), "the row or its idle row was not modelled"),
            ..(*cell).clone()
        })
    };
    cells.iter().filter(|cell| cell.is_informative()).filter_map(excess).collect()
}

/// Requires the excess of each row over its configuration's figure at the idle load to be within a tolerance, in
/// the figures' unit, for at least `share` of the figures. The idle rows, right by definition, do not count.
pub fn excess_over_idle(
    what: &str,
    cells: &[&Cell],
    idle: &str,
    within: f64,
    share: f64,
) -> Verdict {
    let excesses = excesses(cells, idle);
    let unit = excesses.first().map_or(Unit::Count, |cell| cell.unit);
    let counts = |cell: &Cell| cell.is_judged() && cell.load != idle;
    let all: Vec<&Cell> = excesses.iter().filter(|cell| counts(cell)).collect();
    let missed = worst_first(&all, |cell| Tolerance::Absolute(within).scaled_error(cell));
    let total = cells.iter().filter(|cell| counts(cell)).count();
    let good = all.len() - missed.len();
    Verdict {
        what: what.to_owned(),
        asked: format!("within {} in at least {}", with_unit(within, unit), percent(share)),
        got: of(good, total),
        met: reaches(good, total, share),
        misses: missed.into_iter().map(Cell::to_string).collect(),
        ..Verdict::default()
    }
}

/// Requires at least `share` of the rows (scenarios) to have all judged counts within a tolerance.
pub fn rows_within(what: &str, cells: &[&Cell], tolerance: Tolerance, share: f64) -> Verdict {
    let mut rows: BTreeMap<String, Vec<&Cell>> = BTreeMap::new();
    for cell in cells.iter().copied().filter(|cell| cell.is_judged()) {
        rows.entry(cell.row()).or_default().push(cell);
    }
    let mut misses = Vec::new();
    for (row, counts) in &rows {
        let wrong = worst_first(counts, |cell| tolerance.scaled_error(cell));
        let Some(first) = wrong.first() else { continue };
        let more = match wrong.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more of its {} counts", counts.len()),
        };
        // Repeat a row's explanation of its miss, so that the reader need not search for it.
        let note = wrong.iter().find_map(|cell| cell.note.as_deref());
        let note = note.map_or(String::new(), |note| format!("; {note}"));
        debug_assert_eq!(first.row(), *row);
        misses.push(format!("{first}{more}{note}"));
    }
    let good = rows.len() - misses.len();
    Verdict {
        what: what.to_owned(),
        asked: format!(
            "every count within {} in at least {} of the rows",
            tolerance.words(Unit::Count),
            percent(share)
        ),
        got: of(good, rows.len()),
        met: reaches(good, rows.len(), share),
        misses,
        ..Verdict::default()
    }
}

/// The figures that exceed their tolerance, the worst first; equal ones in their original order.
fn worst_first<'a>(cells: &[&'a Cell], scaled_error: impl Fn(&Cell) -> f64) -> Vec<&'a Cell> {
    let mut missed: Vec<(f64, &Cell)> = cells
        .iter()
        .map(|cell| (scaled_error(cell), *cell))
        .filter(|(scaled_error, _)| *scaled_error > 1.0 + ROUNDING)
        .collect();
    missed.sort_by(|a, b| b.0.total_cmp(&a.0));
    missed.into_iter().map(|(_, cell)| cell).collect()
}

/// Number of figures named next to a median.
const WORST: usize = 3;

/// The figures with the largest relative errors, the worst first.
pub(super) fn worst(cells: &[&Cell]) -> Vec<String> {
    let shown = |error: f64| format!("{:+.*} %", usize::from(error.abs() < 0.1), error * 100.0);
    furthest(cells, Cell::relative, shown)
}

/// The figures with the largest absolute errors, the worst first.
pub(super) fn worst_by_difference(cells: &[&Cell], unit: Unit) -> Vec<String> {
    let shown = |error: f64| {
        let sign = if error > 0.0 { "+" } else { "" };
        format!("{sign}{}", with_unit(error, unit))
    };
    furthest(cells, Cell::difference, shown)
}

fn furthest(
    cells: &[&Cell],
    error: fn(&Cell) -> Option<f64>,
    shown: impl Fn(f64) -> String,
) -> Vec<String> {
    let off = |cell: &Cell| error(cell).map_or(f64::INFINITY, f64::abs);
    let mut cells: Vec<&Cell> = cells.iter().copied().filter(|cell| off(cell) > 0.0).collect();
    cells.sort_by(|a, b| off(b).total_cmp(&off(a)));
    let one = cells.windows(2).all(|pair| pair[0].quantity == pair[1].quantity);
    let named = |cell: &Cell| {
        let quantity = if one { String::new() } else { format!(", {}", cell.quantity) };
        let error = match (cell.model(), error(cell)) {
            (None, _) => "not modelled".to_owned(),
            (_, Some(error)) => shown(error),
            (Some(model), None) => format!("{} where 0 was published", number(model)),
        };
        format!("{}{quantity} {error}", cell.row())
    };
    cells.into_iter().take(WORST).map(named).collect()
}

/// Whether `some` is at least `share` of `all`; never if `all` is 0.
fn reaches(some: usize, all: usize, share: f64) -> bool {
    all > 0 && some as f64 >= share * all as f64 - ROUNDING
}

fn of(some: usize, all: usize) -> String {
    match all {
        0 => "nothing to judge".to_owned(),
        _ => format!("{some} of {all} ({})", percent(some as f64 / all as f64)),
    }
}

fn signed_percent(fraction: f64) -> String {
    let sign = if fraction > 0.0 { "+" } else { "" };
    format!("{sign}{}", percent(fraction))
}

/// Formats a fraction in per cent, without a decimal of 0.
pub(super) fn percent(fraction: f64) -> String {
    let text = format!("{:.1}", fraction * 100.0);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests;
