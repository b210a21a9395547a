//! One napkin at a time on a device.
//!
//! The lock is the operating system's (`flock`), so it ends with its holder, however that ends; the
//! file behind it only says who holds it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::JournalError;
use super::holder::Holder;
use super::{fault, log};
use napkin_kernel::open_files;

/// How often a lock file that was removed under us is opened again.
const TRIES: u32 = 16;

/// How often a lock that is held is tried again.
const LOOKS: u32 = 3;

/// A lock that is held; dropping it gives it up.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Whether what is locked is a journal, in place of a lock file that could not be made.
    journal: bool,
    // Held by the open file, so it must stay open.
    file: File,
}

impl Lock {
    /// Takes the lock behind `path`; `what` is its name in an error.
    pub(super) fn take(path: &Path, what: &str) -> Result<Lock, JournalError> {
        if let Some(directory) = path.parent() {
            log::prepare(directory)?;
        }
        Lock::of(path, what, || make(path), false)
    }

    /// Takes the lock of a journal to put back what is in it. Where no lock file can be made, on a file system that is
    /// read-only or full, it is the journal itself that is locked: nobody who would change something gets a lock then,
    /// and of two who put back one waits.
    pub(super) fn of_journal(journal: &Path, what: &str) -> Result<Lock, JournalError> {
        let path = journal.with_extension("lock");
        match Lock::take(&path, what) {
            Err(JournalError::Io { source, .. }) if is_full(&source) => {}
            taken => return taken,
        }
        let there = |path: &Path| log::options().read(true).open(path);
        // Somebody may hold one that was made before.
        let made_before = || match Lock::of(&path, what, || there(&path), false) {
            Err(JournalError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(None)
            }
            taken => taken.map(Some),
        };
        if let Some(lock) = made_before()? {
            return Ok(lock);
        }
        let lock = Lock::of(journal, what, || there(journal), true)?;
        // Or one that could be made meanwhile: from now on nobody gets one.
        made_before()?;
        Ok(lock)
    }

    fn of(
        path: &Path,
        what: &str,
        open: impl Fn() -> io::Result<File>,
        journal: bool,
    ) -> Result<Lock, JournalError> {
        let failed = |error: io::Error| JournalError::io("lock", path, error);
        for attempt in 0..TRIES {
            let mut file = open().map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Perhaps by somebody who only looks whether it is, for a moment.
                Err(Errno::WOULDBLOCK) if attempt < LOOKS => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    let holder = if journal { Holder::default() } else { Holder::read(&mut file) };
                    return Err(JournalError::Locked { what: what.to_owned(), holder });
                }
                Err(errno) => return Err(failed(errno.into())),
            }
            // Its last holder may have removed it between our opening and our locking it.
            let ours = file.metadata().map_err(failed)?;
            match fs::symlink_metadata(path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {}
                _ => continue,
            }
            if !journal && is_locked(&path.with_extension("journal")) {
                // By who puts back, and could make no lock file.
                return Err(JournalError::Locked {
                    what: what.to_owned(),
                    holder: Holder::default(),
                });
            }
            if !journal {
                let text = serde_json::to_vec(&Holder::here()).unwrap_or_default();
                // It is locked without a word as well, where there is no room for one.
                let told = fault::space().and_then(|()| file.set_len(0));
                let _ = told.and_then(|()| file.write_all(&text));
            }
            return Ok(Lock { path: path.to_owned(), journal, file });
        }
        Err(JournalError::Locked { what: what.to_owned(), holder: Holder::default() })
    }
}

/// Opens a lock file, which is made where there is none.
fn make(path: &Path) -> io::Result<File> {
    fault::inode()?;
    log::options().read(true).write(true).create(true).open(path)
}

/// Whether a journal is locked in place of a lock file.
fn is_locked(journal: &Path) -> bool {
    let look = |file| flock(&file, FlockOperation::NonBlockingLockShared);
    let there = log::options().read(true).open(journal);
    there.is_ok_and(|file: File| look(file) == Err(Errno::WOULDBLOCK))
}

/// Whether no file can be made where this is met.
fn is_full(error: &io::Error) -> bool {
    use ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), ReadOnlyFilesystem | StorageFull | QuotaExceeded)
}

/// Who holds the lock behind `path`; `None` if nobody does, or it may not be looked at.
pub(super) fn holder(path: &Path) -> Option<Holder> {
    let mut file = log::options().read(true).open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Some(Holder::read(&mut file)),
        _ => None,
    }
}

impl Lock {
    /// Whether enough descriptors are left for what else is to be opened.
    pub(super) fn leaves_room(&self) -> Result<(), JournalError> {
        open_files::leaves_room(&self.file)
            .map_err(|errno| JournalError::io("lock", &self.path, errno.into()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Held still, so nobody else's is removed. One that stays is no harm: it is not locked.
        if !self.journal {
            let _ = fs::remove_file(&self.path);
        }
    }
}
