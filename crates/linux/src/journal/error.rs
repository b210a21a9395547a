//! Errors of the journal.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use super::holder::Holder;
use napkin_kernel::namespace::NamespaceError;

/// A failure to read, write or lock a journal.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// No directory is configured.
    #[error(
        "there is no directory for the journal: you are not root and XDG_RUNTIME_DIR is not set; \
         set NAPKIN_STATE to a directory of your own"
    )]
    NoDirectory,
    /// The boot or the namespace cannot be determined.
    #[error("a journal belongs to one boot and one network namespace: {0}")]
    Here(#[source] NamespaceError),
    /// Other users could write to the directory.
    #[error(
        "{} is no safe place for a journal: {why}; make it yours alone (chmod 700), or set \
         NAPKIN_STATE to another directory", path.display()
    )]
    Unsafe {
        /// The directory of the journals.
        path: PathBuf,
        /// The reason why it is not safe.
        why: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The process has no file descriptor left.
    #[error("cannot {what} {}: {}", path.display(), napkin_kernel::open_files::advice())]
    NoDescriptor {
        /// The attempted operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
    },
    /// A complete line cannot be parsed.
    #[error(
        "line {line} of {} cannot be read ({why}); nothing was changed: fix that line, or give \
         the file up with `napkin restore --forget`", path.display()
    )]
    Corrupt {
        /// The journal's file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// The file is larger than any journal.
    #[error(
        "{} has more than {limit} bytes, which no journal has; look at it, or give it up with \
         `napkin restore --forget`", path.display()
    )]
    TooLarge {
        /// The journal's file.
        path: PathBuf,
        /// The limit, bytes.
        limit: u64,
    },
    /// Another line would exceed the size that can be read back.
    #[error("{} is full: it has no room for more than {limit} bytes", path.display())]
    Full {
        /// The journal's file.
        path: PathBuf,
        /// The limit, bytes.
        limit: u64,
    },
    /// Another napkin holds the lock.
    #[error("{what} is held by {holder}; wait for it, or end it (it puts back what it changed)")]
    Locked {
        /// The device's name, or the process.
        what: String,
        /// The holder of the lock.
        holder: Holder,
    },
}

impl JournalError {
    pub(super) fn io(what: &'static str, path: &Path, source: io::Error) -> JournalError {
        if source.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
            return JournalError::NoDescriptor { what, path: path.to_owned() };
        }
        JournalError::Io { what, path: path.to_owned(), source }
    }
}
