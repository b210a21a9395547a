//! The listening socket of a backend: at a free path, or in place of a stale socket without a listener.

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
    /// Inode of the socket made here: another program may have replaced it since.
    inode: Option<u64>,
}

/// Connects without blocking: fails with `WouldBlock` if the listener's accept queue is full.
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
        let lock = DirectoryLock::take(path);
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path).map_err(|error| match error.kind() {
                    // A program that does not take turns was faster.
                    ErrorKind::AddrInUse => in_use(),
                    _ => refused(error),
                })?
            }
            other => other.map_err(refused)?,
        };
        socket.set_nonblocking(true).map_err(refused)?;
        let inode = std::fs::symlink_metadata(path).ok().map(|file| file.ino());
        drop(lock);
        Ok(Listener { socket, path: path.to_owned(), inode })
    }
}

/// Removes a stale socket, which has no listener. One that has disappeared meanwhile is fine.
fn remove_stale(path: &Path) -> Result<(), VhostError> {
    let refused = |source| VhostError::Listen { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => {}
        Ok(_) => return Err(VhostError::NoSocket { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(error)),
    }
    let removed = match connect(path) {
        // No process listens there any more.
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

/// Serialises programs that start to listen in one directory: a socket that is bound but not yet listening looks
/// stale.
struct DirectoryLock {
    /// The locked directory; closing it releases the lock.
    _directory: OwnedFd,
}

impl DirectoryLock {
    /// Number of attempts, and milliseconds between them. Another program may keep the lock of a directory for
    /// other reasons (systemd-tmpfiles leaves a locked directory alone).
    const ATTEMPTS: (u32, u64) = (100, 10);

    /// Takes the lock. Without it (`None`) two programs that start at the same moment may collide.
    fn take(path: &Path) -> Option<DirectoryLock> {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(parent.unwrap_or(Path::new(".")), flags, Mode::empty()).ok()?;
        for _ in 0..DirectoryLock::ATTEMPTS.0 {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(DirectoryLock { _directory: directory }),
                Err(Errno::WOULDBLOCK) => {
                    std::thread::sleep(Duration::from_millis(DirectoryLock::ATTEMPTS.1));
                }
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let inode = std::fs::symlink_metadata(&self.path).ok().map(|file| file.ino());
        if inode.is_some() && inode == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
