//! What can go wrong with another process.

use napkin_os::sched::SchedError;
use rustix::io::Errno;
use thiserror::Error;

use napkin_os::rights::Right;

/// Why a process could not be looked at.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is none, or not any more.
    #[error("there is no process {pid}, or not any more")]
    Gone {
        /// Process ID, as this PID namespace has it.
        pid: i32,
    },
    /// The id is that of one of its threads.
    #[error("{tid} is a thread of process {pid}: give the process's id, {pid}")]
    Thread {
        /// What was given.
        tid: i32,
        /// Process ID, as this PID namespace has it.
        pid: i32,
    },
    /// It is another user's, or protects itself.
    #[error("process {pid} ({comm}): {what} was refused: run as root, or with {right}")]
    Denied {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// Its name in `/proc/PID/comm`: the kernel keeps 15 bytes.
        comm: String,
        /// What was tried.
        what: &'static str,
        /// What is missing.
        right: Right,
    },
    /// The kernel has no such call.
    #[error("this kernel cannot do this: {what} needs Linux {since}")]
    Unsupported {
        /// What was tried, as part of the sentence.
        what: &'static str,
        /// From which version on.
        since: &'static str,
    },
    /// A thread cannot have a CPU.
    #[error("process {pid}: {source}")]
    Placement {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// What the scheduler's system call was refused for.
        source: SchedError,
    },
    /// A change could not be written down, so it was not made.
    #[error("process {pid}: nothing more is set, as it cannot be written down: {reason}")]
    Unwritten {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// The reason, in words.
        reason: String,
    },
    /// This process has no descriptor left for it.
    #[error("process {pid}: {what} failed: {}", crate::open_files::advice())]
    NoDescriptor {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// What was tried.
        what: &'static str,
    },
    /// A system call failed for another reason.
    #[error("process {pid}: {what} failed: {source}")]
    System {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: Errno,
    },
}

impl ProcessError {
    /// Whether the process has ended, which is nobody's fault.
    pub const fn is_gone(&self) -> bool {
        matches!(self, ProcessError::Gone { .. })
    }
}
