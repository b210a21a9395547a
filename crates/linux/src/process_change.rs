//! A setting changed in a process, and how to put it back.

use std::fmt;
use std::io;

use napkin_os::procfs::cpuset;
use napkin_os::sched::{CpuList, still_available};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use napkin_kernel::process::{Params, Process, ProcessError, SocketOptions};
use napkin_kernel::sysfs::online_cpus;

/// The setting, with its value before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", tag = "what")]
pub enum What {
    /// The parameters of an epoll context.
    Epoll {
        /// The thread whose descriptor table holds it: the process's id, unless the thread has a table of its
        /// own.
        tid: i32,
        /// Its descriptor, a name in `/proc/PID/fd`.
        fd: i32,
        /// The previous parameters.
        old: Params,
        /// The parameters that were set.
        new: Params,
    },
    /// The busy-poll options of a socket.
    Socket {
        /// The thread whose descriptor table holds it.
        tid: i32,
        /// Its descriptor, a name in `/proc/PID/fd`.
        fd: i32,
        /// Its inode, unique among the sockets that exist.
        inode: u64,
        /// The previous options. The budget cannot be read, and is assumed to be that of a new socket.
        old: SocketOptions,
        /// The options that were set.
        new: SocketOptions,
    },
    /// The CPUs of a thread.
    Affinity {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
        /// Start time, in clock ticks since boot.
        thread_start_time: u64,
        /// The previous CPUs.
        old: Vec<usize>,
        /// The CPUs that were set.
        new: Vec<usize>,
        /// When they were set, in ticks since boot: threads that it started later inherited them. Absent in
        /// journals of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
    },
}

/// A change of one setting in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessChange {
    /// Process ID.
    pub pid: i32,
    /// Start time in clock ticks since boot: with the id, it identifies one process.
    pub start_time: u64,
    /// The changed setting.
    #[serde(flatten)]
    pub what: What,
}

/// Records changes before they are made, so that they can be put back after a crash.
pub trait Recorder {
    /// Records a change before it is made. If this fails, the change is not made. A recorded change may never
    /// have been made.
    ///
    /// # Errors
    /// If the record cannot be written.
    fn before(&mut self, change: &ProcessChange) -> io::Result<()>;

    /// Discards the records of a process: it has ended, or all its recorded changes were put back.
    ///
    /// # Errors
    /// If this cannot be written.
    fn finished(&mut self, pid: i32, start_time: u64) -> io::Result<()>;
}

/// The outcome of putting a change back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restored {
    /// The setting has its previous value.
    Done,
    /// The process has ended, or closed the descriptor, or the thread has ended.
    Gone,
    /// It has neither the previous value nor the one that was set, and is left alone.
    Changed {
        /// The current value.
        now: String,
    },
}

impl ProcessChange {
    /// Whether the value differs. A context or a socket that the program itself had set to the wanted value is
    /// recorded with the same value before and after, so that it is left alone.
    pub fn is_change(&self) -> bool {
        match &self.what {
            What::Epoll { old, new, .. } => old != new,
            What::Socket { old, new, .. } => old != new,
            What::Affinity { old, new, .. } => old != new,
        }
    }

    /// Puts it back, if the same process still has exactly the value that was set.
    ///
    /// # Errors
    /// If the process is not accessible, or the kernel refuses.
    pub fn restore(&self) -> Result<Restored, ProcessError> {
        self.restore_from(false)
    }

    /// Puts it back, whatever value the same process has there now.
    ///
    /// # Errors
    /// As [`ProcessChange::restore`].
    pub fn force(&self) -> Result<Restored, ProcessError> {
        self.restore_from(true)
    }

    fn restore_from(&self, any: bool) -> Result<Restored, ProcessError> {
        match Process::reopen(self.pid, self.start_time) {
            Ok(process) => self.restore_in(&process, any),
            Err(error) if error.is_gone() => Ok(Restored::Gone),
            Err(error) => Err(error),
        }
    }

    /// [`ProcessChange::restore`] for a process that is open; with `any`, [`ProcessChange::force`].
    ///
    /// # Errors
    /// As [`ProcessChange::restore`].
    pub(crate) fn restore_in(
        &self,
        process: &Process,
        any: bool,
    ) -> Result<Restored, ProcessError> {
        let restored = match &self.what {
            What::Epoll { tid, fd, old, new } => match process.take_fd(*tid, *fd) {
                Ok(None) => Ok(Restored::Gone),
                Ok(Some(taken)) => restore_epoll(process, &taken, *old, *new, any),
                Err(error) => Err(error),
            },
            What::Socket { tid, fd, inode, old, new } => match process.take_fd(*tid, *fd) {
                Ok(None) => Ok(Restored::Gone),
                Ok(Some(taken)) => restore_socket(process, &taken, *inode, *old, *new, any),
                Err(error) => Err(error),
            },
            What::Affinity { tid, thread_start_time, old, new, .. } => {
                match process.thread_start_time(*tid) {
                    Ok(Some(started)) if started == *thread_start_time => {
                        restore_affinity(process, *tid, old, new, any)
                    }
                    Ok(_) => Ok(Restored::Gone),
                    Err(error) => Err(error),
                }
            }
        };
        match restored {
            Err(error) if error.is_gone() => Ok(Restored::Gone),
            restored => restored,
        }
    }
}

impl What {
    /// Identifies the setting within its process: a kind, a thread and a number.
    pub(crate) const fn place(&self) -> (u8, i32, u64) {
        match self {
            What::Epoll { tid, fd, .. } => (0, *tid, *fd as u64),
            What::Socket { inode, .. } => (1, 0, *inode),
            What::Affinity { tid, thread_start_time, .. } => (2, *tid, *thread_start_time),
        }
    }
}

impl What {
    /// Describes putting it back: `epoll 5: busy poll 64 us, budget 8, prefer -> busy poll 0 us, budget 0`.
    pub fn back(&self) -> String {
        match self {
            What::Epoll { old, .. } => format!("{self} -> {old}"),
            What::Socket { old, .. } => format!("{self} -> {old}"),
            What::Affinity { old, .. } => format!("{self} -> {}", CpuList(old.clone())),
        }
    }
}

impl fmt::Display for What {
    /// Formats what was set: `epoll 5: busy poll 0 us, budget 64, prefer`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Epoll { fd, new, .. } => write!(f, "epoll {fd}: {new}"),
            What::Socket { fd, new, .. } => write!(f, "socket {fd}: {new}"),
            What::Affinity { tid, new, .. } => {
                write!(f, "thread {tid}: CPU {}", CpuList(new.clone()))
            }
        }
    }
}

fn restore_epoll(
    process: &Process,
    taken: &OwnedFd,
    old: Params,
    new: Params,
    any: bool,
) -> Result<Restored, ProcessError> {
    let refused = |errno: Errno| process.refused("to put back an epoll context", errno);
    match Params::get(taken).map_err(refused)? {
        None => Ok(Restored::Gone),
        Some(now) if now == old => Ok(Restored::Done),
        Some(now) if now != new && !any => Ok(Restored::Changed { now: now.to_string() }),
        Some(_) => match old.set(taken).map_err(refused)? {
            true => Ok(Restored::Done),
            false => Ok(Restored::Gone),
        },
    }
}

fn restore_socket(
    process: &Process,
    taken: &OwnedFd,
    inode: u64,
    old: SocketOptions,
    new: SocketOptions,
    any: bool,
) -> Result<Restored, ProcessError> {
    let refused = |errno: Errno| process.refused("to put back a socket", errno);
    // The descriptor number may belong to another socket by now.
    if rustix::fs::fstat(taken).map_err(refused)?.st_ino != inode {
        return Ok(Restored::Gone);
    }
    let now = SocketOptions::get(taken).map_err(refused)?;
    // Each option takes a `setsockopt` of its own, so a napkin that was killed may have set some of them only,
    // and another program may have changed one of them.
    let back = if any {
        old
    } else {
        SocketOptions {
            busy_poll_usecs: restored_option(
                now.busy_poll_usecs,
                old.busy_poll_usecs,
                new.busy_poll_usecs,
            ),
            prefer_busy_poll: restored_option(
                now.prefer_busy_poll,
                old.prefer_busy_poll,
                new.prefer_busy_poll,
            ),
            // The kernel does not report it: it is put back with the others.
            busy_poll_budget: old.busy_poll_budget,
        }
    };
    let seen = |options: SocketOptions| SocketOptions { busy_poll_budget: None, ..options };
    let left = seen(back) != seen(old);
    if seen(back) != now || !left {
        back.set(taken).map_err(refused)?;
    }
    Ok(if left { Restored::Changed { now: seen(back).to_string() } } else { Restored::Done })
}

/// Returns the previous value of an option if its current value is the one that was set, otherwise the current
/// value.
fn restored_option<T: Copy + PartialEq>(now: T, old: T, new: T) -> T {
    if now == new { old } else { now }
}

fn restore_affinity(
    process: &Process,
    tid: i32,
    old: &[usize],
    new: &[usize],
    any: bool,
) -> Result<Restored, ProcessError> {
    // The thread may end at any moment.
    let Ok(now) = napkin_os::sched::affinity(Some(tid)) else { return Ok(Restored::Gone) };
    if now == old {
        return Ok(Restored::Done);
    }
    if now != new && !any && !is_hidden_by_cpuset(tid, &now, old, new) {
        // An earlier restore gave it those of its CPUs that are available.
        return Ok(match now == available_cpus(tid, old) {
            true => Restored::Done,
            false => Restored::Changed { now: format!("CPU {}", CpuList(now)) },
        });
    }
    match napkin_os::sched::unpin(Some(tid), old) {
        Ok(()) => Ok(Restored::Done),
        Err(napkin_os::sched::SchedError::Affinity { source: Errno::SRCH }) => Ok(Restored::Gone),
        Err(error) => Err(process.sched_refused(error)),
    }
}

/// Whether a thread runs on its whole cpuset because the cpuset contains none of the CPUs that were set. The
/// kernel remembers them, and applies them when the cpuset has them again.
fn is_hidden_by_cpuset(tid: i32, now: &[usize], old: &[usize], new: &[usize]) -> bool {
    let has = |all: &[usize], cpus: &[usize]| cpus.iter().any(|cpu| all.contains(cpu));
    cpuset(tid).is_some_and(|all| now == all && has(&all, old) && !has(&all, new))
}

/// Returns those of a thread's previous CPUs that it can have now: online, and in its cpuset.
fn available_cpus(tid: i32, cpus: &[usize]) -> Vec<usize> {
    let on = still_available(cpus, &online_cpus());
    match cpuset(tid) {
        Some(cpuset) => still_available(&on, &cpuset),
        None => on,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(what: What) -> ProcessChange {
        ProcessChange { pid: 7, start_time: 8, what }
    }

    fn epoll(fd: i32, budget: u16) -> ProcessChange {
        let new = Params { busy_poll_budget: budget, ..Params::default() };
        change(What::Epoll { tid: 7, fd, old: Params::default(), new })
    }

    #[test]
    fn a_change_is_written_and_read() {
        let options = SocketOptions { busy_poll_usecs: 5, ..SocketOptions::default() };
        let socket =
            What::Socket { tid: 7, fd: 3, inode: 99, old: SocketOptions::default(), new: options };
        let affinity = |since| {
            let (old, new) = (vec![0, 1], vec![1]);
            change(What::Affinity { tid: 7, thread_start_time: 1, old, new, since })
        };
        for change in [epoll(5, 64), change(socket), affinity(Some(9)), affinity(None)] {
            let text = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<ProcessChange>(&text).unwrap(), change, "{text}");
        }
        let text = serde_json::to_string(&epoll(5, 64)).unwrap();
        assert_eq!(
            text,
            r#"{"pid":7,"start-time":8,"what":"epoll","tid":7,"fd":5,"old":{"busy-poll-usecs":0,"busy-poll-budget":0,"prefer-busy-poll":false},"new":{"busy-poll-usecs":0,"busy-poll-budget":64,"prefer-busy-poll":false}}"#
        );
    }

    #[test]
    fn a_place_is_the_same_whatever_is_set_there() {
        assert_eq!(epoll(5, 64).what.place(), epoll(5, 8).what.place());
        assert_ne!(epoll(5, 64).what.place(), epoll(6, 64).what.place());
    }

    #[test]
    fn each_option_of_a_socket_is_judged_alone() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let usecs = |busy_poll_usecs| SocketOptions { busy_poll_usecs, ..SocketOptions::default() };
        let set = SocketOptions { prefer_busy_poll: true, ..usecs(50) };
        let restored = |now: SocketOptions, old: SocketOptions, new: SocketOptions| {
            // Without the right to prefer busy polling, there is nothing to put back.
            now.set(&socket).ok()?;
            let taken = OwnedFd::from(socket.try_clone().unwrap());
            let outcome = restore_socket(&own, &taken, inode, old, new, false).unwrap();
            Some((outcome, SocketOptions::get(&socket).unwrap()))
        };
        let changed = |now: SocketOptions| Restored::Changed { now: now.to_string() };
        // `SO_BUSY_POLL` needs no right here: another program's value stays, and is reported.
        assert_eq!(restored(usecs(50), usecs(0), usecs(50)), Some((Restored::Done, usecs(0))));
        let expected = Some((changed(usecs(7)), usecs(7)));
        assert_eq!(restored(usecs(7), usecs(0), usecs(50)), expected);
        // With the right to prefer: napkin died between the two options; and another program set the time while
        // napkin's preference is in place.
        let died = SocketOptions { prefer_busy_poll: true, ..usecs(3) };
        let seen = restored(died, usecs(3), set);
        assert!(seen.is_none_or(|it| it == (Restored::Done, usecs(3))));
        let seen = restored(SocketOptions { prefer_busy_poll: true, ..usecs(7) }, usecs(3), set);
        assert!(seen.is_none_or(|it| it == (changed(usecs(7)), usecs(7))));
    }

    #[test]
    fn a_thread_gets_back_those_of_its_cpus_that_are_still_there() {
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let usable = napkin_os::sched::usable_cpus();
        // A CPU number that no test host has.
        let old = [&usable[..], &[1_023]].concat();
        let put_back = || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            napkin_os::sched::pin(None, &usable[..1]).unwrap();
            // Repeating it has no effect: the CPUs that it has after the first time are not taken for another
            // program's.
            for _ in 0..2 {
                let outcome = restore_affinity(&own, tid, &old, &usable[..1], false).unwrap();
                assert_eq!(outcome, Restored::Done);
                assert_eq!(napkin_os::sched::usable_cpus(), usable);
            }
        };
        // In a thread of its own, so that the affinity ends with it.
        std::thread::scope(|scope| scope.spawn(put_back).join().expect("no panic"));
    }

    #[test]
    fn a_process_that_is_gone_needs_nothing() {
        // The id is this process's, the start time is not.
        let own = i32::try_from(std::process::id()).unwrap();
        let change = ProcessChange { pid: own, start_time: 1, ..epoll(5, 64) };
        assert_eq!(change.restore().unwrap(), Restored::Gone);
    }
}
