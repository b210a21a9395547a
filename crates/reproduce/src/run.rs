//! A task of a plan, and its run, which cells are made of. Cells use both, and so does the experiment, which
//! makes cells: so they have a file below the two.

/// A step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Task<T> {
    /// What is run, for the progress line and the JSON: `suspend20 at 200000/s`.
    pub label: String,
    /// With which seed.
    pub seed: u64,
    /// The experiment's own words for it.
    pub what: T,
}

/// A task that was run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run<T, O> {
    /// What was asked for.
    pub task: Task<T>,
    /// What came out, or why nothing did.
    pub outcome: Result<O, String>,
}
