//! The errors of a wait by a thread of the application.

use napkin_os::rights::Right;
use napkin_policy::{ApplicationPolicy, EpollPolicy};
use thiserror::Error;

/// The most sockets one [`Epoll`](crate::Epoll) can watch.
pub const WATCHES: usize = 16_384;

/// An error of a wait, or of its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// A busy-poll time that `EPIOCSPARAMS` refuses.
    #[error("busy_poll_usecs {0} is out of range: give 0 to {max}", max = i32::MAX)]
    Usecs(u32),
    /// A budget that `EPIOCSPARAMS` refuses without the privilege.
    #[error("a busy-poll budget of {0} needs CAP_NET_ADMIN: give at most 64, or run privileged")]
    EpollBudget(u16),
    /// As the kernel refuses it without the privilege.
    #[error(
        "SO_BUSY_POLL_BUDGET {0} needs CAP_NET_ADMIN: leave it at 0, which is 8, or run privileged"
    )]
    SocketBudget(u16),
    /// As the kernel refuses it without the privilege.
    #[error("SO_PREFER_BUSY_POLL needs CAP_NET_ADMIN: leave it off, or run privileged")]
    SocketPrefer,
    /// More than [`WATCHES`] sockets.
    #[error("one epoll watches at most {WATCHES} sockets: use several")]
    TooMany,
    /// Another thread waits on the same handle.
    #[error("another thread waits here: give each thread its own")]
    Busy,
    /// The engine was stopped.
    #[error("the engine was stopped")]
    Stopped,
}

impl WaitError {
    /// Whether the policy asks for something that this process has no right to.
    pub fn is_refusal(self) -> bool {
        use WaitError::{EpollBudget, SocketBudget, SocketPrefer};
        matches!(self, EpollBudget(_) | SocketBudget(_) | SocketPrefer)
    }
}

/// Checks parameters as `EPIOCSPARAMS` does.
pub(crate) fn check_epoll(params: &EpollPolicy) -> Result<(), WaitError> {
    if params.busy_poll_usecs > i32::MAX as u32 {
        return Err(WaitError::Usecs(params.busy_poll_usecs));
    }
    if params.needs_budget_privilege() && !Right::NetAdmin.held() {
        return Err(WaitError::EpollBudget(params.busy_poll_budget));
    }
    Ok(())
}

/// Checks options as `setsockopt` does.
pub(crate) fn check_socket(options: &ApplicationPolicy) -> Result<(), WaitError> {
    if options.needs_budget_privilege() && !Right::NetAdmin.held() {
        return Err(WaitError::SocketBudget(options.socket_busy_poll_budget));
    }
    if options.needs_prefer_privilege() && !Right::NetAdmin.held() {
        return Err(WaitError::SocketPrefer);
    }
    Ok(())
}
