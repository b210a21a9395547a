//! The descriptors of a process, and taking one.

use std::mem::MaybeUninit;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::readlinkat_raw;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::Serialize;

use super::error::ProcessError;
use super::handle::{Process, checked_id};
use super::procfile;
use crate::open_files::is_shortage;

/// More descriptor tables of one process than this are not looked at: nearly all have one.
const MAX_TABLES: usize = 64;

/// What a descriptor refers to, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An epoll context.
    Epoll,
    /// A socket with its inode, which names it for as long as it lives.
    Socket(u64),
    /// An io_uring instance, which does not wait by epoll.
    IoUring,
}

/// A descriptor of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Descriptor {
    /// The thread in whose table it is: the process's id, unless a thread has a table of its own.
    pub tid: i32,
    /// Its number in the program's table, a name in `/proc/PID/fd`.
    pub fd: i32,
    /// What it refers to.
    pub kind: Kind,
}

/// Whether a process has more than one descriptor table: a thread can be made without `CLONE_FILES`,
/// or leave its process's table by `unshare`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tables {
    /// One for all its threads.
    One,
    /// So many, and all were looked at.
    Several(usize),
    /// The kernel does not say (`kcmp` is refused or missing): only the first was looked at.
    Unknown,
}

/// The epoll contexts, sockets and io_uring instances of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Descriptors {
    /// By table and rising number.
    pub list: Vec<Descriptor>,
    /// How many descriptors of all kinds were looked at.
    pub seen: usize,
    /// Whether there were more than asked for.
    pub cut: bool,
    /// The program's tables of descriptors; threads may have their own.
    pub tables: Tables,
}

impl Descriptors {
    /// The epoll contexts.
    pub fn epolls(&self) -> impl Iterator<Item = Descriptor> + '_ {
        self.list.iter().copied().filter(|descriptor| descriptor.kind == Kind::Epoll)
    }

    /// Those that are sockets, as `/proc/PID/fd` links them.
    pub fn sockets(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let socket = |descriptor: &Descriptor| matches!(descriptor.kind, Kind::Socket(_));
        self.list.iter().copied().filter(socket)
    }
}

impl Process {
    /// Looks at its descriptors, at most `limit` of all kinds.
    ///
    /// # Errors
    /// If it has ended, or is another user's.
    pub fn descriptors(&self, limit: usize) -> Result<Descriptors, ProcessError> {
        let (owners, tables) = self.table_owners()?;
        let mut found = Descriptors { list: Vec::new(), seen: 0, cut: false, tables };
        for (place, tid) in owners.into_iter().enumerate() {
            match self.list_table(tid, limit, &mut found) {
                Ok(()) => {}
                // A thread that has ended, with its table; that of the first one is root's then.
                Err(errno) if place > 0 && !is_shortage(errno) && self.alive() => {}
                Err(Errno::ACCESS) if self.thread_ends(tid) && !self.ends() => {}
                Err(errno) => return Err(self.refused("to list its descriptors", errno)),
            }
        }
        found.list.sort_unstable();
        self.checked(found)
    }

    /// Duplicates a descriptor into this process; `None` if it was closed meanwhile. Whether it
    /// still refers to what it did is for the caller to see: a number is soon used again.
    ///
    /// # Errors
    /// If the process has ended or may not be reached, or for a thread's own table on a kernel
    /// before 6.9.
    pub fn take(&self, descriptor: &Descriptor) -> Result<Option<OwnedFd>, ProcessError> {
        self.take_fd(descriptor.tid, descriptor.fd)
    }

    /// [`Process::take`] by thread and number.
    ///
    /// # Errors
    /// As there.
    pub fn take_fd(&self, tid: i32, fd: i32) -> Result<Option<OwnedFd>, ProcessError> {
        // A negative one would make rustix panic.
        if fd < 0 {
            return self.checked(None);
        }
        let taken = if tid == self.pid() {
            pidfd_getfd(self.pidfd_ref(), fd, PidfdGetfdFlags::empty())
        } else {
            let Some(thread) = self.thread(tid)? else { return Ok(None) };
            pidfd_getfd(thread, fd, PidfdGetfdFlags::empty())
        };
        match taken {
            Ok(taken) => Ok(Some(taken)),
            Err(Errno::BADF) => self.checked(None),
            // A thread that has ended; a process would be gone.
            Err(Errno::SRCH) if tid != self.pid() => self.checked(None),
            Err(Errno::NOSYS) => {
                Err(ProcessError::Unsupported { what: "pidfd_getfd", since: "5.6" })
            }
            Err(errno) => Err(self.refused("to take a descriptor", errno)),
        }
    }

    fn thread(&self, tid: i32) -> Result<Option<OwnedFd>, ProcessError> {
        let Some(id) = checked_id(tid) else { return Ok(None) };
        let flags = PidfdFlags::from_bits_retain(libc::PIDFD_THREAD);
        let thread = match pidfd_open(id, flags) {
            Ok(thread) => thread,
            Err(Errno::SRCH) => return Ok(None),
            Err(Errno::INVAL) => {
                let what = "to take a descriptor from a thread's own table";
                return Err(ProcessError::Unsupported { what, since: "6.9" });
            }
            Err(errno) => return Err(self.refused("to open a thread", errno)),
        };
        // The id may be another process's thread by now.
        let own = rustix::fs::access(
            format!("/proc/{}/task/{tid}", self.pid()),
            rustix::fs::Access::EXISTS,
        );
        Ok(own.ok().map(|()| thread))
    }

    /// One thread for each descriptor table, the first thread first.
    fn table_owners(&self) -> Result<(Vec<i32>, Tables), ProcessError> {
        let mut owners = vec![self.pid()];
        for tid in self.threads()? {
            match shared_with(&owners, tid) {
                Ok(true) => {}
                Ok(false) if owners.len() < MAX_TABLES => owners.push(tid),
                // It ended meanwhile.
                Err(Errno::SRCH) => {}
                Ok(false) | Err(_) => return Ok((owners, Tables::Unknown)),
            }
        }
        let tables = if owners.len() == 1 { Tables::One } else { Tables::Several(owners.len()) };
        Ok((owners, tables))
    }

    fn list_table(&self, tid: i32, limit: usize, found: &mut Descriptors) -> Result<(), Errno> {
        let directory = procfile::directory(&format!("/proc/{}/task/{tid}/fd", self.pid()))?;
        let mut target = [MaybeUninit::<u8>::uninit(); 64];
        let within = directory.as_fd();
        let mut denied = false;
        procfile::each_number(within, |name, fd| {
            if found.seen >= limit {
                found.cut = true;
                return false;
            }
            found.seen += 1;
            let link = readlinkat_raw(within, name, &mut target);
            // Root without its capabilities may list the numbers of a process and nothing more.
            denied |= matches!(link, Err(Errno::ACCESS));
            // Closed meanwhile, or not to be seen: neither is anything to be reached.
            if let Some(kind) = link.ok().and_then(|(link, _)| kind(link)) {
                found.list.push(Descriptor { tid, fd, kind });
            }
            true
        })?;
        if denied { Err(Errno::ACCESS) } else { Ok(()) }
    }
}

/// What the kernel's name of an open file says that it is. Longer ones than any of these are cut.
fn kind(link: &[u8]) -> Option<Kind> {
    match link {
        b"anon_inode:[eventpoll]" => Some(Kind::Epoll),
        b"anon_inode:[io_uring]" => Some(Kind::IoUring),
        _ => {
            let inode = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
            std::str::from_utf8(inode).ok()?.parse().ok().map(Kind::Socket)
        }
    }
}

/// Whether a thread has the descriptor table of one of these.
fn shared_with(owners: &[i32], tid: i32) -> Result<bool, Errno> {
    for owner in owners {
        if *owner == tid || same_files(*owner, tid)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two threads have one descriptor table.
fn same_files(one: i32, other: i32) -> Result<bool, Errno> {
    const KCMP_FILES: libc::c_int = 2;
    const NONE: usize = 0;
    // SAFETY: `kcmp` takes numbers only, and changes nothing.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, NONE, NONE) };
    match result {
        0 => Ok(true),
        1.. => Ok(false),
        _ => Err(napkin_os::last_error()),
    }
}

/// Whether a descriptor of this process and one of another refer to the same open file; false where
/// the kernel does not say.
pub fn same_file(own: impl AsFd, pid: i32, fd: i32) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    // The kernel takes these as long numbers: an int would leave their upper halves to chance.
    let index = |fd: i32| fd.cast_unsigned() as usize;
    let (own, fd) = (index(own.as_fd().as_raw_fd()), index(fd));
    let this = std::process::id();
    // SAFETY: `kcmp` takes numbers only, and changes nothing.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, this, pid, KCMP_FILE, own, fd) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_tells_the_kind() {
        assert_eq!(kind(b"anon_inode:[eventpoll]"), Some(Kind::Epoll));
        assert_eq!(kind(b"anon_inode:[io_uring]"), Some(Kind::IoUring));
        assert_eq!(kind(b"socket:[4026]"), Some(Kind::Socket(4_026)));
        for other in [
            &b"/home/socket:[1]"[..],
            b"socket:[]",
            b"socket:[99999999999999999999]",
            b"socket:[1",
            b"pipe:[1]",
            b"anon_inode:[eventpoll",
            b"/tmp/anon_inode:[eventpoll]",
            b"\xff",
            b"",
        ] {
            assert_eq!(kind(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
