//! Finds rows whose repetitions do not distinguish them from the best row.

use super::Row;

/// The spread that is compared.
const P99: &str = "latency_p99_ns";

/// For each load, marks the rows whose p99 range overlaps that of the best row: the repetitions show no difference
/// between the two. The best row is the one with the lowest median.
pub fn mark(rows: &mut [Row]) {
    let p99 = |row: &Row| Some((*row.spread.get(P99)?, row.figures.latency_ns?.at.p99?));
    for place in 0..rows.len() {
        let alike = rows.iter().enumerate().filter(|(_, row)| row.load == rows[place].load);
        let best = alike
            .filter_map(|(other, row)| Some((other, p99(row)?.0)))
            .min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
        let overlaps = match (best, p99(&rows[place])) {
            // A single repetition has no range.
            (Some((other, best)), Some((own, _))) if rows[place].repetitions.len() > 1 => {
                other != place && rows[other].repetitions.len() > 1 && own.min <= best.max
            }
            _ => false,
        };
        rows[place].p99_overlaps_best = overlaps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conclusion::fixed::Fixed;

    fn row(name: &str, p99: &[f64]) -> Row {
        Fixed::new(name).p50(&p99.iter().map(|_| 1e3).collect::<Vec<_>>()).p99(p99).row()
    }

    fn marked(mut rows: Vec<Row>) -> Vec<bool> {
        mark(&mut rows);
        rows.iter().map(|row| row.p99_overlaps_best).collect()
    }

    #[test]
    fn a_row_that_overlaps_the_best_is_marked_and_the_best_is_not() {
        let rows = [
            row("base", &[4e4, 5e4, 6e4]),
            row("suspend20", &[1e4, 2e4, 3e4]),
            row("fullbusy", &[2.5e4, 2.6e4, 9e4]),
        ];
        assert_eq!(marked(rows.to_vec()), [false, false, true]);
    }

    #[test]
    fn a_row_with_an_unknown_p99_in_one_repetition_is_neither_the_best_nor_marked() {
        let of = |name: &str, p99: &[f64]| {
            Fixed::new(name).p50(&[1e3; 3]).p99(p99).unanswered_last(2).row()
        };
        let rows = [
            row("base", &[4e4, 5e4, 6e4]),
            of("fullbusy", &[1e4; 3]),
            row("suspend20", &[5e4, 6e4, 7e4]),
        ];
        assert_eq!(marked(rows.to_vec()), [false, false, true]);
    }

    #[test]
    fn rows_under_another_load_are_not_compared_and_one_repetition_has_no_range() {
        let at = |mut row: Row, rate: u64| {
            row.load.insert("requests_per_s".into(), rate.into());
            row
        };
        let range = [1e4, 2e4, 3e4];
        let rows = vec![at(row("base", &range), 1), at(row("threaded", &range), 2)];
        assert_eq!(marked(rows), [false, false]);
        assert_eq!(marked(vec![row("base", &[1e4]), row("threaded", &[1e4])]), [false, false]);
        assert_eq!(marked(vec![row("base", &range), row("threaded", &range)]), [false, true]);
    }
}
