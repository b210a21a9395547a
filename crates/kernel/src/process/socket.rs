//! A duplicated socket: its kind and addresses, the NAPI instance of its packets, and its busy-poll options.

use std::fmt;
use std::net::SocketAddr;

use napkin_os::last_error;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use serde::{Deserialize, Serialize};

/// A socket, read through a duplicated descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Socket {
    /// The number of its address family (`AF_INET` is 2).
    pub family: u16,
    /// The number of its type (`SOCK_STREAM` is 1).
    pub kind: u32,
    /// The number of its protocol (`IPPROTO_TCP` is 6); 0 if the family has only one.
    pub protocol: u32,
    /// The address to which it is bound, if that is an internet address.
    pub local: Option<SocketAddr>,
    /// The address to which it is connected, if that is an internet address.
    pub peer: Option<SocketAddr>,
    /// Whether it accepts connections.
    pub listening: bool,
    /// The NAPI instance of the last packet that it received; `None` if no packet came through one.
    pub napi_id: Option<u32>,
    /// The cookie of its network namespace; `None` before Linux 5.14.
    pub netns_cookie: Option<u64>,
    /// Its busy-poll options.
    pub options: SocketOptions,
}

/// A socket's busy-poll options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketOptions {
    /// `SO_BUSY_POLL`: microseconds for which a receive call busy polls, at most `i32::MAX`; 0 is off.
    pub busy_poll_usecs: u32,
    /// `SO_PREFER_BUSY_POLL`; setting it needs `CAP_NET_ADMIN`.
    pub prefer_busy_poll: bool,
    /// `SO_BUSY_POLL_BUDGET`: packets per poll; 0 means 8; raising it needs `CAP_NET_ADMIN`. The
    /// kernel has no way to read it: `None` unless it was set by this process.
    pub busy_poll_budget: Option<u16>,
}

impl Socket {
    /// Reads a socket; `None` if the descriptor is not a socket.
    ///
    /// # Errors
    /// Errors of the kernel; none are known to occur.
    pub fn of(descriptor: impl AsFd) -> Result<Option<Socket>, Errno> {
        let fd = descriptor.as_fd();
        let family = match sockopt::socket_domain(fd) {
            Ok(family) => family,
            Err(Errno::NOTSOCK) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let internet = matches!(family, AddressFamily::INET | AddressFamily::INET6);
        let local = rustix::net::getsockname(fd).ok().filter(|_| internet);
        let peer = rustix::net::getpeername(fd).ok().flatten().filter(|_| internet);
        Ok(Some(Socket {
            family: family.as_raw(),
            kind: sockopt::socket_type(fd).map_or(0, SocketType::as_raw),
            protocol: sockopt::socket_protocol(fd)
                .ok()
                .flatten()
                .map_or(0, |protocol| protocol.as_raw().get()),
            local: local.and_then(|address| SocketAddr::try_from(address).ok()),
            peer: peer.and_then(|address| SocketAddr::try_from(address).ok()),
            listening: sockopt::socket_acceptconn(fd).unwrap_or(false),
            napi_id: napi_id(fd)?,
            netns_cookie: netns_cookie(fd),
            options: SocketOptions::get(fd)?,
        }))
    }

    /// Whether it is an internet socket; other sockets cannot be busy polled.
    pub fn is_internet(&self) -> bool {
        [AddressFamily::INET, AddressFamily::INET6]
            .iter()
            .any(|family| family.as_raw() == self.family)
    }
}

impl fmt::Display for SocketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SocketOptions { busy_poll_usecs, prefer_busy_poll, busy_poll_budget } = self;
        write!(f, "busy poll {busy_poll_usecs} us")?;
        if let Some(budget) = busy_poll_budget {
            write!(f, ", budget {budget}")?;
        }
        f.write_str(if *prefer_busy_poll { ", prefer" } else { ", not preferred" })
    }
}

impl SocketOptions {
    /// Reads the options except for the budget; all are off in a kernel without busy polling.
    ///
    /// # Errors
    /// If the descriptor is not a socket.
    pub fn get(socket: impl AsFd) -> Result<SocketOptions, Errno> {
        let read = |option| match get_u32(&socket, option) {
            Err(Errno::NOPROTOOPT) => Ok(0),
            read => read,
        };
        Ok(SocketOptions {
            busy_poll_usecs: read(libc::SO_BUSY_POLL)?,
            prefer_busy_poll: read(libc::SO_PREFER_BUSY_POLL)? != 0,
            busy_poll_budget: None,
        })
    }

    /// Sets the options; without a budget, the budget is unchanged.
    ///
    /// # Errors
    /// `Errno::PERM` without `CAP_NET_ADMIN` for the preference and for a budget, `Errno::NOPROTOOPT` if the kernel
    /// lacks an option, `Errno::NOTSOCK`.
    pub fn set(self, socket: impl AsFd) -> Result<(), Errno> {
        let SocketOptions { busy_poll_usecs, prefer_busy_poll, busy_poll_budget } = self;
        // Set the preference first, because it is the option that may be refused.
        if get_u32(&socket, libc::SO_PREFER_BUSY_POLL)? != u32::from(prefer_busy_poll) {
            set_u32(&socket, libc::SO_PREFER_BUSY_POLL, prefer_busy_poll.into())?;
        }
        if let Some(budget) = busy_poll_budget {
            set_u32(&socket, libc::SO_BUSY_POLL_BUDGET, budget.into())?;
        }
        set_u32(&socket, libc::SO_BUSY_POLL, busy_poll_usecs)
    }
}

/// Whether a descriptor is an internet socket.
pub fn is_internet(descriptor: impl AsFd) -> bool {
    let family = sockopt::socket_domain(descriptor);
    family.is_ok_and(|family| matches!(family, AddressFamily::INET | AddressFamily::INET6))
}

/// Returns the NAPI instance of the last packet that a socket received.
///
/// # Errors
/// `Errno::NOTSOCK` if the descriptor is not a socket.
pub fn napi_id(socket: impl AsFd) -> Result<Option<u32>, Errno> {
    match get_u32(socket, libc::SO_INCOMING_NAPI_ID) {
        Ok(0) | Err(Errno::NOPROTOOPT) => Ok(None),
        Ok(id) => Ok(Some(id)),
        Err(errno) => Err(errno),
    }
}

/// Returns the cookie of a socket's network namespace; `None` before Linux 5.14.
pub fn netns_cookie(socket: impl AsFd) -> Option<u64> {
    option(socket, libc::SO_NETNS_COOKIE).map(u64::from_ne_bytes).ok()
}

/// Returns the cookie of the calling thread's network namespace, read from a new socket.
pub fn own_netns_cookie() -> Option<u64> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    netns_cookie(socket.ok()?)
}

fn get_u32(socket: impl AsFd, number: libc::c_int) -> Result<u32, Errno> {
    option(socket, number).map(u32::from_ne_bytes)
}

/// Reads an option's first `N` bytes; bytes that the kernel does not write are 0.
pub(crate) fn option<const N: usize>(
    socket: impl AsFd,
    option: libc::c_int,
) -> Result<[u8; N], Errno> {
    let mut value = [0; N];
    let mut length = libc::socklen_t::try_from(N).map_err(|_| Errno::INVAL)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: both pointers are to live values that are exclusively borrowed; the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, option, value.as_mut_ptr().cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(last_error()) }
}

fn set_u32(socket: impl AsFd, option: libc::c_int, value: u32) -> Result<(), Errno> {
    let value = libc::c_int::try_from(value).map_err(|_| Errno::INVAL)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer is to a live number of the given size, which the call reads.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_listener_and_its_connection_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let seen = Socket::of(&listener).unwrap().expect("a socket");
        assert!(seen.listening && seen.is_internet());
        assert_eq!((seen.local, seen.peer), (Some(address), None));
        let seen = Socket::of(&stream).unwrap().expect("a socket");
        assert!(!seen.listening);
        assert_eq!((seen.peer, seen.protocol), (Some(address), 6));
        assert_eq!(seen.netns_cookie, own_netns_cookie());
        // The loopback device has no NAPI instance.
        assert_eq!(seen.napi_id, None);
    }

    #[test]
    fn what_is_no_internet_socket_is_told() {
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let seen = Socket::of(&unix).unwrap().expect("a socket");
        assert!(!seen.is_internet());
        assert_eq!((seen.local, seen.napi_id), (None, None));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Socket::of(&file), Ok(None));
        assert_eq!(SocketOptions::get(&file), Err(Errno::NOTSOCK));
    }

    #[test]
    fn options_that_were_set_are_read_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let off = SocketOptions::default();
        assert_eq!(SocketOptions::get(&socket), Ok(off));
        let polls = SocketOptions { busy_poll_usecs: 50, ..off };
        assert_eq!(polls.set(&socket), Ok(()));
        assert_eq!(SocketOptions::get(&socket), Ok(polls));
        let prefers = SocketOptions { prefer_busy_poll: true, busy_poll_budget: Some(16), ..polls };
        let refused = std::thread::spawn(move || {
            let none = CapabilitySet::empty();
            let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, none).expect("rights can always be given up");
            prefers.set(&socket)
        });
        assert_eq!(refused.join().expect("no panic"), Err(Errno::PERM));
    }
}
