//! Detection of epoll members that are always ready.
//!
//! It works from outside, with `poll` and no timeout on duplicates of the context and of its members. That takes no
//! event from the program, wakes nothing and sends nothing. A level-triggered member that is ready stays in the
//! context's ready list until the program handles it; one that requests `EPOLLOUT` on a writable descriptor is always
//! ready. An edge-triggered member (`EPOLLET`) leaves the list once it has been reported, so it is never listed here.

use std::fmt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use serde::Serialize;

use super::descriptor::Descriptor;
use super::epoll::Member;
use super::error::ProcessError;
use super::handle::Process;

const EPOLLIN: u32 = 1;
const EPOLLOUT: u32 = 4;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLET: u32 = 1 << 31;

/// Number of samples of a context, and the gap between them. A program that serves its descriptors has an empty
/// ready list now and then, at least before a wait that sleeps.
const SAMPLES: u32 = 8;
const SAMPLE_GAP: Duration = Duration::from_millis(2);

/// Limit of members of one context that are checked.
const MAX_MEMBERS: usize = 4_096;

/// A member that was ready at every sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ready {
    /// Its descriptor number in the program.
    pub fd: i32,
    /// Whether it is readable, and that was requested (`EPOLLIN`).
    pub readable: bool,
    /// Whether it is writable, and that was requested (`EPOLLOUT`).
    pub writable: bool,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = match (self.readable, self.writable) {
            (true, true) => "EPOLLIN, EPOLLOUT",
            (true, false) => "EPOLLIN",
            (false, true) => "EPOLLOUT",
            // Both are reported even if they were not requested.
            (false, false) => "EPOLLERR or EPOLLHUP",
        };
        write!(f, "{} ({events})", self.fd)
    }
}

impl Process {
    /// Returns the level-triggered members of an epoll context that are ready at each of several samples, within 20
    /// ms; empty if nothing was ready in the context at one of them, or if it was closed.
    ///
    /// A connection that receives data all the time looks the same and is included.
    ///
    /// # Errors
    /// If the process has ended, or is not accessible.
    pub fn always_ready(&self, epoll: &Descriptor) -> Result<Vec<Ready>, ProcessError> {
        let mut always: Option<Vec<Ready>> = None;
        for sample in 0..SAMPLES {
            if sample > 0 && self.ends_within(SAMPLE_GAP) {
                return Err(ProcessError::Gone { pid: self.pid() });
            }
            let Some(taken) = self.take(epoll)? else { return Ok(Vec::new()) };
            if poll_now(&taken, PollFlags::IN).is_empty() {
                return Ok(Vec::new());
            }
            drop(taken);
            let ready = self.ready_members(epoll)?;
            always = Some(match always {
                None => ready,
                Some(always) => always.into_iter().filter(|it| ready.contains(it)).collect(),
            });
            if always.as_ref().is_some_and(Vec::is_empty) {
                break;
            }
        }
        Ok(always.unwrap_or_default())
    }

    fn ready_members(&self, epoll: &Descriptor) -> Result<Vec<Ready>, ProcessError> {
        let mut ready = Vec::new();
        for member in self.members(epoll, MAX_MEMBERS)?.list {
            if !is_level_triggered(member.events) {
                continue;
            }
            let Some(taken) = self.take_fd(epoll.tid, member.fd)? else { continue };
            // The number may have been reused.
            let inode = rustix::fs::fstat(&taken).map(|stat| stat.st_ino);
            if member.inode.is_some() && inode.ok() == member.inode {
                ready.extend(reported(&member, poll_now(&taken, requested(member.events))));
            }
        }
        ready.sort_unstable();
        ready.dedup();
        Ok(ready)
    }
}

/// Whether a member stays in the ready list while it is ready: it is neither edge-triggered nor one-shot.
fn is_level_triggered(events: u32) -> bool {
    const NOT_LEVEL: u32 = EPOLLET | EPOLLONESHOT;
    events & NOT_LEVEL == 0
}

fn requested(events: u32) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, events & EPOLLIN != 0);
    flags.set(PollFlags::OUT, events & EPOLLOUT != 0);
    flags
}

/// Returns the events of a descriptor that are ready now.
fn poll_now(descriptor: &OwnedFd, requested: PollFlags) -> PollFlags {
    let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), requested)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&at_once)) {
        Ok(1..) => polled[0].revents(),
        _ => PollFlags::empty(),
    }
}

fn reported(member: &Member, ready: PollFlags) -> Option<Ready> {
    let failed = PollFlags::ERR | PollFlags::HUP;
    (!ready.is_empty() && ready.intersects(requested(member.events) | failed)).then_some(Ready {
        fd: member.fd,
        readable: ready.contains(PollFlags::IN),
        writable: ready.contains(PollFlags::OUT),
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::pipe::pipe;

    use super::super::Kind;
    use super::*;

    /// Returns the always-ready members of a new epoll context of this process.
    fn always_ready_members(members: &[(&OwnedFd, EventFlags)]) -> Vec<String> {
        let context = epoll::create(CreateFlags::CLOEXEC).expect("a context");
        for (member, events) in members {
            epoll::add(&context, member, EventData::new_u64(0), *events).expect("added");
        }
        let pid = i32::try_from(std::process::id()).expect("an id");
        let own = Process::open(pid).expect("this process");
        let epoll = Descriptor { tid: pid, fd: context.as_raw_fd(), kind: Kind::Epoll };
        own.always_ready(&epoll).expect("its own").iter().map(Ready::to_string).collect()
    }

    #[test]
    fn a_pipe_that_can_be_written_to_is_always_ready_unless_edge_triggered() {
        let (end, start) = pipe().expect("a pipe");
        let fd = start.as_raw_fd();
        assert_eq!(
            always_ready_members(&[(&start, EventFlags::OUT)]),
            [format!("{fd} (EPOLLOUT)")]
        );
        assert_eq!(always_ready_members(&[(&start, EventFlags::OUT | EventFlags::ET)]), [""; 0]);
        assert_eq!(
            always_ready_members(&[(&start, EventFlags::OUT | EventFlags::ONESHOT)]),
            [""; 0]
        );
        assert_eq!(always_ready_members(&[(&end, EventFlags::IN)]), [""; 0], "nothing was written");
        rustix::io::write(&start, b"x").expect("written");
        let both = always_ready_members(&[(&end, EventFlags::IN), (&start, EventFlags::OUT)]);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both.contains(&format!("{} (EPOLLIN)", end.as_raw_fd())), "{both:?}");
        drop(end);
        // A child that another test has forked also holds the read end until its `exec`.
        let mut gone = [PollFd::new(&start, PollFlags::empty())];
        let within = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut gone, Some(&within)), Ok(1), "a reader is left");
        let alone = always_ready_members(&[(&start, EventFlags::empty())]);
        assert_eq!(alone, [format!("{fd} (EPOLLERR or EPOLLHUP)")]);
    }

    #[test]
    fn a_context_with_nothing_in_it_has_nothing_ready() {
        assert_eq!(always_ready_members(&[]), [""; 0]);
    }
}
