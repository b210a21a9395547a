//! The limit of open files of this process (`RLIMIT_NOFILE`).
//!
//! Each process under a policy takes two descriptors of this one for as long as it lives: its pidfd and the lock of
//! its journal. Most systems start programs with a soft limit of 1,024, for the sake of programs that use `select`,
//! and a far higher hard limit, to which every process may raise it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are kept free, so that settings can be restored when all others are in use.
const RESERVE: u64 = 16;

/// The limit of open files from before this process raised it.
#[derive(Debug, Clone)]
pub struct OpenFiles {
    before: Rlimit,
}

impl OpenFiles {
    /// Raises this process's soft limit to its hard limit. If the system refuses, the limit stays as it was;
    /// operations that need more descriptors report it.
    pub fn raise() -> OpenFiles {
        let before = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
        OpenFiles { before }
    }

    /// Makes a command's program start with the former limit: a program that uses `select` may break with a higher one.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || setrlimit(Resource::Nofile, before).map_err(io::Error::from);
        // SAFETY: between fork and exec, the closure makes one async-signal-safe system call and does not allocate.
        unsafe { command.pre_exec(restore) };
    }
}

/// Checks that enough descriptors are left after one was opened. The kernel assigns the lowest free number, so the
/// number tells how many are in use.
///
/// # Errors
/// `EMFILE`, as if the descriptor could not be opened.
pub fn leaves_room(opened: impl AsFd) -> Result<(), Errno> {
    has_room(u64::try_from(opened.as_fd().as_raw_fd()).unwrap_or(0))
}

/// Checks that enough descriptors are left when all up to a number are in use.
///
/// # Errors
/// As [`leaves_room`].
pub fn has_room(number: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if number.saturating_add(RESERVE) >= limit => Err(Errno::MFILE),
        _ => Ok(()),
    }
}

/// Whether an error means a lack of resources in this process or the system, not a fault of the request.
pub fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Returns advice about `EMFILE`, as the end of a sentence.
pub fn advice() -> String {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(|| "an unknown number of".into(), |limit| limit.to_string());
    format!(
        "this napkin may open {limit} files, and each process takes two: raise the limit (ulimit -n, \
         or LimitNOFILE= of its service)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_goes_up_to_the_hard_one_and_a_program_starts_with_the_one_before() {
        let before = getrlimit(Resource::Nofile);
        let files = OpenFiles::raise();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, before.maximum);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn"]);
        let lower = Rlimit { current: Some(64), ..now };
        OpenFiles { before: lower }.restore_in(&mut command);
        let output = command.output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "64");
        assert_eq!(files.before.current, before.current);
    }
}
