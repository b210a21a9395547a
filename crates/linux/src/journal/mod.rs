//! The journal of changes in the kernel, each recorded before it is made.
//!
//! The journal is one directory ([`Store`]): `$NAPKIN_STATE`, else `/run/napkin` for root, else
//! `$XDG_RUNTIME_DIR/napkin`. It has one file for each device ([`DeviceJournal`]) and each process
//! ([`ProcessJournal`]) with changes that can still be put back. A file belongs to one boot, because the
//! changes end with it. A device's file is named after the inode of the device's directory in sysfs, so that it
//! is the same in every network namespace that the device moves to; where that inode is not visible, after the
//! namespace and the interface index. Nothing here reads or changes the kernel's settings.

mod device;
mod error;
pub(crate) mod fault;
mod holder;
mod lock;
mod log;
mod namespaces;
mod process;
mod record;
mod records;

use std::cmp::Reverse;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use device::DeviceJournal;
pub use error::JournalError;
pub use holder::Holder;
pub use lock::Lock;
pub use log::{Header, Subject};
pub(crate) use namespaces::namespaces;
#[cfg(test)]
pub(crate) use namespaces::pid_namespace_ended;
pub use process::{ProcessJournal, ProcessJournals};
pub use record::{Record, Standing};

use napkin_kernel::namespace::{Identity, Namespace, boot_id};

/// Root's directory, unless `$NAPKIN_STATE` names another.
const ROOT_S: &str = "/run/napkin";

/// The extension of a journal's file.
const JOURNAL: &str = "journal";

/// The maximum number of journals inspected: one for each process that Linux can have.
const MAX_FILES: usize = 1 << 22;

/// While the returned guard is held, no other thread of this process reads a device's journal and writes what
/// follows from it. A device's lock excludes other processes; but a keeper and a [guard](crate::guard) are two
/// threads of one process, and if one of them rewrote the file, a line that the other has just added would be
/// lost.
pub(crate) fn sole_writer() -> MutexGuard<'static, ()> {
    static WRITER: Mutex<()> = Mutex::new(());
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directory of the journals, as seen from one boot and one network namespace.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
    boot_id: String,
    namespace: Identity,
}

/// A file of the directory.
#[derive(Debug)]
#[non_exhaustive]
pub enum Found {
    /// A device that was first changed in this namespace.
    Device(DeviceJournal),
    /// A process's journal of this boot; a process belongs to no network namespace.
    Process(ProcessJournal),
    /// Of another boot: the changes ended with it.
    OtherBoot {
        /// The journal's file.
        path: PathBuf,
        /// The changed device or process.
        subject: Subject,
    },
    /// A device that was first changed in another network namespace.
    OtherNamespace {
        /// The journal's file.
        path: PathBuf,
        /// The changed device or process.
        subject: Subject,
        /// The namespace of the first change.
        namespace: Identity,
        /// Whether the namespace still exists; `None` if that cannot be determined.
        alive: Option<bool>,
        /// The changes: the device may be in this namespace now.
        journal: DeviceJournal,
    },
    /// It has no complete line: nothing was changed.
    Empty {
        /// The journal's file.
        path: PathBuf,
    },
    /// It cannot be read.
    Unreadable {
        /// The journal's file.
        path: PathBuf,
        /// The reason why it cannot be read.
        error: JournalError,
    },
}

impl Found {
    /// The journal's file.
    pub fn path(&self) -> &Path {
        match self {
            Found::Device(journal) => journal.path(),
            Found::Process(journal) => journal.path(),
            Found::OtherBoot { path, .. }
            | Found::OtherNamespace { path, .. }
            | Found::Empty { path }
            | Found::Unreadable { path, .. } => path,
        }
    }
}

impl Store {
    /// Opens the directory that the environment names, for the calling thread's namespace. It is created at the
    /// first write.
    ///
    /// # Errors
    /// If no directory is configured, or procfs is not available.
    pub fn open() -> Result<Store, JournalError> {
        let directory = match std::env::var_os("NAPKIN_STATE").filter(|it| !it.is_empty()) {
            // Made absolute once: a relative path of one component has no parent directory to sync.
            Some(named) => std::path::absolute(&named)
                .map_err(|error| JournalError::io("find", Path::new(&named), error))?,
            None if rustix::process::geteuid().is_root() => PathBuf::from(ROOT_S),
            None => {
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                let runtime = runtime.filter(|it| it.is_absolute());
                runtime.ok_or(JournalError::NoDirectory)?.join("napkin")
            }
        };
        let boot_id = boot_id().map_err(JournalError::Here)?;
        let namespace = Namespace::identity().map_err(JournalError::Here)?;
        Ok(Store::at(directory, boot_id, namespace))
    }

    /// Opens a given directory as another boot or namespace would.
    pub fn at(directory: PathBuf, boot_id: String, namespace: Identity) -> Store {
        Store { directory, boot_id, namespace }
    }

    /// The path of the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Root's directory, if it exists and this is a different one: root's changes are not recorded in this one.
    pub fn other_root_directory(&self) -> Option<&'static Path> {
        let root_s = Path::new(ROOT_S);
        (self.directory != root_s && root_s.is_dir()).then_some(root_s)
    }

    /// Takes the lock of a device: one napkin at a time changes it.
    ///
    /// # Errors
    /// [`JournalError::Locked`], with the holder.
    pub fn lock(
        &self,
        ifindex: u32,
        ifname: &str,
        identity: Option<u64>,
    ) -> Result<Lock, JournalError> {
        Lock::take(&self.device_path(ifindex, identity).with_extension("lock"), ifname)
    }

    /// Returns the holder of a device's lock; `None` if there is none, or it is not visible.
    pub fn holder(&self, ifindex: u32, identity: Option<u64>) -> Option<Holder> {
        lock::holder(&self.device_path(ifindex, identity).with_extension("lock"))
    }

    /// Opens the changes of a device, in whichever namespace they were made; empty if there are none. Those of
    /// another boot are dropped when the first line is written.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn device(
        &self,
        ifindex: u32,
        ifname: &str,
        identity: Option<u64>,
    ) -> Result<DeviceJournal, JournalError> {
        let subject = Subject::Device { ifindex, ifname: ifname.to_owned(), identity };
        let header = Header::new(&self.boot_id, self.namespace, subject);
        DeviceJournal::open(self.device_path(ifindex, identity), header)
    }

    /// Opens a file that was [`Found`] again, with its current contents; empty if it is gone.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn reopen(&self, seen: &DeviceJournal) -> Result<DeviceJournal, JournalError> {
        DeviceJournal::open(seen.path().to_owned(), seen.header().clone())
    }

    /// Takes the lock of a file that was [`Found`], to put back its changes; works even if no file can be
    /// created.
    ///
    /// # Errors
    /// [`JournalError::Locked`], with the holder.
    pub fn lock_of(&self, seen: &DeviceJournal) -> Result<Lock, JournalError> {
        Lock::of_journal(seen.path(), seen.ifname())
    }

    /// Takes the lock of a process to put back its changes; works even if no file can be created.
    ///
    /// # Errors
    /// As [`Store::lock_of`].
    pub fn lock_of_process(&self, pid: i32, start_time: u64) -> Result<Lock, JournalError> {
        Lock::of_journal(&self.process_path(pid, start_time), &process(pid))
    }

    /// Opens the changes of a process.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn process(&self, pid: i32, start_time: u64) -> Result<ProcessJournal, JournalError> {
        let subject = Subject::Process { pid, start_time };
        let header = Header::new(&self.boot_id, self.namespace, subject);
        ProcessJournal::open(self.process_path(pid, start_time), header)
    }

    /// Takes the lock of a process: one napkin at a time changes it.
    ///
    /// # Errors
    /// [`JournalError::Locked`], with the holder.
    pub fn lock_process(&self, pid: i32, start_time: u64) -> Result<Lock, JournalError> {
        let path = self.process_path(pid, start_time).with_extension("lock");
        Lock::take(&path, &process(pid))
    }

    /// Returns the holder of a process's lock; `None` if there is none, or it is not visible.
    pub fn process_holder(&self, pid: i32, start_time: u64) -> Option<Holder> {
        lock::holder(&self.process_path(pid, start_time).with_extension("lock"))
    }

    /// Takes the keeper's lock of this network namespace.
    ///
    /// # Errors
    /// [`JournalError::Locked`], with the holder.
    pub fn lock_keeper(&self) -> Result<Lock, JournalError> {
        Lock::take(&self.keeper_path(), "the wishes of this network namespace")
    }

    /// Returns the keeper of this network namespace; `None` if there is none, or it is not visible.
    pub fn keeper(&self) -> Option<Holder> {
        lock::holder(&self.keeper_path())
    }

    /// Returns a recorder for the processes that this napkin is about to change.
    pub fn recorder(&self) -> ProcessJournals {
        ProcessJournals::new(self.clone())
    }

    /// Returns every file of the directory, the last changed first.
    ///
    /// # Errors
    /// If the directory exists and cannot be read.
    pub fn survey(&self) -> Result<Vec<Found>, JournalError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(JournalError::io("read", &self.directory, error)),
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let journals = paths.filter(|path| path.extension().is_some_and(|it| it == JOURNAL));
        let mut paths: Vec<PathBuf> = journals.take(MAX_FILES).collect();
        // A device has two journals if its identity was visible for some of the changes only. The last change
        // is undone first: otherwise the older journal would take its value for another program's.
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|it| it.modified()).ok();
        paths.sort_by_cached_key(|path| (Reverse(changed(path)), path.clone()));
        let mut namespaces = namespaces::LiveNamespaces::default();
        Ok(paths.into_iter().filter_map(|path| self.look(path, &mut namespaces)).collect())
    }

    /// Removes a file of the directory, whatever its contents.
    ///
    /// # Errors
    /// [`JournalError::Locked`] if another napkin uses it, or if the operating system refuses.
    pub fn forget(&self, path: &Path) -> Result<(), JournalError> {
        let _lock = Lock::take(&path.with_extension("lock"), &path.display().to_string())?;
        log::remove(path)
    }

    /// Removes a file that was [`Found::Empty`] or [`Found::OtherBoot`], unless another napkin has begun it
    /// anew meanwhile, or is about to.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn sweep(&self, path: &Path) -> Result<(), JournalError> {
        let what = path.display().to_string();
        let _lock = match Lock::take(&path.with_extension("lock"), &what) {
            Ok(lock) => lock,
            Err(JournalError::Locked { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        match log::peek(path)? {
            Some(header) if header.boot_id == self.boot_id => Ok(()),
            _ => log::remove(path),
        }
    }

    fn look(&self, path: PathBuf, namespaces: &mut namespaces::LiveNamespaces) -> Option<Found> {
        let header = match log::peek(&path) {
            Ok(Some(header)) => header,
            // It may have been removed meanwhile.
            Ok(None) if path.exists() => return Some(Found::Empty { path }),
            Ok(None) => return None,
            Err(error) => return Some(Found::Unreadable { path, error }),
        };
        let subject = header.subject.clone();
        if header.boot_id != self.boot_id {
            return Some(Found::OtherBoot { path, subject });
        }
        let opened = match &subject {
            Subject::Process { .. } => {
                ProcessJournal::open(path.clone(), header).map(Found::Process)
            }
            Subject::Device { .. } if header.namespace.same(&self.namespace) => {
                DeviceJournal::open(path.clone(), header).map(Found::Device)
            }
            Subject::Device { .. } => {
                let namespace = header.namespace;
                let alive = namespaces.contains(&namespace);
                return Some(match DeviceJournal::open(path.clone(), header) {
                    Ok(journal) => {
                        Found::OtherNamespace { path, subject, namespace, alive, journal }
                    }
                    Err(error) => Found::Unreadable { path, error },
                });
            }
        };
        Some(opened.unwrap_or_else(|error| Found::Unreadable { path, error }))
    }

    fn keeper_path(&self) -> PathBuf {
        self.directory.join(format!("keeper-{}.lock", self.namespace.inode))
    }

    fn process_path(&self, pid: i32, start_time: u64) -> PathBuf {
        self.directory.join(format!("process-{pid}-{start_time}.{JOURNAL}"))
    }

    fn device_path(&self, ifindex: u32, identity: Option<u64>) -> PathBuf {
        let device = match (identity, self.namespace.cookie) {
            (Some(identity), _) => identity.to_string(),
            (None, Some(cookie)) => format!("c{cookie}-{ifindex}"),
            (None, None) => format!("i{}-{ifindex}", self.namespace.inode),
        };
        self.directory.join(format!("device-{device}.{JOURNAL}"))
    }
}

/// The name of a process in the error of its lock.
fn process(pid: i32) -> String {
    format!("process {pid}")
}

#[cfg(test)]
mod tests;
