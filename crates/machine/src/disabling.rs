//! An instance that is being disabled.

use napkin_core::{Disable, Ns};

/// A disable that is under way.
#[derive(Debug)]
pub(crate) struct Disabling<'a> {
    pub(crate) pass: Disable<'a, ()>,
    /// Polls of the instance when it was asked for.
    pub(crate) polls: u64,
    /// For how long the instance is to stay disabled.
    pub(crate) stays: Ns,
}
