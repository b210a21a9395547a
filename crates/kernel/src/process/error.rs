//! Errors of reading or changing another process.

use napkin_os::sched::SchedError;
use rustix::io::Errno;
use thiserror::Error;

use napkin_os::rights::Right;

/// The reason why a process could not be read or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such process, or it has ended.
    #[error("there is no process {pid}, or not any more")]
    Gone {
        /// The process id in this PID namespace.
        pid: i32,
    },
    /// The id belongs to a thread.
    #[error("{tid} is a thread of process {pid}: give the process's id, {pid}")]
    Thread {
        /// The id that was given.
        tid: i32,
        /// The id of the thread's process in this PID namespace.
        pid: i32,
    },
    /// The process belongs to another user, or is not dumpable.
    #[error("process {pid} ({comm}): {what} was refused: run as root, or with {right}")]
    Denied {
        /// The process id in this PID namespace.
        pid: i32,
        /// Its name in `/proc/PID/comm`, of at most 15 bytes.
        comm: String,
        /// The operation that was refused.
        what: &'static str,
        /// The missing capability.
        right: Right,
    },
    /// The kernel lacks the system call.
    #[error("this kernel cannot do this: {what} needs Linux {since}")]
    Unsupported {
        /// The operation, as part of the sentence.
        what: &'static str,
        /// The first version of Linux that has it.
        since: &'static str,
    },
    /// A thread cannot be moved to a CPU.
    #[error("process {pid}: {source}")]
    Placement {
        /// The process id in this PID namespace.
        pid: i32,
        /// The scheduler's error.
        source: SchedError,
    },
    /// A change could not be recorded, so it was not made.
    #[error("process {pid}: nothing more is set, as it cannot be written down: {reason}")]
    Unwritten {
        /// The process id in this PID namespace.
        pid: i32,
        /// The reason as text.
        reason: String,
    },
    /// This process has no descriptor left.
    #[error("process {pid}: {what} failed: {}", crate::open_files::advice())]
    NoDescriptor {
        /// The process id in this PID namespace.
        pid: i32,
        /// The operation that failed.
        what: &'static str,
    },
    /// A system call failed for another reason.
    #[error("process {pid}: {what} failed: {source}")]
    System {
        /// The process id in this PID namespace.
        pid: i32,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        source: Errno,
    },
}

impl ProcessError {
    /// Whether the process has ended, which is no failure.
    pub const fn is_gone(&self) -> bool {
        matches!(self, ProcessError::Gone { .. })
    }
}
