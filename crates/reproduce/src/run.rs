//! Tasks and their runs. They have a file of their own because cells are made from runs, and experiments use both.

/// A step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Task<T> {
    /// Label for the progress line and the JSON: `suspend20 at 200000/s`.
    pub label: String,
    /// Seed of the run.
    pub seed: u64,
    /// The experiment's own parameters.
    pub what: T,
}

/// A finished task.
#[derive(Debug, Clone, PartialEq)]
pub struct Run<T, O> {
    /// The task.
    pub task: Task<T>,
    /// The outcome, or the reason why there is none.
    pub outcome: Result<O, String>,
}
