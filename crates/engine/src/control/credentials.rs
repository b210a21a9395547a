//! The process at the other end of a unix socket.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// The peer of a connection, as the kernel vouches for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its process id; `None` if the process is not visible in this pid namespace.
    pub(super) pid: Option<i32>,
    pub(super) uid: u32,
}

impl Peer {
    /// The peer of a connected socket; for a client, the process that called `listen`.
    // rustix's own call gives a process id that cannot be 0, which it is for a process of another
    // pid namespace; so this one asks libc.
    pub(super) fn of(socket: impl AsFd) -> std::io::Result<Peer> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is borrowed, and so open; both pointers are to live values, and the length is that
        // of the first.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let pid = (credentials.pid != 0).then_some(credentials.pid);
        Ok(Peer { pid, uid: credentials.uid })
    }

    /// Whether the peer may control what this process runs.
    pub(super) fn may_control(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_pair_are_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.pid, Some(std::process::id() as i32));
        assert!(peer.may_control());
    }

    #[test]
    fn strangers_may_not_and_root_may() {
        let own = rustix::process::geteuid().as_raw();
        assert!(!Peer { pid: None, uid: own + 1 }.may_control());
        assert!(Peer { pid: Some(1), uid: 0 }.may_control());
    }
}
