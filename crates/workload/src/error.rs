//! Errors that stop a bench run, or exclude one policy from it.

use napkin_engine::WaitError;
use thiserror::Error;

use crate::interrupt::Interrupted;
use napkin_measure::report::Report;

/// Why a run did not take place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] napkin_engine::EngineError),
    /// A socket could not be opened.
    #[error(transparent)]
    Bind(#[from] napkin_stack::BindError),
    /// The policy's epoll parameters, or its socket options, were refused.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The synthetic device refused the load.
    #[error(transparent)]
    Synthetic(#[from] napkin_nic::synthetic::ConfigError),
    /// The TAP device could not be opened.
    #[error("{0}; or flood without a TAP device: --wire synthetic")]
    Tap(#[from] napkin_nic::tap::TapError),
    /// AF_XDP could not be set up.
    #[error(transparent)]
    Xdp(#[from] napkin_nic::xdp::XdpError),
    /// Virtio rings could not be set up.
    #[error(transparent)]
    Vhost(#[from] napkin_nic::vhost::VhostError),
    /// The cable could not be created.
    #[error(transparent)]
    Cable(#[from] napkin_nic::cable::CableError),
    /// The client could not start, or had to stop.
    #[error(transparent)]
    Client(#[from] napkin_client::ClientError),
    /// The scheduler refused a placement on CPUs.
    #[error(transparent)]
    Placement(#[from] napkin_engine::sched::SchedError),
    /// `/proc` could not be read.
    #[error("CPU times cannot be measured: {0}")]
    Proc(std::io::Error),
    /// The real ping is missing, or failed.
    #[error("{0}")]
    Ping(String),
    /// The kernel's part of a run failed: a namespace, a device or a program.
    #[error("{0}")]
    Linux(String),
    /// This kernel cannot do what the policy asks for.
    #[error("{0}")]
    Unsupported(String),
    /// An invalid value.
    #[error("{0}")]
    Usage(String),
    /// The run was asked to end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A thread of the workload panicked.
    #[error("a thread of the workload panicked; this is a bug in napkin")]
    Panicked,
}

impl BenchError {
    /// Whether the policy asks for something that this process has no privilege for, or that this kernel lacks.
    /// Then the policy is not measured, and the run continues.
    pub fn is_refusal(&self) -> bool {
        match self {
            BenchError::Unsupported(_) => true,
            BenchError::Wait(error) => error.is_refusal(),
            _ => false,
        }
    }
}

/// A run that ended early.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Stopped {
    /// What ended the run.
    pub error: BenchError,
    /// The measurements up to then, if any.
    pub report: Option<Box<Report>>,
}

impl From<BenchError> for Stopped {
    fn from(error: BenchError) -> Self {
        Stopped { error, report: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_a_refusal_and_anything_else_is_not() {
        use WaitError::{EpollBudget, SocketBudget, SocketPrefer, Stopped, TooMany};
        for refusal in [SocketBudget(9), SocketPrefer, EpollBudget(65)] {
            assert!(BenchError::from(refusal).is_refusal());
        }
        for failure in [Stopped, TooMany] {
            assert!(!BenchError::from(failure).is_refusal(), "{failure}");
        }
        assert!(!BenchError::Panicked.is_refusal());
    }
}
