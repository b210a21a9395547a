//! A file or block device as the store of an NBD export, through io_uring, so that no thread of the application
//! blocks on a disk.

mod holders;
mod ring;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

pub use ring::FileStore;

/// An error of a file or device that is to be served.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It could not be opened.
    #[error(
        "cannot open {}: {source}{}", path.display(),
        match source.kind() {
            io::ErrorKind::NotFound => format!("; make one: truncate -s 1G {}", path.display()),
            io::ErrorKind::ResourceBusy =>
                "; it is mounted, or another program has it (lsblk and lsof show which); --read-only \
                 reads it beside them".to_owned(),
            _ => String::new(),
        }
    )]
    Open {
        /// The file or device as given.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// It is neither a file nor a block device, but a directory, a pipe or a terminal, say.
    #[error("{} is neither a file nor a block device", .0.display())]
    Kind(PathBuf),
    /// Its size is 0.
    #[error("{path} is empty: give it a size: truncate -s 1G {path}", path = .0.display())]
    Empty(PathBuf),
    /// Another program has locked it.
    #[error("{} is in use: another program has locked it (lsof shows which)", .0.display())]
    Locked(PathBuf),
    /// io_uring is not available.
    #[error(
        "cannot use io_uring, which --file needs: {0}; allow it (sysctl kernel.io_uring_disabled=0, or \
         io_uring_setup in the container's seccomp profile), or serve memory with --size"
    )]
    Ring(io::Error),
}

/// How long to wait for a lock: after a server was killed, the kernel releases what its ring held some time after
/// the process has ended.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// An open file or block device, locked while it is served: shared if it is only read, else exclusively.
#[derive(Debug, Clone)]
pub struct Disk {
    file: Arc<File>,
    size: u64,
    /// Whether a flush through any of its handles has failed.
    flush_failed: Arc<AtomicBool>,
    warning: Option<String>,
}

impl Disk {
    /// Opens and locks it. The export keeps the size that it has now.
    ///
    /// # Errors
    /// [`DiskError`]: it is unsuitable, unavailable or locked.
    pub fn open(path: &Path, read_only: bool) -> Result<Disk, DiskError> {
        let failed = |source| DiskError::Open { path: path.to_owned(), source };
        // Checked before opening, because opening may block (a pipe) or have side effects (a terminal).
        let kind = path.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::Kind(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only);
        if kind.is_block_device() && !read_only {
            // Fails while it is mounted or part of another device.
            options.custom_flags(libc::O_EXCL);
        }
        let mut file = options.open(path).map_err(failed)?;
        let lock = match read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let begun = Instant::now();
        while let Err(error) = flock(&file, lock) {
            match error {
                Errno::WOULDBLOCK if begun.elapsed() < LOCK_TIMEOUT => thread::sleep(LOCK_RETRY),
                Errno::WOULDBLOCK => return Err(DiskError::Locked(path.to_owned())),
                error => return Err(failed(error.into())),
            }
        }
        // Works for block devices as well.
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        match size {
            0 => Err(DiskError::Empty(path.to_owned())),
            _ => {
                let warning = warning(path, read_only);
                Ok(Disk { file: Arc::new(file), size, flush_failed: Arc::default(), warning })
            }
        }
    }

    /// A warning for the user, in a sentence.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Creates a handle for one thread. All handles share the file and the operating system's page cache, and a
    /// flush of one covers the writes of all. After one flush has failed, all later ones fail, because the kernel
    /// reports a write-back error only once and then drops the data.
    ///
    /// # Errors
    /// If the kernel or a sandbox (seccomp) does not permit io_uring.
    pub fn handle(&self) -> Result<FileStore, DiskError> {
        let flush_failed = Arc::clone(&self.flush_failed);
        FileStore::new(Arc::clone(&self.file), self.size, flush_failed).map_err(DiskError::Ring)
    }
}

/// Warns of other processes that have the device open, because no lock keeps them from writing.
fn warning(path: &Path, read_only: bool) -> Option<String> {
    let others = holders::holders(path);
    let harm = match read_only {
        true => "what they write there, clients may read half",
        false => "what they write there and what clients write may damage each other",
    };
    (!others.is_empty())
        .then(|| format!("{} is open in {} too: {harm}", path.display(), others.join(", ")))
}
