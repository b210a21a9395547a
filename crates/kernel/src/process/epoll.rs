//! The busy-poll parameters of an epoll context, and its members.

use std::fmt;

use napkin_os::last_error;
use napkin_policy::EpollPolicy;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::descriptor::Descriptor;
use super::error::ProcessError;
use super::handle::Process;
use super::procfile;

/// Upper bound of a member's line in `fdinfo`, in bytes.
const MEMBER_BYTES: u64 = 128;

/// The busy-poll parameters of an epoll context (`EPIOCSPARAMS`, Linux 6.9). They belong to the open file, so that
/// all descriptors of it share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Params {
    /// Longest busy poll in the kernel's microseconds (1.024 us each); at most `i32::MAX`.
    pub busy_poll_usecs: u32,
    /// Packets per poll; 0 means 8; more than 64 needs `CAP_NET_ADMIN`.
    pub busy_poll_budget: u16,
    /// Whether to prefer busy polling over softirqs.
    pub prefer_busy_poll: bool,
}

impl From<EpollPolicy> for Params {
    fn from(policy: EpollPolicy) -> Params {
        // No kernel has a parameter for `keep_napi_id`: `support` refuses policies with it.
        let EpollPolicy { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, .. } = policy;
        Params { busy_poll_usecs, busy_poll_budget, prefer_busy_poll }
    }
}

impl From<Params> for EpollPolicy {
    fn from(params: Params) -> EpollPolicy {
        let Params { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = params;
        EpollPolicy { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, keep_napi_id: false }
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Params { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = self;
        let prefer = if *prefer_busy_poll { "prefer" } else { "not preferred" };
        write!(f, "busy poll {busy_poll_usecs} us, budget {busy_poll_budget}, {prefer}")
    }
}

impl Params {
    /// Reads the parameters; `None` if the descriptor is not an epoll context.
    ///
    /// # Errors
    /// If the kernel has no such parameters (before 6.9): `Errno::OPNOTSUPP`.
    pub fn get(epoll: impl AsFd) -> Result<Option<Params>, Errno> {
        let mut raw = libc::epoll_params {
            busy_poll_usecs: 0,
            busy_poll_budget: 0,
            prefer_busy_poll: 0,
            __pad: 0,
        };
        let fd = epoll.as_fd().as_raw_fd();
        // SAFETY: the request fills the structure behind the pointer, which is exclusively borrowed and alive.
        let result = unsafe { libc::ioctl(fd, libc::EPIOCGPARAMS, &raw mut raw) };
        if result == 0 {
            return Ok(Some(Params {
                busy_poll_usecs: raw.busy_poll_usecs,
                busy_poll_budget: raw.busy_poll_budget,
                prefer_busy_poll: raw.prefer_busy_poll != 0,
            }));
        }
        not_an_epoll(&epoll, last_error()).map(|()| None)
    }

    /// Sets the parameters; false if the descriptor is not an epoll context.
    ///
    /// # Errors
    /// `Errno::PERM` for a budget above 64 without `CAP_NET_ADMIN`, `Errno::INVAL` for more
    /// microseconds than `i32::MAX`, `Errno::OPNOTSUPP` before Linux 6.9.
    pub fn set(self, epoll: impl AsFd) -> Result<bool, Errno> {
        let raw = libc::epoll_params {
            busy_poll_usecs: self.busy_poll_usecs,
            busy_poll_budget: self.busy_poll_budget,
            prefer_busy_poll: self.prefer_busy_poll.into(),
            __pad: 0,
        };
        let fd = epoll.as_fd().as_raw_fd();
        // SAFETY: the request reads the structure behind the pointer, which is alive.
        let result = unsafe { libc::ioctl(fd, libc::EPIOCSPARAMS, &raw const raw) };
        if result == 0 {
            return Ok(true);
        }
        match last_error() {
            // Other files may return these errors for an unknown request.
            errno @ (Errno::PERM | Errno::INVAL) if is_epoll(&epoll) => Err(errno),
            errno => not_an_epoll(&epoll, errno).map(|()| false),
        }
    }
}

/// Distinguishes a kernel without the parameters from a file of another kind: both return errors.
fn not_an_epoll(descriptor: impl AsFd, errno: Errno) -> Result<(), Errno> {
    if !is_epoll(descriptor) {
        return Ok(());
    }
    Err(match errno {
        Errno::NOTTY | Errno::INVAL => Errno::OPNOTSUPP,
        errno => errno,
    })
}

fn is_epoll(descriptor: impl AsFd) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    rustix::fs::readlink(link, Vec::new())
        .is_ok_and(|target| target.as_bytes() == b"anon_inode:[eventpoll]")
}

/// A descriptor that an epoll context watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Member {
    /// The number by which the descriptor was added. It may have been closed or reused since; the inode is reliable.
    pub fd: i32,
    /// The requested events (`EPOLLIN` and so on).
    pub events: u32,
    /// Its inode; for a socket, that of [`Kind::Socket`](super::Kind::Socket).
    pub inode: Option<u64>,
}

/// The members of an epoll context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Members {
    /// The members in the kernel's order.
    pub list: Vec<Member>,
    /// Whether there are more than the limit.
    pub cut: bool,
}

impl Process {
    /// Lists the members of one of its epoll contexts, at most `limit`; empty if the context was closed.
    ///
    /// # Errors
    /// If the process has ended, or belongs to another user.
    pub fn members(&self, epoll: &Descriptor, limit: usize) -> Result<Members, ProcessError> {
        let Descriptor { tid, fd, .. } = epoll;
        let path = format!("/proc/{}/task/{tid}/fdinfo/{fd}", self.pid());
        let bytes = MEMBER_BYTES.saturating_mul(limit.try_into().unwrap_or(u64::MAX));
        match procfile::read_text(&path, bytes.saturating_add(MEMBER_BYTES)) {
            Ok(text) => self.if_alive(parse_members(&text, limit)),
            Err(Errno::NOENT) => self.if_alive(Members::default()),
            Err(errno) => Err(self.refused("to list an epoll context's members", errno)),
        }
    }
}

fn parse_members(text: &str, limit: usize) -> Members {
    let mut members = Members::default();
    for line in text.lines() {
        let Some(member) = parse_member(line) else { continue };
        if members.list.len() == limit {
            members.cut = true;
            break;
        }
        members.list.push(member);
    }
    members
}

/// Parses `tfd: 7 events: 19 data: 0 pos:0 ino:1f sdev:9`, in which tfd and pos are decimal, the others hexadecimal.
fn parse_member(line: &str) -> Option<Member> {
    let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
    let fd = words.next()?.parse().ok()?;
    let mut events = None;
    let mut inode = None;
    while let Some(word) = words.next() {
        if word == "events:" {
            events = u32::from_str_radix(words.next()?, 16).ok();
        } else if let Some(hex) = word.strip_prefix("ino:") {
            inode = u64::from_str_radix(hex, 16).ok();
        }
    }
    Some(Member { fd, events: events?, inode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;

    #[test]
    fn what_was_set_is_read_back() {
        let context = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        assert_eq!(Params::get(&context), Ok(Some(Params::default())));
        let params = Params { busy_poll_usecs: 7, busy_poll_budget: 64, prefer_busy_poll: true };
        assert_eq!(params.set(&context), Ok(true));
        assert_eq!(Params::get(&context), Ok(Some(params)));
        let wrong = Params { busy_poll_usecs: u32::MAX, ..params };
        assert_eq!(wrong.set(&context), Err(Errno::INVAL));
        assert_eq!(Params::get(&context), Ok(Some(params)));
    }

    #[test]
    fn what_is_no_epoll_context_is_none() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for other in [socket.as_fd(), file.as_fd(), null.as_fd()] {
            assert_eq!(Params::get(other), Ok(None));
            assert_eq!(Params::default().set(other), Ok(false));
        }
    }

    #[test]
    fn members_are_read_and_what_is_not_one_is_left_out() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t16\nino:\t9\n\
                    tfd:        7 events:       19 data:                7  pos:0 ino:1f sdev:9\n\
                    tfd:        8 events: 80000001 data: ffffffffffffffff  pos:0 ino:20 sdev:9\n\
                    tfd: x events: 19\ntfd: 9\ntfd: 10 eve";
        let first = Member { fd: 7, events: 0x19, inode: Some(0x1f) };
        let second = Member { fd: 8, events: 0x8000_0001, inode: Some(0x20) };
        let all = parse_members(text, 10);
        assert_eq!(all, Members { list: vec![first, second], cut: false });
        assert_eq!(parse_members(text, 1), Members { list: vec![first], cut: true });
    }

    #[test]
    fn a_policy_s_part_comes_and_goes() {
        let policy: napkin_policy::Policy = "suspend20".parse().unwrap();
        let params = Params::from(policy.epoll);
        assert_eq!(EpollPolicy::from(params), policy.epoll);
        assert_eq!(params.to_string(), "busy poll 0 us, budget 64, prefer");
    }
}
