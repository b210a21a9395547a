//! A file of JSON lines that is appended to; each line is on the disk before the change that it records is
//! made.
//!
//! The first line identifies the file ([`Header`]). An incomplete last line was being written when its writer
//! died: its change was not made, and it is cut off before the next line is written. A complete line that
//! cannot be parsed is an error, and the file stays as it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::JournalError;
use super::fault;
use napkin_kernel::namespace::Identity;

/// The maximum size of a file, in bytes. Enough for the maximum number of changes of one process (65,536, each
/// recorded twice before the file is compacted), and for thousands of times the changes of a device with 64
/// queues.
const MAX_SIZE: u64 = 64 << 20;

/// The format version of the files.
const FORMAT: u32 = 1;

/// Identifies the changes in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Header {
    format: u32,
    /// The boot in which they were made, and with which they end.
    pub boot_id: String,
    /// The network namespace in which the first change was made.
    pub namespace: Identity,
    /// The device or the process that was changed.
    pub subject: Subject,
    /// The inode of the PID namespace in which a process's ids are valid; absent for a device, and in files of
    /// older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}

/// The object that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A network device, in whichever namespace.
    #[serde(rename_all = "kebab-case")]
    Device {
        /// Its interface index.
        ifindex: u32,
        /// Its name at the time.
        ifname: String,
        /// The inode of its directory in sysfs; absent in files of older versions, and where it was not
        /// visible.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<u64>,
    },
    /// A process, and with it its descriptors and threads.
    #[serde(rename_all = "kebab-case")]
    Process {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// Start time in clock ticks since boot, which distinguishes it from later processes with the same id.
        start_time: u64,
    },
}

impl Header {
    pub(super) fn new(boot_id: &str, namespace: Identity, subject: Subject) -> Header {
        let pid_namespace = match &subject {
            Subject::Process { .. } => pid_namespace(),
            Subject::Device { .. } => None,
        };
        Header { format: FORMAT, boot_id: boot_id.to_owned(), namespace, subject, pid_namespace }
    }

    /// Whether it is known to belong to another PID namespace than this process.
    pub(super) fn is_of_other_pid_namespace(&self) -> bool {
        let other = |recorded: u64| pid_namespace().is_some_and(|own| own != recorded);
        self.pid_namespace.is_some_and(other)
    }
}

/// The inode of this process's PID namespace.
fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}

/// A file and its lines.
#[derive(Debug)]
pub(super) struct Log<E> {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) entries: Vec<E>,
    /// The size of the complete lines, in bytes; 0: there is no file, or no complete line.
    complete: u64,
    file: Option<File>,
}

impl<E: Serialize + DeserializeOwned> Log<E> {
    /// Creates the log of a file that does not exist yet.
    pub(super) fn new(path: PathBuf, header: Header) -> Log<E> {
        Log { path, header, entries: Vec::new(), complete: 0, file: None }
    }

    /// Reads a file; `None` if there is none, or its first line is incomplete: no change was made then.
    pub(super) fn read(path: &Path) -> Result<Option<Log<E>>, JournalError> {
        let Some(bytes) = content(path)? else { return Ok(None) };
        let complete = complete(&bytes);
        let corrupt = |place: usize, why: String| JournalError::Corrupt {
            path: path.to_owned(),
            line: place + 1,
            why,
        };
        let mut lines = lines(&bytes[..complete]);
        let Some(first) = lines.next() else { return Ok(None) };
        let header = header(first).map_err(|why| corrupt(0, why))?;
        let mut entries = Vec::new();
        for (place, line) in lines.enumerate() {
            let entry = serde_json::from_slice(line)
                .map_err(|error| corrupt(place + 1, error.to_string()))?;
            entries.push(entry);
        }
        let complete = complete as u64;
        Ok(Some(Log { path: path.to_owned(), header, entries, complete, file: None }))
    }

    /// Appends a line, and returns when it is on the disk. Refuses to exceed the size that can be read back.
    pub(super) fn append(&mut self, entry: E) -> Result<(), JournalError> {
        fault::point();
        let line = line(&entry, &self.path)?;
        if self.complete.saturating_add(line.len() as u64) > MAX_SIZE {
            return Err(JournalError::Full { path: self.path.clone(), limit: MAX_SIZE });
        }
        if self.file.is_none() {
            self.open()?;
        }
        self.write(&line)?;
        self.entries.push(entry);
        fault::point();
        Ok(())
    }

    /// Replaces all lines atomically.
    pub(super) fn rewrite(&mut self, entries: Vec<E>) -> Result<(), JournalError> {
        fault::point();
        let mut bytes = line(&self.header, &self.path)?;
        for entry in &entries {
            bytes.append(&mut line(entry, &self.path)?);
        }
        let new = self.path.with_extension("new");
        let written = create(&new, true).and_then(|mut file| {
            fault::space()?;
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written.map_err(|error| {
            // A partial file is useless, and takes space that may be scarce.
            let _ = fs::remove_file(&new);
            JournalError::io("write", &new, error)
        })?;
        fs::rename(&new, &self.path)
            .map_err(|error| JournalError::io("replace", &self.path, error))?;
        // The open file is the replaced one.
        self.file = None;
        self.complete = bytes.len() as u64;
        self.entries = entries;
        sync_directory(&self.path)?;
        fault::point();
        Ok(())
    }

    /// Closes the file until the next line is written.
    pub(super) fn release(&mut self) {
        self.file = None;
    }

    /// Removes the file, if there is one.
    pub(super) fn remove(self) -> Result<(), JournalError> {
        remove(&self.path)
    }

    fn open(&mut self) -> Result<(), JournalError> {
        let failed = |error| JournalError::io("open", &self.path, error);
        if self.complete > 0 {
            let file = options().append(true).open(&self.path).map_err(failed)?;
            file.set_len(self.complete).map_err(failed)?;
            self.file = Some(file);
            return Ok(());
        }
        if let Some(directory) = self.path.parent() {
            prepare(directory)?;
        }
        let file = create(&self.path, false).map_err(failed)?;
        self.file = Some(file);
        self.write(&line(&self.header, &self.path)?)?;
        sync_directory(&self.path)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let written =
            fault::space().and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // A part of the line may have been written. If it cannot be cut off now, the next reader does so,
            // as the line is incomplete.
            let _ = file.set_len(self.complete);
            self.file = None;
            return Err(JournalError::io("write", &self.path, error));
        }
        self.complete += bytes.len() as u64;
        Ok(())
    }
}

/// Returns the header of a file; `None` as [`Log::read`].
pub(super) fn peek(path: &Path) -> Result<Option<Header>, JournalError> {
    let Some(bytes) = content(path)? else { return Ok(None) };
    let Some(first) = lines(&bytes[..complete(&bytes)]).next() else { return Ok(None) };
    let corrupt = |why| JournalError::Corrupt { path: path.to_owned(), line: 1, why };
    header(first).map(Some).map_err(corrupt)
}

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), JournalError> {
    fault::point();
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(JournalError::io("remove", path, error)),
    }
    fault::point();
    Ok(())
}

/// Creates the directory of the journals, or checks that no other user can write to it.
pub(super) fn prepare(directory: &Path) -> Result<(), JournalError> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return sync_directory(directory),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(JournalError::io("make", directory, error)),
    }
    let metadata = fs::symlink_metadata(directory)
        .map_err(|error| JournalError::io("look at", directory, error))?;
    let wrong = |why| JournalError::Unsafe { path: directory.to_owned(), why };
    if !metadata.is_dir() {
        return Err(wrong("it is no directory"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(wrong("it is another user's"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(wrong("others may write into it"));
    }
    Ok(())
}

/// Options that do not follow a symbolic link.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW).mode(0o600);
    options
}

fn create(path: &Path, anew: bool) -> io::Result<File> {
    // An existing file has no complete line, or is an unfinished rewrite.
    let file = options().append(!anew).write(true).create(true).open(path)?;
    file.set_len(0)?;
    Ok(file)
}

fn content(path: &Path) -> Result<Option<Vec<u8>>, JournalError> {
    let failed = |error| JournalError::io("read", path, error);
    // Non-blocking, in case the path is a pipe.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(JournalError::TooLarge { path: path.to_owned(), limit: MAX_SIZE });
    }
    Ok(Some(bytes))
}

/// Returns the number of bytes that are complete lines.
fn complete(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

fn lines(complete: &[u8]) -> impl Iterator<Item = &[u8]> {
    complete.split_inclusive(|byte| *byte == b'\n').map(|line| &line[..line.len() - 1])
}

fn header(line: &[u8]) -> Result<Header, String> {
    let header: Header = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match header.format {
        FORMAT => Ok(header),
        other => Err(format!("format {other} is another napkin's, this one reads {FORMAT}")),
    }
}

fn line(what: &impl Serialize, path: &Path) -> Result<Vec<u8>, JournalError> {
    let mut line = serde_json::to_vec(what)
        .map_err(|error| JournalError::io("write", path, io::Error::other(error)))?;
    line.push(b'\n');
    Ok(line)
}

fn sync_directory(of: &Path) -> Result<(), JournalError> {
    let Some(directory) = of.parent() else { return Ok(()) };
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| JournalError::io("sync", directory, error))
}
