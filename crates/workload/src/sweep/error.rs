//! The errors of a sweep.

use napkin_machine::profile::ProfileError;
use napkin_policy::PolicyError;
use thiserror::Error;

use super::sheet::SheetError;
use crate::interrupt::Interrupted;
use crate::machine::plan::PlanError;
use crate::machine::scenario::LoadError;

/// Why a sweep did not start, or stopped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SweepError {
    /// No parameter is varied.
    #[error("a sweep of nothing: give at least one --vary NAME=VALUE,VALUE")]
    Nothing,
    /// The sweep has more points than the limit.
    #[error("{size}: that is more than --limit {limit}; vary less, or raise the limit")]
    TooMany {
        /// Its size and its estimated time.
        size: String,
        /// The limit.
        limit: u64,
    },
    /// A policy is invalid.
    #[error("--vary policy: {0}")]
    Policy(#[from] PolicyError),
    /// A load is invalid.
    #[error("--vary load: {0}")]
    Load(#[from] LoadError),
    /// A constant cannot have this value, or the profile is not for this workload.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The window is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The sweep's file is invalid.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// The sweep was interrupted before its estimate was known.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl SweepError {
    /// Whether the request was invalid, as opposed to a failure of the file.
    pub fn is_usage(&self) -> bool {
        !matches!(self, SweepError::Sheet(SheetError::Io { .. } | SheetError::Write(_)))
    }

    /// Whether the reader of standard output has closed it.
    pub fn is_closed(&self) -> bool {
        matches!(self, SweepError::Sheet(SheetError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}
