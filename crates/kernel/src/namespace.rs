//! Network namespaces: identifying the current one, entering another one, creating a new one.
//!
//! A namespace belongs to a thread, not to a process. A socket that the thread opens, or a program that it starts,
//! stays in its namespace. User and PID namespaces are out of scope.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use serde::{Deserialize, Serialize};

use crate::netlink::{NetlinkError, Route};
use crate::process::socket::own_netns_cookie;
use napkin_os::rights::Right;

/// The calling thread's namespace; `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The loopback device is the first device of every namespace.
const LOOPBACK: u32 = 1;

/// The reason why a namespace does not exist or cannot be entered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// A file could not be opened or read.
    #[error("cannot read {path}: {errno}", path = .path.display())]
    Read {
        /// The file that represents the namespace.
        path: PathBuf,
        /// The kernel's errno.
        errno: Errno,
    },
    /// A file that is not a network namespace.
    #[error(
        "{path} is not a network namespace: give a file such as /proc/PID/ns/net or \
         /run/netns/NAME",
        path = .path.display()
    )]
    NotOne {
        /// The file that was given as a namespace.
        path: PathBuf,
    },
    /// A capability is missing.
    #[error("{step}: not permitted; it needs {right}")]
    NoRight {
        /// The operation that failed.
        step: &'static str,
        /// The missing capability.
        right: Right,
    },
    /// An operation failed.
    #[error("{step}: {errno}")]
    Step {
        /// The operation that failed.
        step: &'static str,
        /// The kernel's errno.
        errno: Errno,
    },
    /// The loopback device of a new namespace could not be set up.
    #[error("a new network namespace's loopback device: {0}")]
    Loopback(#[from] NetlinkError),
}

fn step(step: &'static str) -> impl FnOnce(Errno) -> NamespaceError {
    move |errno| match errno {
        Errno::PERM => NamespaceError::NoRight { step, right: Right::SysAdmin },
        errno => NamespaceError::Step { step, errno },
    }
}

/// The identity of a network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// The kernel's number for it, which is never reused within a boot (`SO_NETNS_COOKIE`, Linux
    /// 5.14). `None` in an older kernel, and for a namespace that was identified by a file alone.
    pub cookie: Option<u64>,
    /// The inode of its file in `/proc/PID/ns`. It may be reused after the namespace is gone.
    pub inode: u64,
}

impl Identity {
    /// Whether both are the same namespace: compares the cookies if both are known, else the inodes.
    pub fn same(&self, other: &Identity) -> bool {
        match (self.cookie, other.cookie) {
            (Some(own), Some(peer)) => own == peer,
            _ => self.inode == other.inode,
        }
    }
}

impl fmt::Display for Identity {
    /// Formats it as `/proc/PID/ns/net` does, followed by the cookie.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.inode)?;
        match self.cookie {
            Some(cookie) => write!(f, " (cookie {cookie})"),
            None => Ok(()),
        }
    }
}

/// Returns the boot id of the running kernel (a UUID in text form).
///
/// # Errors
/// [`NamespaceError::Read`] without procfs.
pub fn boot_id() -> Result<String, NamespaceError> {
    let failed = |errno| NamespaceError::Read { path: BOOT_ID.into(), errno };
    let of_io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut text = String::new();
    let file = File::open(BOOT_ID).map_err(|error| failed(of_io(error)))?;
    file.take(64).read_to_string(&mut text).map_err(|error| failed(of_io(error)))?;
    let text = text.trim();
    if text.is_empty() { Err(failed(Errno::NODATA)) } else { Ok(text.to_owned()) }
}

/// A network namespace, which this descriptor keeps alive.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Namespace {
    /// Returns the identity of the calling thread's namespace.
    ///
    /// # Errors
    /// [`NamespaceError::Read`] without procfs.
    pub fn identity() -> Result<Identity, NamespaceError> {
        Ok(Identity { cookie: own_netns_cookie(), inode: Namespace::current()?.inode()? })
    }

    /// Opens the calling thread's namespace.
    pub fn current() -> Result<Namespace, NamespaceError> {
        open(Path::new(OWN)).map(Namespace)
    }

    /// Opens the namespace that a file represents: `/run/netns/NAME`, `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// [`NamespaceError::NotOne`] for any other file.
    pub fn open(path: impl AsRef<Path>) -> Result<Namespace, NamespaceError> {
        let path = path.as_ref();
        let file = open(path)?;
        // SAFETY: NS_GET_NSTYPE takes no argument and writes no memory; other kinds of files reject it, or
        // interpret the number as another request without an argument.
        let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE) };
        if kind == libc::CLONE_NEWNET {
            Ok(Namespace(file))
        } else {
            Err(NamespaceError::NotOne { path: path.to_owned() })
        }
    }

    /// Creates a new namespace without a name, with its loopback device up. It ends with its last user: this
    /// descriptor, threads in it, and their sockets. So it also ends if this process is killed.
    ///
    /// # Errors
    /// [`NamespaceError::NoRight`] without `CAP_SYS_ADMIN`.
    pub fn new() -> Result<Namespace, NamespaceError> {
        on_thread(|| {
            unshare(UnshareFlags::NEWNET).map_err(step("making a network namespace"))?;
            Route::open()?.set_up(LOOPBACK)?;
            Namespace::current()
        })
    }

    /// Returns the inode of its file.
    pub fn inode(&self) -> Result<u64, NamespaceError> {
        let stat = rustix::fs::fstat(&self.0).map_err(step("asking for a namespace's inode"))?;
        Ok(stat.st_ino)
    }

    /// Moves the calling thread into it, permanently, with a private mount namespace in which `/sys` shows this
    /// namespace's devices. Other threads and processes are not affected, except for those that this thread starts
    /// from then on.
    ///
    /// `/proc/net` still shows the namespace of the process's main thread: read `/proc/thread-self/net` instead.
    /// Mounts below `/sys` (cgroup, tracefs, bpf) are hidden.
    ///
    /// # Errors
    /// [`NamespaceError::NoRight`] without `CAP_SYS_ADMIN`. After an error the thread may have entered only one of
    /// the two namespaces: end it, as [`Namespace::run`] does.
    pub fn enter_thread(&self) -> Result<(), NamespaceError> {
        unshare(UnshareFlags::NEWNS).map_err(step("making a mount namespace"))?;
        rustix::mount::mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )
        .map_err(step("making the mounts private"))?;
        rustix::thread::move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(step("entering a network namespace"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("sysfs", "/sys", "sysfs", flags, None)
            .map_err(step("mounting a network namespace's sysfs"))
    }

    /// Runs a closure on a new thread that has entered the namespace, and waits for it. A panic of the closure is
    /// propagated to the caller.
    ///
    /// # Errors
    /// As [`Namespace::enter_thread`]; then the closure has not run.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        on_thread(|| {
            self.enter_thread()?;
            Ok(work())
        })
    }
}

/// Runs a closure on a new thread, so that the caller's namespaces are unchanged.
fn on_thread<T: Send>(
    work: impl FnOnce() -> Result<T, NamespaceError> + Send,
) -> Result<T, NamespaceError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| NamespaceError::Step {
            step: "starting a thread for a namespace",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn open(path: &Path) -> Result<OwnedFd, NamespaceError> {
    // The path may be a FIFO or a device: opening it must not block or have side effects.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| NamespaceError::Read { path: path.to_owned(), errno })
}

fn unshare(what: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: only NEWNET and NEWNS are requested, so the descriptor table stays shared.
    unsafe { rustix::thread::unshare_unsafe(what) }
}
