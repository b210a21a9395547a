//! Finds the programs that starve an instance: those whose epoll contexts prefer busy polling and watch sockets
//! that receive from it. Also finds the members of these contexts that are always ready.
//!
//! Runs after the suspension was ended, since it takes some tens of milliseconds.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::doctor::Watch;
use napkin_kernel::process::{
    self, Descriptor, Kind, Params, Process, ProcessError, Ready, Socket,
};
use napkin_os::rights::Right;

/// The maximum number of descriptors inspected per process, and of members per context.
const MAX_DESCRIPTORS: usize = 4_096;

/// The maximum number of programs reported.
const MAX_CAUSES: usize = 4;

/// The time for which the waits on a context are counted.
const COUNT_WINDOW: Duration = Duration::from_millis(20);

/// A program that keeps an instance's interrupts suspended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cause {
    /// Process ID.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`: the kernel keeps 15 bytes.
    pub comm: String,
    /// Its threads that wait on the context; empty if they could not be determined.
    pub threads: Vec<i32>,
    /// The descriptor of the epoll context.
    pub epoll: i32,
    /// The members that are always ready.
    pub always_ready: Vec<Ready>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { pid, comm, threads, epoll, always_ready } = self;
        write!(f, "{comm}[{pid}]")?;
        match threads.as_slice() {
            [] => {}
            [one] => write!(f, " thread {one}")?,
            [first, rest @ ..] => write!(f, " thread {first} and {} more", rest.len())?,
        }
        write!(f, " waits on epoll {epoll}")?;
        match always_ready.as_slice() {
            [] => f.write_str(", which was never found with nothing ready"),
            [one] => write!(f, ", in which {one} is always ready"),
            [first, rest @ ..] => {
                write!(f, ", in which {first} and {} more are always ready", rest.len())
            }
        }
    }
}

/// Returns the causes for one instance, and the right that was missing to find more. If some contexts have
/// members that are always ready, only those are returned.
pub(super) fn of(napi_id: u32) -> (Vec<Cause>, Option<String>) {
    let owners = process::owners(MAX_DESCRIPTORS);
    let mut causes = Vec::new();
    for owner in owners.of(napi_id) {
        // A process that has ended meanwhile is not a cause any more.
        let Ok(process) = Process::open(owner.pid) else { continue };
        causes.extend(in_process(&process, &owner.comm, napi_id).unwrap_or_default());
    }
    // The other programs then only share the queue.
    if causes.iter().any(|cause| !cause.always_ready.is_empty()) {
        causes.retain(|cause| !cause.always_ready.is_empty());
    }
    causes.truncate(MAX_CAUSES);
    let denied = &owners.denied;
    let unseen = (!denied.is_empty() && !Right::SysPtrace.held())
        .then(|| format!("{}, to look at {denied} of other users", Right::SysPtrace));
    (causes, unseen)
}

fn in_process(process: &Process, comm: &str, napi_id: u32) -> Result<Vec<Cause>, ProcessError> {
    let found = process.descriptors(MAX_DESCRIPTORS)?;
    let mut receiving = BTreeSet::new();
    for socket in found.sockets() {
        let Kind::Socket(inode) = socket.kind else { continue };
        let Ok(Some(taken)) = process.take(&socket) else { continue };
        if let Ok(Some(socket)) = Socket::of(&taken)
            && socket.napi_id == Some(napi_id)
        {
            receiving.insert(inode);
        }
    }
    let mut contexts = Vec::new();
    for epoll in found.epolls() {
        // A context that cannot be inspected is skipped.
        let Ok(members) = process.members(&epoll, MAX_DESCRIPTORS) else { continue };
        let members = members.list;
        let receives = members.iter().any(|it| it.inode.is_some_and(|it| receiving.contains(&it)));
        if receives && prefers(process, &epoll).unwrap_or(false) {
            contexts.push(epoll);
        }
    }
    let mut causes = Vec::new();
    for epoll in contexts {
        causes.push(Cause {
            pid: process.pid(),
            comm: comm.to_owned(),
            threads: waiting(process, &epoll),
            epoll: epoll.fd,
            always_ready: process.always_ready(&epoll).unwrap_or_default(),
        });
    }
    Ok(causes)
}

fn prefers(process: &Process, epoll: &Descriptor) -> Result<bool, ProcessError> {
    let Some(taken) = process.take(epoll)? else { return Ok(false) };
    Ok(matches!(Params::get(&taken), Ok(Some(params)) if params.prefer_busy_poll))
}

/// Returns the threads that wait on a context, the most frequent first. Counts their calls: a thread that finds
/// an event each time never sleeps, so sampling would miss it.
fn waiting(process: &Process, epoll: &Descriptor) -> Vec<i32> {
    let threads = process.threads().unwrap_or_default();
    if let Ok(watch) = Watch::start(threads) {
        process.ends_within(COUNT_WINDOW);
        let mut waits = watch.finish();
        waits.retain(|wait| wait.epoll == epoll.fd);
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.times));
        return distinct(waits.into_iter().map(|wait| wait.tid));
    }
    let seen = process.waits(4, COUNT_WINDOW / 4).unwrap_or_default();
    distinct(seen.on(epoll.fd).map(|wait| wait.tid))
}

fn distinct(tids: impl Iterator<Item = i32>) -> Vec<i32> {
    let mut seen = Vec::new();
    for tid in tids {
        if !seen.contains(&tid) {
            seen.push(tid);
        }
    }
    seen
}
