//! The socket that a backend listens at: a path that is free, or that of a socket at which nobody listens
//! any more.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::VhostError;

/// A listening socket, removed with its path when dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    path: PathBuf,
    /// The inode that was made here: somebody may have put another in its place.
    inode: Option<u64>,
}

/// Connects, and waits for nobody: where as many are at the door as the listener lets wait, it is `WouldBlock`.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

impl Listener {
    pub(super) fn bind(path: &Path) -> Result<Listener, VhostError> {
        let refused = |source| VhostError::Listen { path: path.to_owned(), source };
        let in_use = || VhostError::InUse { path: path.to_owned() };
        let turn = Turn::take(path);
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path).map_err(|error| match error.kind() {
                    // Somebody who takes no turns was faster.
                    ErrorKind::AddrInUse => in_use(),
                    _ => refused(error),
                })?
            }
            other => other.map_err(refused)?,
        };
        socket.set_nonblocking(true).map_err(refused)?;
        let inode = std::fs::symlink_metadata(path).ok().map(|file| file.ino());
        drop(turn);
        Ok(Listener { socket, path: path.to_owned(), inode })
    }
}

/// Removes a socket at which nobody listens any more. One that has gone meanwhile is as good.
fn remove_stale(path: &Path) -> Result<(), VhostError> {
    let refused = |source| VhostError::Listen { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => {}
        Ok(_) => return Err(VhostError::NoSocket { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(error)),
    }
    let removed = match connect(path) {
        // Whoever listened there is no more.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        _ => return Err(VhostError::InUse { path: path.to_owned() }),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refused(error)),
        _ => Ok(()),
    }
}

/// Those who begin to listen in one directory do so one after the other: a socket that is bound and does not listen yet
/// looks like one at which nobody listens any more.
struct Turn {
    /// Whose closing ends it.
    _directory: OwnedFd,
}

impl Turn {
    /// For how long at most, as often as that many milliseconds: a lock of a directory may have another meaning for
    /// somebody else (systemd-tmpfiles leaves what is in it alone), who keeps it.
    const PATIENCE: (u32, u64) = (100, 10);

    /// `None` if there are no turns to be had: then whoever else begins at the same moment may be in the way.
    fn take(path: &Path) -> Option<Turn> {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(parent.unwrap_or(Path::new(".")), flags, Mode::empty()).ok()?;
        for _ in 0..Turn::PATIENCE.0 {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Turn { _directory: directory }),
                Err(Errno::WOULDBLOCK) => {
                    std::thread::sleep(Duration::from_millis(Turn::PATIENCE.1));
                }
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let there = std::fs::symlink_metadata(&self.path).ok().map(|file| file.ino());
        if there.is_some() && there == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
