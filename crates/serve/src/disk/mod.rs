//! A file or block device as an NBD export's store: io_uring, so that no thread of the application
//! waits for a disk.

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

/// Why a file or device cannot be served.
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
        /// The file or device as it was given.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A directory, a pipe, a terminal.
    #[error("{} is neither a file nor a block device", .0.display())]
    Kind(PathBuf),
    /// There is nothing to serve.
    #[error("{path} is empty: give it a size: truncate -s 1G {path}", path = .0.display())]
    Empty(PathBuf),
    /// Another server has it.
    #[error("{} is in use: another program has locked it (lsof shows which)", .0.display())]
    Locked(PathBuf),
    /// No ring is to be had.
    #[error(
        "cannot use io_uring, which --file needs: {0}; allow it (sysctl kernel.io_uring_disabled=0, or \
         io_uring_setup in the container's seccomp profile), or serve memory with --size"
    )]
    Ring(io::Error),
}

/// How long somebody may take to let a file go: the kernel gives back what a ring of a killed server held
/// some time after the process has ended.
const LET_GO: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A file or block device that is served, locked for as long: against writers, and if it is written,
/// against everybody.
#[derive(Debug, Clone)]
pub struct Disk {
    file: Arc<File>,
    size: u64,
    /// A flush of any of its handles has failed.
    lost: Arc<AtomicBool>,
    warning: Option<String>,
}

impl Disk {
    /// Opens it. Its size is the export's from then on.
    ///
    /// # Errors
    /// What it is, or who has it.
    pub fn open(path: &Path, read_only: bool) -> Result<Disk, DiskError> {
        let failed = |source| DiskError::Open { path: path.to_owned(), source };
        // Before it is opened, for that may wait (a pipe) or do something (a terminal).
        let kind = path.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::Kind(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only);
        if kind.is_block_device() && !read_only {
            // Refused while it is mounted, or part of another device.
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
                Errno::WOULDBLOCK if begun.elapsed() < LET_GO => thread::sleep(LOOK_AGAIN),
                Errno::WOULDBLOCK => return Err(DiskError::Locked(path.to_owned())),
                error => return Err(failed(error.into())),
            }
        }
        // Of a block device, too.
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        match size {
            0 => Err(DiskError::Empty(path.to_owned())),
            _ => {
                let warning = warning(path, read_only);
                Ok(Disk { file: Arc::new(file), size, lost: Arc::default(), warning })
            }
        }
    }

    /// What its user should know before he relies on it, in a sentence.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// A handle for one thread. All see one file: the operating system's cache is theirs together, and
    /// a flush of one covers what any has written. Where one has failed all later ones do, for the operating
    /// system tells of what it could not write once, and drops it.
    ///
    /// # Errors
    /// If this kernel, or whoever confines this process, does not permit io_uring.
    pub fn handle(&self) -> Result<FileStore, DiskError> {
        let lost = Arc::clone(&self.lost);
        FileStore::new(Arc::clone(&self.file), self.size, lost).map_err(DiskError::Ring)
    }
}

/// That others have a device open, for no lock keeps them from writing.
fn warning(path: &Path, read_only: bool) -> Option<String> {
    let others = holders::holders(path);
    let harm = match read_only {
        true => "what they write there, clients may read half",
        false => "what they write there and what clients write may damage each other",
    };
    (!others.is_empty())
        .then(|| format!("{} is open in {} too: {harm}", path.display(), others.join(", ")))
}
