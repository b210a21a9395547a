//! The descriptors of a process, and duplicating them into this one.

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

/// Limit of descriptor tables per process that are read; nearly all processes have one.
const MAX_TABLES: usize = 64;

/// The kinds of files that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An epoll context.
    Epoll,
    /// A socket by its inode, which identifies it for as long as it exists.
    Socket(u64),
    /// An io_uring instance, which does not wait with epoll.
    IoUring,
}

/// A descriptor of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Descriptor {
    /// The thread that uses the table: the process's id, unless a thread has a separate table.
    pub tid: i32,
    /// Its number in that table, a name in `/proc/PID/fd`.
    pub fd: i32,
    /// The file to which it refers.
    pub kind: Kind,
}

/// The number of descriptor tables of a process. A thread has a separate one if it was created without
/// `CLONE_FILES`, or if it left its process's table with `unshare`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tables {
    /// One table for all threads.
    One,
    /// This many tables, all of which were read.
    Several(usize),
    /// The kernel does not tell (`kcmp` is refused or missing): only the tables found so far were read.
    Unknown,
}

/// The epoll contexts, sockets and io_uring instances of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Descriptors {
    /// The descriptors, by table and ascending number.
    pub list: Vec<Descriptor>,
    /// The number of descriptors of all kinds that were read.
    pub seen: usize,
    /// Whether there were more than the limit.
    pub cut: bool,
    /// The number of the process's descriptor tables.
    pub tables: Tables,
}

impl Descriptors {
    /// The epoll contexts.
    pub fn epolls(&self) -> impl Iterator<Item = Descriptor> + '_ {
        self.list.iter().copied().filter(|descriptor| descriptor.kind == Kind::Epoll)
    }

    /// The sockets.
    pub fn sockets(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let socket = |descriptor: &Descriptor| matches!(descriptor.kind, Kind::Socket(_));
        self.list.iter().copied().filter(socket)
    }
}

impl Process {
    /// Lists its descriptors of the kinds in [`Kind`], reading at most `limit` of all kinds.
    ///
    /// # Errors
    /// If it has ended, or belongs to another user.
    pub fn descriptors(&self, limit: usize) -> Result<Descriptors, ProcessError> {
        let (owners, tables) = self.table_owners()?;
        let mut found = Descriptors { list: Vec::new(), seen: 0, cut: false, tables };
        for (place, tid) in owners.into_iter().enumerate() {
            match self.read_table(tid, limit, &mut found) {
                Ok(()) => {}
                // A thread has ended, with its table; then the files of the main thread belong to root.
                Err(errno) if place > 0 && !is_shortage(errno) && self.alive() => {}
                Err(Errno::ACCESS) if self.thread_exits(tid) && !self.exits() => {}
                Err(errno) => return Err(self.refused("to list its descriptors", errno)),
            }
        }
        found.list.sort_unstable();
        self.if_alive(found)
    }

    /// Duplicates a descriptor into this process; `None` if it was closed meanwhile. The caller has to check
    /// whether it still refers to the same file: numbers are soon reused.
    ///
    /// # Errors
    /// If the process has ended or is not accessible, or for a thread's separate table before Linux 6.9.
    pub fn take(&self, descriptor: &Descriptor) -> Result<Option<OwnedFd>, ProcessError> {
        self.take_fd(descriptor.tid, descriptor.fd)
    }

    /// Duplicates a descriptor by thread and number.
    ///
    /// # Errors
    /// As for [`Process::take`].
    pub fn take_fd(&self, tid: i32, fd: i32) -> Result<Option<OwnedFd>, ProcessError> {
        // A negative number would make rustix panic.
        if fd < 0 {
            return self.if_alive(None);
        }
        let taken = if tid == self.pid() {
            pidfd_getfd(self.pidfd_ref(), fd, PidfdGetfdFlags::empty())
        } else {
            let Some(thread) = self.thread(tid)? else { return Ok(None) };
            pidfd_getfd(thread, fd, PidfdGetfdFlags::empty())
        };
        match taken {
            Ok(taken) => Ok(Some(taken)),
            Err(Errno::BADF) => self.if_alive(None),
            // The thread has ended; if it were the process, it would be gone.
            Err(Errno::SRCH) if tid != self.pid() => self.if_alive(None),
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
        // The id may have been reused for another process's thread.
        let own = rustix::fs::access(
            format!("/proc/{}/task/{tid}", self.pid()),
            rustix::fs::Access::EXISTS,
        );
        Ok(own.ok().map(|()| thread))
    }

    /// Returns one thread for each descriptor table, the main thread first.
    fn table_owners(&self) -> Result<(Vec<i32>, Tables), ProcessError> {
        let mut owners = vec![self.pid()];
        for tid in self.threads()? {
            match shares_table(&owners, tid) {
                Ok(true) => {}
                Ok(false) if owners.len() < MAX_TABLES => owners.push(tid),
                // The thread ended meanwhile.
                Err(Errno::SRCH) => {}
                Ok(false) | Err(_) => return Ok((owners, Tables::Unknown)),
            }
        }
        let tables = if owners.len() == 1 { Tables::One } else { Tables::Several(owners.len()) };
        Ok((owners, tables))
    }

    fn read_table(&self, tid: i32, limit: usize, found: &mut Descriptors) -> Result<(), Errno> {
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
            // Root without its capabilities may list a process's descriptor numbers but not their files.
            denied |= matches!(link, Err(Errno::ACCESS));
            // Closed meanwhile, or not visible: it could not be duplicated either.
            if let Some(kind) = link.ok().and_then(|(link, _)| kind(link)) {
                found.list.push(Descriptor { tid, fd, kind });
            }
            true
        })?;
        if denied { Err(Errno::ACCESS) } else { Ok(()) }
    }
}

/// Parses the kernel's name of an open file. The buffer truncates names that are longer than any of these.
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

/// Whether a thread shares the descriptor table of one of the owners.
fn shares_table(owners: &[i32], tid: i32) -> Result<bool, Errno> {
    for owner in owners {
        if *owner == tid || same_files(*owner, tid)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two threads share one descriptor table.
fn same_files(one: i32, other: i32) -> Result<bool, Errno> {
    const KCMP_FILES: libc::c_int = 2;
    const NONE: usize = 0;
    // SAFETY: `kcmp` takes only numbers, and changes nothing.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, NONE, NONE) };
    match result {
        0 => Ok(true),
        1.. => Ok(false),
        _ => Err(napkin_os::last_error()),
    }
}

/// Whether a descriptor of this process and one of another refer to the same open file; false if the kernel does
/// not tell.
pub fn same_file(own: impl AsFd, pid: i32, fd: i32) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    // The kernel takes these as longs: the upper half of an int would be undefined.
    let index = |fd: i32| fd.cast_unsigned() as usize;
    let (own, fd) = (index(own.as_fd().as_raw_fd()), index(fd));
    let this = std::process::id();
    // SAFETY: `kcmp` takes only numbers, and changes nothing.
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
