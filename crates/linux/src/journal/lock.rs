//! Locks that let one napkin at a time change a device or a process.
//!
//! The lock is the operating system's (`flock`), so it ends with its holder in any case; the contents of the
//! lock file only describe the holder.

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

/// The maximum number of attempts: the lock file may be removed after it was opened.
const MAX_ATTEMPTS: u32 = 16;

/// The maximum number of retries for a lock that is held.
const MAX_RETRIES: u32 = 3;

/// A lock; dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Whether the journal itself is locked, because no lock file could be created.
    journal: bool,
    // Holds the lock for as long as it is open.
    file: File,
}

impl Lock {
    /// Takes the lock with the lock file `path`; `what` is its name in an error.
    pub(super) fn take(path: &Path, what: &str) -> Result<Lock, JournalError> {
        if let Some(directory) = path.parent() {
            log::prepare(directory)?;
        }
        Lock::of(path, what, || make(path), false)
    }

    /// Locks a journal to put back its changes. If no lock file can be created, because the file system is
    /// read-only or full, this locks the journal itself: no process that wants to make changes gets a lock
    /// then, and a second restore has to wait.
    pub(super) fn of_journal(journal: &Path, what: &str) -> Result<Lock, JournalError> {
        let path = journal.with_extension("lock");
        match Lock::take(&path, what) {
            Err(JournalError::Io { source, .. }) if is_full(&source) => {}
            taken => return taken,
        }
        let open = |path: &Path| log::options().read(true).open(path);
        // Another napkin may hold a lock file that was created before.
        let made_before = || match Lock::of(&path, what, || open(&path), false) {
            Err(JournalError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(None)
            }
            taken => taken.map(Some),
        };
        if let Some(lock) = made_before()? {
            return Ok(lock);
        }
        let lock = Lock::of(journal, what, || open(journal), true)?;
        // Or one that was created meanwhile. From here on [`Lock::of`] refuses a lock file while the journal is
        // locked.
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
        for attempt in 0..MAX_ATTEMPTS {
            let mut file = open().map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // It may be held for a moment only, by a process that checks for a holder.
                Err(Errno::WOULDBLOCK) if attempt < MAX_RETRIES => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    let holder = if journal { Holder::default() } else { Holder::read(&mut file) };
                    return Err(JournalError::Locked { what: what.to_owned(), holder });
                }
                Err(errno) => return Err(failed(errno.into())),
            }
            // The last holder may have removed the file between our opening and our locking it.
            let own = file.metadata().map_err(failed)?;
            match fs::symlink_metadata(path) {
                Ok(on_disk) if (on_disk.dev(), on_disk.ino()) == (own.dev(), own.ino()) => {}
                _ => continue,
            }
            if !journal && is_locked(&path.with_extension("journal")) {
                // By a restore that could not create a lock file.
                return Err(JournalError::Locked {
                    what: what.to_owned(),
                    holder: Holder::default(),
                });
            }
            if !journal {
                let text = serde_json::to_vec(&Holder::here()).unwrap_or_default();
                // On a full disk the holder is not recorded; the lock holds all the same.
                let emptied = fault::space().and_then(|()| file.set_len(0));
                let _ = emptied.and_then(|()| file.write_all(&text));
            }
            return Ok(Lock { path: path.to_owned(), journal, file });
        }
        Err(JournalError::Locked { what: what.to_owned(), holder: Holder::default() })
    }
}

/// Opens a lock file, and creates it if it does not exist.
fn make(path: &Path) -> io::Result<File> {
    fault::inode()?;
    log::options().read(true).write(true).create(true).open(path)
}

/// Whether a journal is locked in place of a lock file.
fn is_locked(journal: &Path) -> bool {
    let look = |file| flock(&file, FlockOperation::NonBlockingLockShared);
    let opened = log::options().read(true).open(journal);
    opened.is_ok_and(|file: File| look(file) == Err(Errno::WOULDBLOCK))
}

/// Whether the error means that no file can be created.
fn is_full(error: &io::Error) -> bool {
    use ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), ReadOnlyFilesystem | StorageFull | QuotaExceeded)
}

/// Returns the holder of the lock with the lock file `path`; `None` if there is none, or the file is not
/// accessible.
pub(super) fn holder(path: &Path) -> Option<Holder> {
    let mut file = log::options().read(true).open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Some(Holder::read(&mut file)),
        _ => None,
    }
}

impl Lock {
    /// Checks that enough descriptors are left for the other files to be opened.
    pub(super) fn leaves_room(&self) -> Result<(), JournalError> {
        open_files::leaves_room(&self.file)
            .map_err(|errno| JournalError::io("lock", &self.path, errno.into()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is still held, so the file is not another holder's. A file that is left behind is harmless.
        if !self.journal {
            let _ = fs::remove_file(&self.path);
        }
    }
}
