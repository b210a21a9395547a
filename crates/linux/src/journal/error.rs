//! What can go wrong with a journal.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use super::holder::Holder;
use napkin_kernel::namespace::NamespaceError;

/// Why a journal could not be read, written or had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// There is no place for it.
    #[error(
        "there is no directory for the journal: you are not root and XDG_RUNTIME_DIR is not set; \
         set NAPKIN_STATE to a directory of your own"
    )]
    NoDirectory,
    /// Which boot and which namespace this is cannot be told.
    #[error("a journal belongs to one boot and one network namespace: {0}")]
    Here(#[source] NamespaceError),
    /// Somebody else could write into it.
    #[error(
        "{} is no safe place for a journal: {why}; make it yours alone (chmod 700), or set \
         NAPKIN_STATE to another directory", path.display()
    )]
    Unsafe {
        /// The directory of the journals.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// This process has no descriptor left for it.
    #[error("cannot {what} {}: {}", path.display(), napkin_kernel::open_files::advice())]
    NoDescriptor {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
    },
    /// A line that was written completely cannot be read.
    #[error(
        "line {line} of {} cannot be read ({why}); nothing was changed: fix that line, or give \
         the file up with `napkin restore --forget`", path.display()
    )]
    Corrupt {
        /// The journal's file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// More than any journal has.
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
    /// Another line would make it longer than is read again.
    #[error("{} is full: it has no room for more than {limit} bytes", path.display())]
    Full {
        /// The journal's file.
        path: PathBuf,
        /// The limit, bytes.
        limit: u64,
    },
    /// Another napkin is at it.
    #[error("{what} is held by {holder}; wait for it, or end it (it puts back what it changed)")]
    Locked {
        /// The device's name, or the process.
        what: String,
        /// Who has it.
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
