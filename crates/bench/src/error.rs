//! What can stop a bench run.

use thiserror::Error;

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
    /// The policy's epoll parameters were refused.
    #[error(transparent)]
    Epoll(#[from] napkin_engine::EpollError),
    /// The policy's socket options were refused.
    #[error(transparent)]
    Socket(#[from] napkin_engine::SocketError),
    /// The load makes no sense for the synthetic device.
    #[error(transparent)]
    Synthetic(#[from] napkin_nic::synthetic::ConfigError),
    /// The TAP device could not be had.
    #[error(transparent)]
    Tap(#[from] napkin_nic::tap::TapError),
    /// A placement was refused.
    #[error(transparent)]
    Placement(#[from] napkin_engine::sched::SchedError),
    /// `/proc` could not be read.
    #[error("CPU times cannot be measured: {0}")]
    Proc(std::io::Error),
    /// The real ping is missing, or failed.
    #[error("{0}")]
    Ping(String),
    /// A value that makes no sense.
    #[error("{0}")]
    Option(String),
    /// A thread of the workload panicked.
    #[error("a thread of the workload panicked; this is a bug in napkin")]
    Panicked,
}
