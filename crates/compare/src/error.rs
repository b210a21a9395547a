//! Why nothing is compared, or no further.

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

/// What went wrong; whatever had been changed by then was put back, unless [`CompareError::Left`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompareError {
    /// An option makes no sense.
    #[error("{0}")]
    Usage(String),
    /// This kernel cannot do what a policy says.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A policy cannot be had from outside of the program.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device cannot be set, or not be put back.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The device cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel does not answer about devices.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The program cannot be had.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The journal. Without it nothing is changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Requests cannot be timed.
    #[error(
        "requests cannot be timed from the server's side: {0}; --measure CMD takes a measure of yours"
    )]
    Count(#[from] CountError),
    /// The namespace cannot be told.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The program is not where its packets come from.
    #[error(
        "process {pid} is in another network namespace than this napkin, whose devices it does not use: \
         nsenter --net --target {pid} napkin compare ..."
    )]
    OtherNamespace {
        /// The process id that was given.
        pid: i32,
    },
    /// Its ids are not the kernel's.
    #[error(
        "this napkin is in a process-id namespace of its own (a container), where the kernel's programs \
         cannot tell which process is {pid}: run it outside, or give --measure CMD"
    )]
    PidNamespace {
        /// The process id that was given.
        pid: i32,
    },
    /// It serves nobody.
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
    /// The program ended in the middle.
    #[error("{service} has ended; what was changed was put back")]
    ServiceEnded {
        /// The program, as `memcached[812]`.
        service: String,
    },
    /// The device went in the middle.
    #[error(
        "{ifname} is gone, or has no NAPI instance any more; what was changed elsewhere was put back"
    )]
    DeviceGone {
        /// The interface's name.
        ifname: String,
    },
    /// The command that measures did not.
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
        /// What was tried.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// Not everything is as it was.
    #[error(
        "not everything was put back ({why}): napkin diff says what, napkin restore tries again"
    )]
    Left {
        /// What is not.
        why: String,
    },
}

impl CompareError {
    /// What is missing where requests cannot be timed and a measure of the user's own takes their place.
    pub(crate) fn unnoticed(&self) -> String {
        let why = match self {
            // Their advice is to take such a measure.
            CompareError::Count(why) => why.to_string(),
            CompareError::PidNamespace { pid } => format!(
                "this napkin is in a process-id namespace of its own, where the kernel's programs cannot tell which \
                 process is {pid}"
            ),
            error => error.to_string(),
        };
        format!("that the service stops answering would not be noticed: {why}")
    }

    /// The same where not everything could be put back: what is left, with its cause and with what to do about it.
    pub(crate) fn and_left(self, left: CompareError) -> CompareError {
        let CompareError::Left { why } = left else { return left };
        // These say that all was put back.
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
        let told = gone.and_left(left()).to_string();
        assert_eq!(
            told,
            "not everything was put back (eth0 is gone; eth0: refused): napkin diff says what, napkin restore tries \
             again"
        );
        let ended = CompareError::ServiceEnded { service: "memcached[812]".into() };
        let told = ended.and_left(left()).to_string();
        assert!(told.contains("(memcached[812] has ended; eth0: refused)"), "{told}");
        let usage = CompareError::Usage("it makes no sense".into());
        let told = usage.and_left(left()).to_string();
        assert!(told.contains("(it makes no sense; eth0: refused)"), "{told}");
    }
}
