//! Why a sweep did not take place, or stopped.

use napkin_machine::profile::ProfileError;
use napkin_policy::PolicyError;
use thiserror::Error;

use super::sheet::SheetError;
use crate::interrupt::Interrupted;
use crate::machine::plan::PlanError;
use crate::machine::scenario::LoadError;

/// Why a sweep did not take place, or stopped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SweepError {
    /// Nothing is varied.
    #[error("a sweep of nothing: give at least one --vary NAME=VALUE,VALUE")]
    Nothing,
    /// More points than allowed.
    #[error("{size}: that is more than --limit {limit}; vary less, or raise the limit")]
    TooMany {
        /// What was asked for, with what it would take.
        size: String,
        /// What is allowed.
        limit: u64,
    },
    /// A policy that is none.
    #[error("--vary policy: {0}")]
    Policy(#[from] PolicyError),
    /// A load that is none.
    #[error("--vary load: {0}")]
    Load(#[from] LoadError),
    /// A constant that cannot have that value, or a profile that is not for this workload.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A window that makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What is wrong with the sweep's file.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// It was asked to end before it knew what it would take.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl SweepError {
    /// Whether what was asked makes no sense, rather than went wrong.
    pub fn is_usage(&self) -> bool {
        !matches!(self, SweepError::Sheet(SheetError::Io { .. } | SheetError::Write(_)))
    }

    /// Whether whoever read standard output has had enough.
    pub fn is_closed(&self) -> bool {
        matches!(self, SweepError::Sheet(SheetError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}
