//! Observes programs for a short window: reads their descriptors once, and samples their threads repeatedly.
//!
//! A duplicate of a program's descriptor is closed at once: a kept one would keep a connection, or a
//! suspension, alive after its owner closed it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::net::SocketType;

use super::facts::{Epoll, Known, Program, Socket, SocketKind, Thread, Wait};
use super::go_build_id;
use super::waits::Watch;
use napkin_kernel::process::{
    Descriptors, Kind, Params, Process, ProcessError, Timeout, Waits, socket,
};
use napkin_os::procfs::{self, Time};

/// The maximum number of descriptors of one program, and of members of one of its epolls.
const DESCRIPTORS: usize = 1 << 16;

/// The maximum number of sockets of one program: enough to see a pattern, at a few microseconds each.
const SOCKETS: usize = 4_096;

/// The interval between two samples of a program's threads.
const GAP: Duration = Duration::from_millis(10);

/// Observes a process for about `window`; `None` if it has ended.
pub(super) fn program(process: &Process, window: Duration) -> Option<Program> {
    let comm = process.comm().ok()?;
    let pid = process.pid();
    let (epolls, sockets) = match process.descriptors(DESCRIPTORS) {
        Ok(found) => descriptors(process, &found),
        Err(error) if error.is_gone() => return None,
        Err(error) => (Err(missing(&error)), Err(missing(&error))),
    };
    let tids = process.threads().ok()?;
    let used = |tid: &i32| Some((*tid, Time::read(pid, *tid)?.run_ns));
    let before: BTreeMap<i32, u64> = tids.iter().filter_map(used).collect();
    let (watch, uncounted) = match Watch::start(tids.iter().copied()) {
        Ok(watch) => (Some(watch), None),
        Err(missing) => (None, Some(missing)),
    };
    let start = Instant::now();
    let looks = u32::try_from(window.as_nanos() / GAP.as_nanos()).unwrap_or(u32::MAX).max(1);
    let seen = process.waits(looks, GAP);
    if seen.is_err() {
        // Without the privilege to sample, time must still pass to measure the CPU time.
        process.ends_within(window);
    }
    let window = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
    let counted = watch.map(Watch::finish).unwrap_or_default();
    let slept: Option<BTreeSet<i32>> = seen.as_ref().ok().map(asleep);
    let threads = tids
        .iter()
        .filter_map(|tid| {
            let used = Time::read(pid, *tid)?.run_ns.saturating_sub(*before.get(tid)?);
            Some(Thread {
                tid: *tid,
                cpus: napkin_os::sched::affinity(Some(*tid)).ok()?,
                permille: u32::try_from(used.saturating_mul(1_000) / window).unwrap_or(u32::MAX),
                slept: slept.as_ref().map(|slept| slept.contains(tid)),
            })
        })
        .collect();
    let waits = match seen {
        Ok(seen) => Ok(joined(&seen, counted)),
        // Counting needs no privilege to sample.
        Err(error) if counted.is_empty() => Err(missing(&error)),
        Err(_) => Ok(counted),
    };
    let go = go_build_id::is_go(pid);
    let command = command(pid);
    let cpuset = procfs::cpuset(pid);
    // What was read by process ID belongs to this process if it is still alive.
    process.alive().then_some(Program {
        pid,
        comm,
        command,
        cpuset,
        go,
        epolls,
        sockets,
        threads,
        waits,
        looks,
        uncounted,
    })
}

/// What is missing to read a process's sockets; `None` if they can be read.
pub(super) fn unseen(process: &Process) -> Option<String> {
    process.descriptors(1).err().map(|error| missing(&error))
}

/// Describes what was missing, in a few words.
fn missing(error: &ProcessError) -> String {
    match error {
        ProcessError::Denied { what, right, .. } => format!("{right}, {what}"),
        error => error.to_string(),
    }
}

/// The command line of a process; empty if it cannot be read.
fn command(pid: i32) -> Vec<String> {
    /// The options that matter come first.
    const LIMIT: usize = 16 << 10;
    let text = procfs::read_text(format!("/proc/{pid}/cmdline"), LIMIT).unwrap_or_default();
    text.split('\0').map(str::to_owned).collect()
}

/// The threads that slept at any sample.
fn asleep(seen: &Waits) -> BTreeSet<i32> {
    let waiting = seen.seen.iter().map(|(wait, _)| wait.tid);
    waiting.chain(seen.elsewhere.iter().copied()).collect()
}

/// Merges the counted calls with the waits of threads that slept through the window in a call that began
/// before.
fn joined(seen: &Waits, counted: Vec<Wait>) -> Vec<Wait> {
    let mut waits = counted;
    let called: BTreeSet<(i32, i32)> = waits.iter().map(|it| (it.tid, it.epoll)).collect();
    for (wait, times) in &seen.seen {
        if called.contains(&(wait.tid, wait.epfd)) {
            continue;
        }
        let timeout = match wait.timeout {
            Timeout::Infinite => None,
            Timeout::Nanoseconds(nanoseconds) => Some(nanoseconds),
            Timeout::Unknown => continue,
        };
        waits.push(Wait {
            tid: wait.tid,
            epoll: wait.epfd,
            maxevents: u32::try_from(wait.maxevents).unwrap_or(0),
            timeout,
            times: u64::from(*times),
        });
    }
    waits
}

/// Reads a process's epolls, and its sockets of this network namespace.
fn descriptors(process: &Process, found: &Descriptors) -> (Known<Vec<Epoll>>, Known<Vec<Socket>>) {
    let own = socket::own_netns_cookie();
    let mut sockets = Vec::new();
    let mut refused = None;
    // By inode: the member of an epoll may have been added under another number.
    let mut numbers = BTreeMap::new();
    for descriptor in found.sockets().take(SOCKETS) {
        let Kind::Socket(inode) = descriptor.kind else { continue };
        match process.take(&descriptor) {
            Ok(Some(taken)) => {
                let Ok(Some(socket)) = napkin_kernel::process::Socket::of(&taken) else { continue };
                if !socket.is_internet() || (own.is_some() && socket.netns_cookie != own) {
                    continue;
                }
                numbers.entry(inode).or_insert(descriptor.fd);
                sockets.push(Socket {
                    fd: descriptor.fd,
                    kind: kind(&socket),
                    local: socket.local.map(|it| it.ip()),
                    napi_id: socket.napi_id.unwrap_or(0),
                    busy_poll_usecs: socket.options.busy_poll_usecs,
                });
            }
            // Closed meanwhile.
            Ok(None) => {}
            Err(error) => refused = Some(missing(&error)),
        }
    }
    let mut epolls = Vec::new();
    for descriptor in found.epolls() {
        let params = match process.take(&descriptor) {
            Ok(Some(taken)) => match Params::get(&taken) {
                Ok(Some(params)) => Ok(params.into()),
                // The descriptor number belongs to something else by now.
                Ok(None) => continue,
                Err(errno) => Err(format!("EPIOCGPARAMS: {errno} (Linux 6.9 has it)")),
            },
            Ok(None) => continue,
            Err(error) => Err(missing(&error)),
        };
        let members = process.members(&descriptor, DESCRIPTORS).map(|it| it.list);
        let inodes = members.unwrap_or_default().into_iter().filter_map(|it| it.inode);
        let members = inodes.filter_map(|inode| numbers.get(&inode).copied()).collect();
        let always_ready = process.always_ready(&descriptor).map_err(|error| missing(&error));
        epolls.push(Epoll { fd: descriptor.fd, params, members, always_ready });
    }
    match refused {
        Some(missing) if sockets.is_empty() => (Ok(epolls), Err(missing)),
        _ => (Ok(epolls), Ok(sockets)),
    }
}

fn kind(socket: &napkin_kernel::process::Socket) -> SocketKind {
    let stream = socket.kind == SocketType::STREAM.as_raw();
    if socket.listening || (stream && socket.peer.is_none()) {
        SocketKind::Listener
    } else if stream {
        SocketKind::Stream
    } else {
        SocketKind::Datagram
    }
}
