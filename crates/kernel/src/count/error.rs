//! Errors of counting in the kernel.

use std::io;

use napkin_bpf::assemble::AssembleError;
use napkin_os::rights::Right;
use thiserror::Error;

use super::btf::BtfError;

/// The reason why nothing can be counted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CountError {
    /// A capability is missing.
    #[error("counting polls needs {right}: run as root, or give it to the program (setcap)")]
    Right {
        /// The missing right.
        right: Right,
    },
    /// The kernel refuses although the process has the capability.
    #[error(
        "the kernel forbids {what} although this process has CAP_BPF and CAP_PERFMON: counting \
         does not work in a user namespace, nor with kernel lockdown"
    )]
    Forbidden {
        /// The operation that was refused.
        what: &'static str,
    },
    /// The kernel exports no usable BTF.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The kernel has no type, function or member of that name.
    #[error("this kernel has no `{0}`, without which polls cannot be counted")]
    Absent(String),
    /// The kernel's verifier refused a program.
    #[error("the kernel refused the program `{program}` ({error}){}", with_log(.log))]
    Refused {
        /// The program, by its name here.
        program: &'static str,
        /// The operating system's error.
        error: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// A table cannot be created or read.
    #[error("cannot {what} ({error})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// A program cannot be assembled: a bug in this crate.
    #[error("the program `{program}` cannot be assembled: {error}")]
    Assemble {
        /// The program, by its name here.
        program: &'static str,
        /// The assembler's error.
        error: AssembleError,
    },
}

fn with_log(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(": {log}") }
}

/// Checks that this process has the capabilities for counting.
///
/// # Errors
/// [`CountError::Right`], with the missing capability.
pub(super) fn may_count() -> Result<(), CountError> {
    let missing = [Right::Bpf, Right::Perfmon].into_iter().find(|right| !right.held());
    missing.map_or(Ok(()), |right| Err(CountError::Right { right }))
}

pub(super) fn table_error(error: io::Error) -> CountError {
    denied(&error, "making a table")
        .unwrap_or(CountError::System { what: "make a table in the kernel", error })
}

pub(super) fn read_error(error: io::Error) -> CountError {
    CountError::System { what: "read the counts from the kernel", error }
}

pub(super) fn denied(error: &io::Error, what: &'static str) -> Option<CountError> {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        .then_some(CountError::Forbidden { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_right_or_what_the_kernel_lacks() {
        let text = CountError::Right { right: Right::Perfmon }.to_string();
        assert!(text.contains("CAP_PERFMON"), "{text}");
        let text = CountError::Absent("napi_struct.thread".into()).to_string();
        assert!(text.contains("`napi_struct.thread`"), "{text}");
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let text = table_error(error).to_string();
        assert!(text.contains("user namespace"), "{text}");
    }
}
