//! The socket that a backend listens at: a path that is free, or that of a socket at which nobody listens
//! any more.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

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
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let file = std::fs::symlink_metadata(path).map_err(refused)?;
                if !file.file_type().is_socket() {
                    return Err(VhostError::NoSocket { path: path.to_owned() });
                }
                match connect(path) {
                    // Whoever listened there is no more.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path).map_err(refused)?;
                        UnixListener::bind(path).map_err(refused)?
                    }
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                        return Err(refused(error));
                    }
                    _ => return Err(VhostError::InUse { path: path.to_owned() }),
                }
            }
            other => other.map_err(refused)?,
        };
        socket.set_nonblocking(true).map_err(refused)?;
        let inode = std::fs::symlink_metadata(path).ok().map(|file| file.ino());
        Ok(Listener { socket, path: path.to_owned(), inode })
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
