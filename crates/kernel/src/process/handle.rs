//! One process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use napkin_os::procfs::ThreadStat;
use napkin_os::sched::SchedError;
use napkin_policy::text::escaped;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::error::ProcessError;
use super::procfile;
use crate::open_files::is_shortage;
use napkin_os::rights::Right;

/// More threads of one process than this are not looked at.
const MAX_THREADS: usize = 1 << 16;

/// More processes than this are not looked at: twice the kernel's largest `pid_max`.
const MAX_PROCESSES: usize = 1 << 23;

/// More bytes of a `children` file than this are not read.
const MAX_CHILDREN: u64 = 4 << 20;

/// A process, as long as it lives.
///
/// Everything that is read by its id is checked afterwards against the pidfd: if the process still
/// lives then, the id was its own when it was read.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    start_time: u64,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens a process by its id.
    ///
    /// # Errors
    /// If there is none or it has ended, waited for or not, if the id is a thread's, or if the kernel
    /// has no pidfds (before 5.3).
    pub fn open(pid: i32) -> Result<Process, ProcessError> {
        let gone = ProcessError::Gone { pid };
        let Some(id) = checked_id(pid) else { return Err(gone) };
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => gone,
            // The first until Linux 6.15, the second since.
            Errno::INVAL | Errno::NOENT => match thread_group(pid) {
                Some(group) if group != pid => ProcessError::Thread { tid: pid, pid: group },
                _ => gone,
            },
            Errno::NOSYS => ProcessError::Unsupported { what: "a pidfd", since: "5.3" },
            Errno::MFILE => ProcessError::NoDescriptor { pid, what: "to open it" },
            source => ProcessError::System { pid, what: "to open it", source },
        })?;
        let mut process = Process { pid, start_time: 0, pidfd };
        process.start_time = process.stat()?.start_ticks;
        Ok(process)
    }

    /// Opens the process of this id if it is the one that started at `start_time`.
    ///
    /// # Errors
    /// As [`Process::open`]; another process that has the id now is [`ProcessError::Gone`].
    pub fn reopen(pid: i32, start_time: u64) -> Result<Process, ProcessError> {
        let process = Process::open(pid)?;
        if process.start_time == start_time { Ok(process) } else { Err(ProcessError::Gone { pid }) }
    }

    /// Process ID. It stays this process's while the handle is held.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// When it started, in the kernel's clock ticks since boot: with the id and the boot it names
    /// one process for ever.
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Its pidfd, to wait for its end with `poll`.
    pub fn pidfd(&self) -> impl AsFd + '_ {
        &self.pidfd
    }

    /// Whether it lives: one that has ended and was not yet waited for does not.
    pub fn alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Whether it has ended, or does so within `timeout`.
    pub fn ends_within(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A signal ends the wait early, which a timeout may.
        poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Its name, as the kernel has it: at most 15 bytes of the program's file name, unless it named
    /// itself. What a terminal would not print is replaced.
    ///
    /// # Errors
    /// If it has ended.
    pub fn comm(&self) -> Result<String, ProcessError> {
        let text = self.read("comm", "to read its name", 64)?;
        Ok(printable(&text))
    }

    /// The inode of its network namespace.
    ///
    /// # Errors
    /// If it has ended, or is another user's.
    pub fn network_namespace(&self) -> Result<u64, ProcessError> {
        let stat = rustix::fs::stat(format!("/proc/{}/ns/net", self.pid))
            .map_err(|errno| self.refused("to see its network namespace", errno))?;
        self.checked(stat.st_ino)
    }

    /// The ids of its threads, in order.
    ///
    /// # Errors
    /// If it has ended.
    pub fn threads(&self) -> Result<Vec<i32>, ProcessError> {
        let threads = procfile::numbers(&format!("/proc/{}/task", self.pid), MAX_THREADS)
            .map_err(|errno| self.refused("to list its threads", errno))?;
        self.checked(threads)
    }

    /// The ids of its children, in order. One whose parent ended is no child of the parent's parent:
    /// the kernel gives it to init, or to a subreaper.
    ///
    /// # Errors
    /// If it has ended.
    pub fn children(&self) -> Result<Vec<i32>, ProcessError> {
        let mut children = match children_of(self.pid, &self.threads()?) {
            Ok(children) => children,
            // A kernel without these files.
            Err(_) => parents().remove(&self.pid).unwrap_or_default(),
        };
        children.sort_unstable();
        self.checked(children)
    }

    /// The ids of its children, their children and so on, at most `limit`, parents first. What ends
    /// meanwhile is left out, with what it leaves behind.
    ///
    /// # Errors
    /// If it has ended.
    pub fn descendants(&self, limit: usize) -> Result<Vec<i32>, ProcessError> {
        let found = descendants_of(&[self.pid], limit);
        match found.unseen.first() {
            Some((_, errno)) => Err(self.refused("to list its children", *errno)),
            None => self.checked(found.pids),
        }
    }

    /// The process that made it, or to which it was given.
    ///
    /// # Errors
    /// If it has ended.
    pub fn parent(&self) -> Result<i32, ProcessError> {
        Ok(self.stat()?.ppid)
    }

    /// When one of its threads started, in the kernel's clock ticks since boot; `None` if it is no
    /// thread of its, or has ended.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn thread_start_time(&self, tid: i32) -> Result<Option<u64>, ProcessError> {
        let path = format!("/proc/{}/task/{tid}/stat", self.pid);
        let text = match procfile::read_text(&path, 4_096) {
            Err(errno) if is_shortage(errno) => {
                return Err(self.refused("to see when a thread started", errno));
            }
            text => text.unwrap_or_default(),
        };
        self.checked(ThreadStat::of_text(&text).map(|stat| stat.start_ticks))
    }

    fn stat(&self) -> Result<ThreadStat, ProcessError> {
        let text = self.read("stat", "to read its state", 4_096)?;
        ThreadStat::of_text(&text).ok_or(ProcessError::Gone { pid: self.pid })
    }

    /// A file of its in procfs.
    pub(super) fn read(
        &self,
        file: &str,
        what: &'static str,
        limit: u64,
    ) -> Result<String, ProcessError> {
        let text = procfile::read_text(&format!("/proc/{}/{file}", self.pid), limit)
            .map_err(|errno| self.refused(what, errno))?;
        self.checked(text)
    }

    /// What was read by the id, if that was this process's.
    pub(super) fn checked<T>(&self, seen: T) -> Result<T, ProcessError> {
        if self.alive() { Ok(seen) } else { Err(ProcessError::Gone { pid: self.pid }) }
    }

    /// Whether one of its threads has ended, or is about to.
    pub(super) fn thread_ends(&self, tid: i32) -> bool {
        let stat = procfile::read_text(&format!("/proc/{}/task/{tid}/stat", self.pid), 4_096);
        match stat {
            // That this process cannot look says nothing of the other.
            Err(errno) if is_shortage(errno) => false,
            stat => {
                stat.ok().and_then(|text| ThreadStat::of_text(&text)).is_none_or(|stat| stat.ending)
            }
        }
    }

    /// Whether all of it has ended, or is about to.
    pub(super) fn ends(&self) -> bool {
        // Not by `threads`, which asks this when it is refused.
        let threads = procfile::numbers(&format!("/proc/{}/task", self.pid), MAX_THREADS);
        threads.is_ok_and(|threads| threads.iter().all(|tid| self.thread_ends(*tid)))
            || !self.alive()
    }

    /// What a refusal of the kernel's means. A process that is ending refuses everything, so its
    /// end comes first.
    pub fn refused(&self, what: &'static str, errno: Errno) -> ProcessError {
        let pid = self.pid;
        match errno {
            Errno::SRCH | Errno::NOENT => ProcessError::Gone { pid },
            Errno::MFILE => ProcessError::NoDescriptor { pid, what },
            _ if self.ends() => ProcessError::Gone { pid },
            Errno::ACCESS | Errno::PERM => {
                let comm = procfile::read_text(&format!("/proc/{pid}/comm"), 64);
                let comm = printable(&comm.unwrap_or_default());
                // The one does not open another user's /proc/PID/fd.
                let right = match Right::SysPtrace.held() && !Right::DacReadSearch.held() {
                    true => Right::DacReadSearch,
                    false => Right::SysPtrace,
                };
                ProcessError::Denied { pid, comm, what, right }
            }
            source => ProcessError::System { pid, what, source },
        }
    }

    /// What it means that one of its threads could not be moved.
    pub fn sched_refused(&self, error: SchedError) -> ProcessError {
        match error {
            SchedError::Affinity { source: Errno::PERM } => {
                let comm = self.comm().unwrap_or_default();
                let what = "to move a thread";
                ProcessError::Denied { pid: self.pid, comm, what, right: Right::SysNice }
            }
            SchedError::Affinity { source } => self.refused("to move a thread", source),
            error => ProcessError::Placement { pid: self.pid, source: error },
        }
    }

    pub(super) fn pidfd_ref(&self) -> &OwnedFd {
        &self.pidfd
    }
}

/// An id that a process or a thread could have.
pub(super) fn checked_id(pid: i32) -> Option<Pid> {
    // A negative one would make rustix panic.
    if pid > 0 { Pid::from_raw(pid) } else { None }
}

/// The ids of all processes of this pid namespace, in order.
pub fn all() -> Vec<i32> {
    procfile::numbers("/proc", MAX_PROCESSES).unwrap_or_default()
}

/// Descendants of processes.
#[derive(Debug, Default)]
pub struct Descendants {
    /// Their ids, parents first, without the processes themselves.
    pub pids: Vec<i32>,
    /// Processes whose children could not be listed, though they may have some, and why.
    pub unseen: Vec<(i32, Errno)>,
}

/// The descendants of several processes, at most `limit`.
pub fn descendants_of(roots: &[i32], limit: usize) -> Descendants {
    let mut seen: BTreeSet<i32> = roots.iter().copied().collect();
    let mut next: VecDeque<i32> = roots.iter().copied().collect();
    let mut found = Descendants::default();
    // Read once if it has to be: a scan of all processes.
    let mut scanned = None;
    while let Some(pid) = next.pop_front() {
        let threads = match procfile::numbers(&format!("/proc/{pid}/task"), MAX_THREADS) {
            Ok(threads) => threads,
            Err(errno) => {
                if is_shortage(errno) {
                    found.unseen.push((pid, errno));
                }
                continue;
            }
        };
        let children = match (&mut scanned, children_of(pid, &threads)) {
            (None, Ok(children)) => children,
            (_, Err(errno)) if is_shortage(errno) => {
                found.unseen.push((pid, errno));
                continue;
            }
            (scanned, _) => scanned.get_or_insert_with(parents).remove(&pid).unwrap_or_default(),
        };
        for child in children {
            if found.pids.len() == limit {
                return found;
            }
            if seen.insert(child) {
                found.pids.push(child);
                next.push_back(child);
            }
        }
    }
    found
}

/// The children that the threads of a process have, by the kernel's own list. A thread that has
/// ended has none; an error means that the kernel has no such lists.
fn children_of(pid: i32, threads: &[i32]) -> Result<Vec<i32>, Errno> {
    let mut children = Vec::new();
    for (place, tid) in threads.iter().enumerate() {
        match procfile::read_text(&format!("/proc/{pid}/task/{tid}/children"), MAX_CHILDREN) {
            Ok(text) => {
                let ids = text.split_ascii_whitespace().filter_map(|id| id.parse::<i32>().ok());
                children.extend(ids);
            }
            Err(Errno::NOENT) if place > 0 || !exists(pid, *tid) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(children)
}

fn exists(pid: i32, tid: i32) -> bool {
    rustix::fs::access(format!("/proc/{pid}/task/{tid}/stat"), rustix::fs::Access::EXISTS).is_ok()
}

/// All processes by their parent.
fn parents() -> BTreeMap<i32, Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in all() {
        let Ok(text) = procfile::read_text(&format!("/proc/{pid}/stat"), 4_096) else { continue };
        if let Some(stat) = ThreadStat::of_text(&text) {
            children.entry(stat.ppid).or_default().push(pid);
        }
    }
    children
}

fn thread_group(tid: i32) -> Option<i32> {
    let text = procfile::read_text(&format!("/proc/{tid}/status"), 4_096).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// A name as `/proc` gives it, made harmless.
pub(super) fn printable(text: &str) -> String {
    let text = text.strip_suffix('\n').unwrap_or(text);
    escaped(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(printable("ev\x1b[2Jil\n"), "ev\\u{1b}[2Jil");
    }

    #[test]
    fn no_process_has_such_an_id() {
        for pid in [0, -1, i32::MIN, i32::MAX] {
            let error = Process::open(pid).expect_err("no such id");
            assert!(error.is_gone(), "{pid}: {error}");
        }
    }

    #[test]
    fn a_thread_s_id_is_told_from_a_process_s() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = receive.recv();
        });
        let tid = told.recv().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let error = Process::open(tid).expect_err("a thread");
        assert!(matches!(error, ProcessError::Thread { pid, .. } if pid == own), "{error}");
        assert!(Process::open(own).unwrap().threads().unwrap().contains(&tid));
        drop(send);
        thread.join().unwrap();
    }
}
