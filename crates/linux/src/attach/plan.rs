//! The part of a policy that can be set in a process from outside.

use napkin_policy::{Policy, SocketPoller};
use thiserror::Error;

use napkin_kernel::process::{Params, SocketOptions};

/// The settings for a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Parameters for each epoll context; `None` leaves them as they are.
    pub epoll: Option<Params>,
    /// Options for each internet socket, if the policy's sockets busy poll.
    pub socket: Option<SocketOptions>,
}

/// Why a policy cannot be set from outside.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A thread cannot be started in another process.
    #[error(
        "{policy} wants a thread of the program's own that does nothing but poll \
         (socket-poller=separate), which cannot be started from outside; the nearest is the same \
         with socket-poller=inline, as in busypoll"
    )]
    SeparatePoller {
        /// The policy as text, in the form that `Policy` parses.
        policy: String,
    },
}

impl Plan {
    /// Sets nothing: an attachment may still pin threads.
    pub const NOTHING: Plan = Plan { epoll: None, socket: None };

    /// Returns the epoll and application part of a policy, without what the program itself has to do
    /// (`application=spin`): `support` warns of that.
    ///
    /// # Errors
    /// If the policy needs a polling thread in the program.
    pub fn of(policy: &Policy) -> Result<Plan, PlanError> {
        let application = &policy.application;
        if application.socket_busy_polls() && application.socket_poller == SocketPoller::Separate {
            return Err(PlanError::SeparatePoller { policy: policy.to_string() });
        }
        let socket = application.socket_busy_polls().then_some(SocketOptions {
            busy_poll_usecs: application.socket_busy_poll_usecs,
            prefer_busy_poll: application.socket_prefer_busy_poll,
            // The budget cannot be read back from a socket, so it is set only if the policy has one.
            busy_poll_budget: match application.socket_busy_poll_budget {
                0 => None,
                budget => Some(budget),
            },
        });
        Ok(Plan { epoll: Some(policy.epoll.into()), socket })
    }

    /// Whether a program is left as a new one is: the policy is the device's alone.
    pub fn sets_nothing(&self) -> bool {
        self.epoll == Some(Params::default()) && self.socket.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(policy: &str) -> Result<Plan, PlanError> {
        Plan::of(&policy.parse().expect(policy))
    }

    #[test]
    fn sockets_are_touched_only_if_the_policy_s_busy_poll() {
        let suspend = plan("suspend20").unwrap();
        assert_eq!(suspend.epoll.unwrap().to_string(), "busy poll 0 us, budget 64, prefer");
        assert_eq!(suspend.socket, None);
        let busy = plan("busypoll").unwrap().socket.expect("it busy polls");
        assert!(busy.prefer_busy_poll && busy.busy_poll_usecs > 0);
        assert_eq!(busy.busy_poll_budget, None);
        let budget = plan("busypoll,socket-busy-poll-budget=16").unwrap().socket;
        assert_eq!(budget.and_then(|options| options.busy_poll_budget), Some(16));
    }

    #[test]
    fn what_only_the_program_can_do_is_said() {
        let error = plan("busypoll-separate").unwrap_err().to_string();
        assert!(error.contains("busypoll-separate") && error.contains("inline"), "{error}");
        assert!(plan("socket-poller=separate").is_ok(), "nothing polls");
    }
}
