//! One thing that is set in a process, and how to put it back.

use std::fmt;
use std::io;

use napkin_os::procfs::cpuset;
use napkin_os::sched::{CpuList, left_of};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use napkin_kernel::process::{Params, Process, ProcessError, SocketOptions};
use napkin_kernel::sysfs::online_cpus;

/// What was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", tag = "what")]
pub enum What {
    /// The parameters of an epoll context.
    Epoll {
        /// The thread in whose descriptor table it is: the process's id, but for a thread with a
        /// table of its own.
        tid: i32,
        /// Its number in the program's table, a name in `/proc/PID/fd`.
        fd: i32,
        /// As it was.
        old: Params,
        /// As it was set.
        new: Params,
    },
    /// The busy-poll options of a socket.
    Socket {
        /// The thread in whose descriptor table it is.
        tid: i32,
        /// Its number in the program's table, a name in `/proc/PID/fd`.
        fd: i32,
        /// Its inode, which no other socket has while it lives.
        inode: u64,
        /// As they were. The budget, which nobody can read, as a new socket's is.
        old: SocketOptions,
        /// As they were set.
        new: SocketOptions,
    },
    /// The CPUs of a thread.
    Affinity {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
        /// When it started, in the kernel's clock ticks since boot.
        thread_start_time: u64,
        /// As they were.
        old: Vec<usize>,
        /// As they were set.
        new: Vec<usize>,
        /// When they were set, in ticks since the boot: what the thread has begun since has them, too.
        /// Not in an older napkin's journal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
    },
}

/// A change in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessChange {
    /// The process's id.
    pub pid: i32,
    /// When it started, in the kernel's clock ticks since boot: with the id, one process only.
    pub start_time: u64,
    /// What was changed, from what to what.
    #[serde(flatten)]
    pub what: What,
}

/// Who writes changes down, so that they can be put back after a crash.
pub trait Recorder {
    /// Writes a change down before it is made; it is not made if this fails. A change that was
    /// written down may not have been made.
    ///
    /// # Errors
    /// If it cannot be written.
    fn before(&mut self, change: &ProcessChange) -> io::Result<()>;

    /// The process has ended, or everything that this recorder was told of was put back: none of it
    /// is needed any more.
    ///
    /// # Errors
    /// If that cannot be written.
    fn finished(&mut self, pid: i32, start_time: u64) -> io::Result<()>;
}

/// What became of putting a change back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restored {
    /// It is as it was.
    Done,
    /// The process has ended, or closed the descriptor, or the thread has ended.
    Gone,
    /// It is neither as it was nor as it was set: left as it is.
    Changed {
        /// How it is now.
        now: String,
    },
}

impl ProcessChange {
    /// Whether anything was changed: a context or a socket that the program itself had set as napkin
    /// would have is written down with the same before and after, so that it is left.
    pub fn is_change(&self) -> bool {
        match &self.what {
            What::Epoll { old, new, .. } => old != new,
            What::Socket { old, new, .. } => old != new,
            What::Affinity { old, new, .. } => old != new,
        }
    }

    /// Puts it back, if the same process has there exactly what was set.
    ///
    /// # Errors
    /// If the process may not be reached, or the kernel refuses.
    pub fn restore(&self) -> Result<Restored, ProcessError> {
        self.restore_from(false)
    }

    /// Puts it back, whatever the same process has there now.
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

    /// [`ProcessChange::restore`] of a process that is open; with `any`, [`ProcessChange::force`].
    ///
    /// # Errors
    /// As there.
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
    /// What names the thing in its process: a kind, a thread and a number.
    pub(crate) const fn place(&self) -> (u8, i32, u64) {
        match self {
            What::Epoll { tid, fd, .. } => (0, *tid, *fd as u64),
            What::Socket { inode, .. } => (1, 0, *inode),
            What::Affinity { tid, thread_start_time, .. } => (2, *tid, *thread_start_time),
        }
    }
}

impl What {
    /// `epoll 5: busy poll 64 us, budget 8, prefer -> busy poll 0 us, budget 0`: what putting it
    /// back does.
    pub fn back(&self) -> String {
        match self {
            What::Epoll { old, .. } => format!("{self} -> {old}"),
            What::Socket { old, .. } => format!("{self} -> {old}"),
            What::Affinity { old, .. } => format!("{self} -> {}", CpuList(old.clone())),
        }
    }
}

impl fmt::Display for What {
    /// `epoll 5: busy poll 0 us, budget 64, prefer`: what was set.
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
    // Another socket may have the number by now.
    if rustix::fs::fstat(taken).map_err(refused)?.st_ino != inode {
        return Ok(Restored::Gone);
    }
    let now = SocketOptions::get(taken).map_err(refused)?;
    // Each option is set by a call of its own, so a napkin that was killed may have come to one and
    // not to the next; and somebody else may have set one of them.
    let back = if any {
        old
    } else {
        SocketOptions {
            busy_poll_usecs: back(now.busy_poll_usecs, old.busy_poll_usecs, new.busy_poll_usecs),
            prefer_busy_poll: back(
                now.prefer_busy_poll,
                old.prefer_busy_poll,
                new.prefer_busy_poll,
            ),
            // Nobody can read it: it goes with the others.
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

/// What an option becomes: as it was, if it is as it was set.
fn back<T: Copy + PartialEq>(now: T, old: T, new: T) -> T {
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
    if now != new && !any && !is_hidden(tid, &now, old, new) {
        // An earlier restore gave it what there is of its CPUs.
        return Ok(match now == still_there(tid, old) {
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

/// Whether a thread has the CPUs of a cpuset that has none of those that it was given: the kernel remembers these, and
/// gives it them again when the cpuset has them.
fn is_hidden(tid: i32, now: &[usize], old: &[usize], new: &[usize]) -> bool {
    let has = |all: &[usize], cpus: &[usize]| cpus.iter().any(|cpu| all.contains(cpu));
    cpuset(tid).is_some_and(|all| now == all && has(&all, old) && !has(&all, new))
}

/// What a thread can have now of the CPUs that it had: those that are on, and in its cpuset.
fn still_there(tid: i32, cpus: &[usize]) -> Vec<usize> {
    let on = left_of(cpus, &online_cpus());
    match cpuset(tid) {
        Some(cpuset) => left_of(&on, &cpuset),
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
            // Who may not prefer busy polling cannot come to where it would have to be put back.
            now.set(&socket).ok()?;
            let taken = OwnedFd::from(socket.try_clone().unwrap());
            let outcome = restore_socket(&own, &taken, inode, old, new, false).unwrap();
            Some((outcome, SocketOptions::get(&socket).unwrap()))
        };
        let changed = |now: SocketOptions| Restored::Changed { now: now.to_string() };
        // The time needs no right: somebody else's stays, and is told of.
        assert_eq!(restored(usecs(50), usecs(0), usecs(50)), Some((Restored::Done, usecs(0))));
        let theirs = Some((changed(usecs(7)), usecs(7)));
        assert_eq!(restored(usecs(7), usecs(0), usecs(50)), theirs);
        // With the right to prefer: died between the two, and somebody else's time with our
        // preference.
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
        // No machine of the tests has so many.
        let old = [&usable[..], &[1_023]].concat();
        let put_back = || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            napkin_os::sched::pin(None, &usable[..1]).unwrap();
            // Twice is once: what it has then is not somebody else's doing.
            for _ in 0..2 {
                let outcome = restore_affinity(&own, tid, &old, &usable[..1], false).unwrap();
                assert_eq!(outcome, Restored::Done);
                assert_eq!(napkin_os::sched::usable_cpus(), usable);
            }
        };
        // On a thread that has a CPU of its own and ends with it.
        std::thread::scope(|scope| scope.spawn(put_back).join().expect("no panic"));
    }

    #[test]
    fn a_process_that_is_gone_needs_nothing() {
        // Its id is this process's, and its start time is another's.
        let own = i32::try_from(std::process::id()).unwrap();
        let change = ProcessChange { pid: own, start_time: 1, ..epoll(5, 64) };
        assert_eq!(change.restore().unwrap(), Restored::Gone);
    }
}
