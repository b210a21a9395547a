//! A horizontal axis of numbers, of names, or of numbers followed by names.

use super::axis::Scale;
use super::{At, Lines};

/// Width of a name's slot after the numbers.
const SLOT: f64 = 52.0;

/// Space between the last number and the border to the names.
const GAP: f64 = 12.0;

/// The horizontal axis of a line plot.
#[derive(Debug, Clone, Copy)]
pub(super) struct HorizontalAxis<'a> {
    /// `None` if there are no numbers.
    scale: Option<Scale>,
    named: &'a [String],
    /// Share of the axis for the numbers, and for the gap after them.
    numbers: f64,
    gap: f64,
}

impl<'a> HorizontalAxis<'a> {
    /// The axis of a plot of this width.
    pub(super) fn of(lines: &'a Lines, width: f64) -> HorizontalAxis<'a> {
        let points = lines.series.iter().flat_map(|series| &series.points);
        let numbers: Vec<f64> = points
            .filter_map(|point| match point.x {
                At::Number(x) => Some(x),
                At::Name(_) => None,
            })
            .collect();
        let named = &lines.named;
        let any = !numbers.is_empty() || named.is_empty();
        let scale = any.then(|| Scale::over(numbers, lines.x.log));
        let both = any && !named.is_empty();
        let gap = if both { GAP / width } else { 0.0 };
        let names = SLOT * named.len() as f64 / width;
        // However many names there are, the numbers keep a third.
        let numbers = if any { (1.0 - names - gap).max(1.0 / 3.0) } else { 0.0 };
        HorizontalAxis { scale, named, numbers, gap }
    }

    /// The position of a value: 0 at the left end and 1 at the right.
    pub(super) fn place(self, at: At) -> Option<f64> {
        match at {
            At::Number(x) => Some(self.scale?.place(x)? * self.numbers),
            At::Name(index) if index < self.named.len() => {
                let begin = self.numbers + self.gap;
                let width = (1.0 - begin) / self.named.len() as f64;
                Some(begin + width * (index as f64 + 0.5))
            }
            At::Name(_) => None,
        }
    }

    /// Positions and texts of the ticks; names first, because they are few.
    pub(super) fn ticks(self) -> Vec<(f64, String)> {
        let numbers = self.scale.map_or(Vec::new(), Scale::ticks);
        let numbers = numbers
            .into_iter()
            .filter_map(|tick| Some((self.place(At::Number(tick))?, super::axis::tick_text(tick))));
        let names = self.named.iter().enumerate();
        let names = names.filter_map(|(i, name)| Some((self.place(At::Name(i))?, name.clone())));
        names.chain(numbers).collect()
    }

    /// Where the numbers end and the names begin, if there are both.
    pub(super) fn border(self) -> Option<f64> {
        (self.gap > 0.0).then_some(self.numbers + self.gap)
    }

    /// Whether a line may connect two positions: two numbers, or two names if there are no numbers. (There is no
    /// distance between a number and a name.)
    pub(super) fn joins(self, one: At, other: At) -> bool {
        match (one, other) {
            (At::Number(_), At::Number(_)) => true,
            (At::Name(_), At::Name(_)) => self.scale.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::{Axis, Point, Series, Source};

    fn lines(xs: &[At], named: &[&str]) -> Lines {
        let axis = || Axis { label: String::new(), log: false };
        let points = xs.iter().map(|&x| Point { x, y: Some(1.0), interval: None }).collect();
        let source = Source::Run;
        Lines {
            x: axis(),
            named: named.iter().map(|name| (*name).to_owned()).collect(),
            y: axis(),
            series: vec![Series { name: "base".into(), style: 0, source, points }],
        }
    }

    #[test]
    fn a_load_without_a_number_stands_behind_the_numbers_and_no_line_leads_there() {
        let lines = lines(&[At::Number(1e6), At::Name(0)], &["max"]);
        let horizontal = HorizontalAxis::of(&lines, 600.0);
        let border = horizontal.border().expect("both");
        assert!(horizontal.place(At::Number(1e6)).is_some_and(|place| place < border));
        assert!(horizontal.place(At::Name(0)).is_some_and(|place| place > border && place < 1.0));
        assert!(!horizontal.joins(At::Number(1e6), At::Name(0)));
        assert_eq!(horizontal.ticks().first().map(|tick| tick.1.as_str()), Some("max"));
    }

    #[test]
    fn names_alone_share_the_axis_and_are_joined() {
        let lines = lines(&[At::Name(0), At::Name(1)], &["1 B", "5 KB"]);
        let horizontal = HorizontalAxis::of(&lines, 600.0);
        assert_eq!(horizontal.place(At::Name(0)), Some(0.25));
        assert_eq!(horizontal.place(At::Name(1)), Some(0.75));
        assert_eq!((horizontal.place(At::Name(2)), horizontal.border()), (None, None));
        assert!(horizontal.joins(At::Name(0), At::Name(1)));
    }

    #[test]
    fn an_axis_without_a_point_is_one_of_numbers() {
        assert!(HorizontalAxis::of(&lines(&[], &[]), 600.0).ticks().len() >= 2);
    }
}
