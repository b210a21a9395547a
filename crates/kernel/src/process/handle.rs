//! A handle of a process.

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

/// Limit of threads per process that are listed.
const MAX_THREADS: usize = 1 << 16;

/// Limit of processes that are listed: twice the kernel's largest `pid_max`.
const MAX_PROCESSES: usize = 1 << 23;

/// Limit of a `children` file's size in bytes.
const MAX_CHILDREN: u64 = 4 << 20;

/// A process, identified by a pidfd.
///
/// After each read by its id, the pidfd is checked: if the process is still alive then, the id had not been reused
/// for another process when it was read.
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
    /// If there is no such process or it has ended (even if it is still a zombie), if the id is a thread's, or if
    /// the kernel has no pidfds (before 5.3).
    pub fn open(pid: i32) -> Result<Process, ProcessError> {
        let gone = ProcessError::Gone { pid };
        let Some(id) = checked_id(pid) else { return Err(gone) };
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => gone,
            // EINVAL before Linux 6.15, ENOENT since.
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

    /// Opens the process with this id if it started at `start_time`.
    ///
    /// # Errors
    /// As [`Process::open`]; [`ProcessError::Gone`] if another process has the id now.
    pub fn reopen(pid: i32, start_time: u64) -> Result<Process, ProcessError> {
        let process = Process::open(pid)?;
        if process.start_time == start_time { Ok(process) } else { Err(ProcessError::Gone { pid }) }
    }

    /// The process id. It may be reused once the process has ended and its parent has reaped it.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// The start time in the kernel's clock ticks since boot. Together with the id and the boot it identifies the
    /// process for ever.
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }

    /// The pidfd, to wait for the end of the process with `poll`.
    pub fn pidfd(&self) -> impl AsFd + '_ {
        &self.pidfd
    }

    /// Whether it is alive; a zombie is not.
    pub fn alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Whether it has ended, or does so within `timeout`.
    pub fn ends_within(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A signal may end the wait early, which is no error.
        poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Reads its name in the kernel: at most 15 bytes of the program's file name, unless the program changed it.
    /// Unprintable characters are escaped.
    ///
    /// # Errors
    /// If it has ended.
    pub fn comm(&self) -> Result<String, ProcessError> {
        let text = self.read("comm", "to read its name", 64)?;
        Ok(printable(&text))
    }

    /// Returns the inode of its network namespace.
    ///
    /// # Errors
    /// If it has ended, or belongs to another user.
    pub fn network_namespace(&self) -> Result<u64, ProcessError> {
        let stat = rustix::fs::stat(format!("/proc/{}/ns/net", self.pid))
            .map_err(|errno| self.refused("to see its network namespace", errno))?;
        self.if_alive(stat.st_ino)
    }

    /// Returns the ids of its threads in ascending order.
    ///
    /// # Errors
    /// If it has ended.
    pub fn threads(&self) -> Result<Vec<i32>, ProcessError> {
        let threads = procfile::numbers(&format!("/proc/{}/task", self.pid), MAX_THREADS)
            .map_err(|errno| self.refused("to list its threads", errno))?;
        self.if_alive(threads)
    }

    /// Returns the ids of its children in ascending order. Orphaned grandchildren are not included: the kernel
    /// reparents them to init, or to a subreaper.
    ///
    /// # Errors
    /// If it has ended.
    pub fn children(&self) -> Result<Vec<i32>, ProcessError> {
        let mut children = match read_children(self.pid, &self.threads()?) {
            Ok(children) => children,
            // This kernel has no such files.
            Err(_) => children_by_parent().remove(&self.pid).unwrap_or_default(),
        };
        children.sort_unstable();
        self.if_alive(children)
    }

    /// Returns the ids of its descendants, at most `limit`, parents first. A process that ends meanwhile is left
    /// out, with its descendants.
    ///
    /// # Errors
    /// If it has ended.
    pub fn descendants(&self, limit: usize) -> Result<Vec<i32>, ProcessError> {
        let found = descendants_of(&[self.pid], limit);
        match found.unseen.first() {
            Some((_, errno)) => Err(self.refused("to list its children", *errno)),
            None => self.if_alive(found.pids),
        }
    }

    /// Returns the id of its parent: its creator, or the process to which it was reparented.
    ///
    /// # Errors
    /// If it has ended.
    pub fn parent(&self) -> Result<i32, ProcessError> {
        Ok(self.stat()?.ppid)
    }

    /// Returns the start time of one of its threads in the kernel's clock ticks since boot; `None` if it has no
    /// such thread, or the thread has ended.
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
        self.if_alive(ThreadStat::of_text(&text).map(|stat| stat.start_ticks))
    }

    fn stat(&self) -> Result<ThreadStat, ProcessError> {
        let text = self.read("stat", "to read its state", 4_096)?;
        ThreadStat::of_text(&text).ok_or(ProcessError::Gone { pid: self.pid })
    }

    /// Reads one of its files in procfs.
    pub(super) fn read(
        &self,
        file: &str,
        what: &'static str,
        limit: u64,
    ) -> Result<String, ProcessError> {
        let text = procfile::read_text(&format!("/proc/{}/{file}", self.pid), limit)
            .map_err(|errno| self.refused(what, errno))?;
        self.if_alive(text)
    }

    /// Returns what was read by the id, if the process was still alive afterwards.
    pub(super) fn if_alive<T>(&self, seen: T) -> Result<T, ProcessError> {
        if self.alive() { Ok(seen) } else { Err(ProcessError::Gone { pid: self.pid }) }
    }

    /// Whether one of its threads has ended or is exiting.
    pub(super) fn thread_exits(&self, tid: i32) -> bool {
        let stat = procfile::read_text(&format!("/proc/{}/task/{tid}/stat", self.pid), 4_096);
        match stat {
            // A shortage in this process says nothing about the other one.
            Err(errno) if is_shortage(errno) => false,
            stat => stat
                .ok()
                .and_then(|text| ThreadStat::of_text(&text))
                .is_none_or(|stat| stat.exiting),
        }
    }

    /// Whether all of its threads have ended or are exiting.
    pub(super) fn exits(&self) -> bool {
        // `threads` cannot be used here: it calls this if it is refused.
        let threads = procfile::numbers(&format!("/proc/{}/task", self.pid), MAX_THREADS);
        threads.is_ok_and(|threads| threads.iter().all(|tid| self.thread_exits(*tid)))
            || !self.alive()
    }

    /// Converts an errno of an operation on this process. An exiting process causes all kinds of errors, so its end
    /// is checked first.
    pub fn refused(&self, what: &'static str, errno: Errno) -> ProcessError {
        let pid = self.pid;
        match errno {
            Errno::SRCH | Errno::NOENT => ProcessError::Gone { pid },
            Errno::MFILE => ProcessError::NoDescriptor { pid, what },
            _ if self.exits() => ProcessError::Gone { pid },
            Errno::ACCESS | Errno::PERM => {
                let comm = procfile::read_text(&format!("/proc/{pid}/comm"), 64);
                let comm = printable(&comm.unwrap_or_default());
                // CAP_SYS_PTRACE alone does not open another user's /proc/PID/fd.
                let right = match Right::SysPtrace.held() && !Right::DacReadSearch.held() {
                    true => Right::DacReadSearch,
                    false => Right::SysPtrace,
                };
                ProcessError::Denied { pid, comm, what, right }
            }
            source => ProcessError::System { pid, what, source },
        }
    }

    /// Converts the error of moving one of its threads.
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

/// Converts an id, unless no process or thread can have it.
pub(super) fn checked_id(pid: i32) -> Option<Pid> {
    // A negative one would make rustix panic.
    if pid > 0 { Pid::from_raw(pid) } else { None }
}

/// Returns the ids of all processes of this PID namespace in ascending order.
pub fn all() -> Vec<i32> {
    procfile::numbers("/proc", MAX_PROCESSES).unwrap_or_default()
}

/// Descendants of processes.
#[derive(Debug, Default)]
pub struct Descendants {
    /// Their ids, parents first, without the processes themselves.
    pub pids: Vec<i32>,
    /// Processes whose children could not be listed although they may have some, and the error.
    pub unseen: Vec<(i32, Errno)>,
}

/// Returns the descendants of several processes, at most `limit`.
pub fn descendants_of(roots: &[i32], limit: usize) -> Descendants {
    let mut seen: BTreeSet<i32> = roots.iter().copied().collect();
    let mut next: VecDeque<i32> = roots.iter().copied().collect();
    let mut found = Descendants::default();
    // A scan of all processes, made once if the kernel has no `children` files.
    let mut scan = None;
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
        let children = match (&mut scan, read_children(pid, &threads)) {
            (None, Ok(children)) => children,
            (_, Err(errno)) if is_shortage(errno) => {
                found.unseen.push((pid, errno));
                continue;
            }
            (scan, _) => {
                scan.get_or_insert_with(children_by_parent).remove(&pid).unwrap_or_default()
            }
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

/// Reads the children of all threads of a process from their `children` files. A thread that has ended has none; an
/// error means that the kernel has no such files.
fn read_children(pid: i32, threads: &[i32]) -> Result<Vec<i32>, Errno> {
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

/// Lists all processes by their parent.
fn children_by_parent() -> BTreeMap<i32, Vec<i32>> {
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

/// Escapes a name that was read from `/proc`.
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
        let (tid_sender, tid_receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tid_sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = receive.recv();
        });
        let tid = tid_receiver.recv().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let error = Process::open(tid).expect_err("a thread");
        assert!(matches!(error, ProcessError::Thread { pid, .. } if pid == own), "{error}");
        assert!(Process::open(own).unwrap().threads().unwrap().contains(&tid));
        drop(send);
        thread.join().unwrap();
    }
}
