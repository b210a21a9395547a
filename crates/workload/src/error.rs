//! What can stop a bench run, or keep one policy out of it.

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
    /// The load makes no sense for the synthetic device.
    #[error(transparent)]
    Synthetic(#[from] napkin_nic::synthetic::ConfigError),
    /// The TAP device could not be had.
    #[error("{0}; or flood without a TAP device: --wire synthetic")]
    Tap(#[from] napkin_nic::tap::TapError),
    /// AF_XDP could not be had.
    #[error(transparent)]
    Xdp(#[from] napkin_nic::xdp::XdpError),
    /// Virtio rings could not be had.
    #[error(transparent)]
    Vhost(#[from] napkin_nic::vhost::VhostError),
    /// There is no cable.
    #[error(transparent)]
    Cable(#[from] napkin_nic::cable::CableError),
    /// The client could not start, or had to end.
    #[error(transparent)]
    Client(#[from] napkin_client::ClientError),
    /// A placement was refused.
    #[error(transparent)]
    Placement(#[from] napkin_engine::sched::SchedError),
    /// `/proc` could not be read.
    #[error("CPU times cannot be measured: {0}")]
    Proc(std::io::Error),
    /// The real ping is missing, or failed.
    #[error("{0}")]
    Ping(String),
    /// The kernel's part of a run failed: a namespace, a device, a program.
    #[error("{0}")]
    Linux(String),
    /// This kernel cannot do what the policy asks for.
    #[error("{0}")]
    Unsupported(String),
    /// A value that makes no sense.
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
    /// Whether the policy asks for something that this process has no right to: then the policy is
    /// not measured, and the run goes on.
    pub fn is_refusal(&self) -> bool {
        match self {
            BenchError::Unsupported(_) => true,
            BenchError::Wait(error) => error.is_refusal(),
            _ => false,
        }
    }
}

/// A run that did not come to its end.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Stopped {
    /// What ended the run.
    pub error: BenchError,
    /// What was measured until then, if anything.
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
