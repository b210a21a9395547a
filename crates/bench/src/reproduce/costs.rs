//! What the steps of a delivery cost on the machine of the kernel's scenarios: `kernel_costs.csv`.
//!
//! The costs are that emulated machine's, and nobody else's: they make its host profile, and say how far a
//! modelled step is off. The columns' meaning: `crates/bench/tables/README.md`.

use super::sheet::{self, TableError, table_row, word};

/// The embedded costs.
const COSTS: &str = include_str!("../../tables/kernel_costs.csv");

word! {
    /// Where a cost comes from.
    CostKind ("constant or traced_interval") {
        /// A constant with a name.
        Constant = "constant",
        /// An interval between two traced events.
        TracedInterval = "traced_interval",
    }
}

table_row! {
    /// A cost of the machine that the kernel's scenarios ran on, in its virtual nanoseconds, one an
    /// instruction.
    pub CostRow {
        /// Where it comes from.
        kind: CostKind,
        /// Its name; empty for an interval.
        name: String,
        /// The run or runs in which it was traced.
        run: String,
        /// The events that it is made of.
        what: String,
        /// How often it was seen.
        n: u64,
        /// The smallest.
        min_ns: Option<u64>,
        /// The median, tracing included.
        p50_ns: u64,
        /// The 90th percentile.
        p90_ns: Option<u64>,
        /// The largest.
        max_ns: Option<u64>,
        /// Traced events inside, the last one included, each of which cost time itself.
        events_inside: Option<u64>,
        /// The median less the tracing.
        corrected_ns: Option<u64>,
        /// The second run's median.
        run2_p50_ns: Option<u64>,
    }
}

/// The embedded costs.
///
/// # Errors
/// None, unless the embedded file itself was damaged.
pub fn costs() -> Result<Vec<CostRow>, TableError> {
    sheet::rows("kernel_costs.csv", COSTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_costs_are_read_and_typed() {
        let costs = costs().unwrap();
        assert_eq!(costs.len(), 163);
        let tail = costs.iter().find(|c| c.name == "poll_tail_after_wake").unwrap();
        assert_eq!((tail.kind, tail.corrected_ns), (CostKind::Constant, Some(357)));
    }

    #[test]
    fn constants_have_names_and_intervals_have_none() {
        for cost in costs().unwrap() {
            assert_eq!(cost.kind == CostKind::Constant, !cost.name.is_empty(), "{cost:?}");
        }
    }
}
