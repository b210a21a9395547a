//! Errors that prevent a comparison or end it.

use std::io;

use napkin_kernel::count::CountError;
use napkin_kernel::device::DeviceError;
use napkin_kernel::namespace::NamespaceError;
use napkin_kernel::netlink::NetlinkError;
use napkin_kernel::process::ProcessError;
use napkin_linux::apply::ApplyError;
use napkin_linux::attach::PlanError;
use napkin_linux::journal::JournalError;
use napkin_linux::support::Refusal;
use thiserror::Error;

/// Why a comparison failed. Everything changed by then was put back, unless it is [`CompareError::Left`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompareError {
    /// An invalid option or combination of options.
    #[error("{0}")]
    Usage(String),
    /// This kernel does not support what a policy requires.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A policy cannot be set from outside the program.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device cannot be configured or restored.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The device cannot be found or read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel does not answer netlink requests.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The program cannot be found or read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The journal cannot be used; without it nothing is changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Requests cannot be timed.
    #[error(
        "requests cannot be timed from the server's side: {0}; --measure CMD takes a measure of yours"
    )]
    Count(#[from] CountError),
    /// The network namespace cannot be identified.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The program is in another network namespace than the device.
    #[error(
        "process {pid} is in another network namespace than this napkin, whose devices it does not use: \
         nsenter --net --target {pid} napkin compare ..."
    )]
    OtherNamespace {
        /// The process id that was given.
        pid: i32,
    },
    /// napkin is in a PID namespace, whose ids are not those that the kernel's programs see.
    #[error(
        "this napkin is in a process-id namespace of its own (a container), where the kernel's programs \
         cannot tell which process is {pid}: run it outside, or give --measure CMD"
    )]
    PidNamespace {
        /// The process id that was given.
        pid: i32,
    },
    /// The program has no listening TCP port and no bound UDP socket.
    #[error(
        "process {pid} ({comm}) and its children listen on no TCP port and have bound no UDP socket: \
         name the one that serves"
    )]
    NoPort {
        /// The process id that was given.
        pid: i32,
        /// Its name, as in `/proc/PID/comm`.
        comm: String,
    },
    /// The program ended during the comparison.
    #[error("{service} has ended; what was changed was put back")]
    ServiceEnded {
        /// The program, as `memcached[812]`.
        service: String,
    },
    /// The device disappeared during the comparison.
    #[error(
        "{ifname} is gone, or has no NAPI instance any more; what was changed elsewhere was put back"
    )]
    DeviceGone {
        /// The interface's name.
        ifname: String,
    },
    /// The command that measures did not print a number.
    #[error("--measure {command:?} {what}: what was changed was put back")]
    Measure {
        /// The command, as `--measure` gave it to the shell.
        command: String,
        /// What it did instead of printing a number.
        what: String,
    },
    /// A command cannot be started, or `/proc` cannot be read.
    #[error("{what}: {error}")]
    System {
        /// What failed, for the message.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// Some settings could not be put back.
    #[error(
        "not everything was put back ({why}): napkin diff says what, napkin restore tries again"
    )]
    Left {
        /// Which ones, and why.
        why: String,
    },
}

impl CompareError {
    /// The note for a comparison by `--measure` in which requests cannot be timed: a silent service goes unnoticed.
    pub(crate) fn unnoticed(&self) -> String {
        let why = match self {
            // Without the advice of these two errors to use `--measure`, which is in use already.
            CompareError::Count(why) => why.to_string(),
            CompareError::PidNamespace { pid } => format!(
                "this napkin is in a process-id namespace of its own, where the kernel's programs cannot tell which \
                 process is {pid}"
            ),
            error => error.to_string(),
        };
        format!("that the service stops answering would not be noticed: {why}")
    }

    /// Combines an error with a failed restore: the result says what was left, the cause, and what to do.
    pub(crate) fn and_left(self, left: CompareError) -> CompareError {
        let CompareError::Left { why } = left else { return left };
        // The texts of these errors claim that everything was put back.
        let cause = match self {
            CompareError::ServiceEnded { service } => format!("{service} has ended"),
            CompareError::DeviceGone { ifname } => format!("{ifname} is gone"),
            CompareError::Measure { command, what } => format!("--measure {command:?} {what}"),
            other => other.to_string(),
        };
        CompareError::Left { why: format!("{cause}; {why}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_whatever_ended_it() {
        let left = || CompareError::Left { why: "eth0: refused".into() };
        let gone = CompareError::DeviceGone { ifname: "eth0".into() };
        let message = gone.and_left(left()).to_string();
        assert_eq!(
            message,
            "not everything was put back (eth0 is gone; eth0: refused): napkin diff says what, napkin restore tries \
             again"
        );
        let ended = CompareError::ServiceEnded { service: "memcached[812]".into() };
        let message = ended.and_left(left()).to_string();
        assert!(message.contains("(memcached[812] has ended; eth0: refused)"), "{message}");
        let usage = CompareError::Usage("it makes no sense".into());
        let message = usage.and_left(left()).to_string();
        assert!(message.contains("(it makes no sense; eth0: refused)"), "{message}");
    }
}
