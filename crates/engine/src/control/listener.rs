//! The socket file: one owner at a time, stale ones replaced, removed at the end.
//!
//! A killed process leaves a file without a listener. Looking and replacing must be one step: otherwise two
//! processes that start together would both find the file stale, and the second would remove the first one's. So
//! both happen under a lock of the directory, which the operating system releases when its holder dies, and which
//! leaves no file behind.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::credentials::Peer;
use super::error::ControlError;

/// Connections that wait to be accepted; the operating system refuses more.
const BACKLOG: i32 = 64;

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A socket on which no process listens.
    Stale,
    /// A process listens: its id, if the socket reports it.
    Live(Option<i32>),
}

/// Finds out what is at a path, without waiting.
pub(super) fn look(path: &Path) -> Result<Found, ControlError> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(ControlError::system("look at", path, error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(ControlError::NotASocket { path: path.to_owned() });
    }
    let address = address(path)?;
    let socket = new_socket(path)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(Found::Live(Peer::of(&socket).ok().and_then(|peer| peer.pid))),
        // The backlog is full, and so a process listens.
        Err(Errno::AGAIN) => Ok(Found::Live(None)),
        Err(Errno::CONNREFUSED) => Ok(Found::Stale),
        Err(Errno::NOENT) => Ok(Found::Nothing),
        Err(Errno::PROTOTYPE) => Err(ControlError::NotASocket { path: path.to_owned() }),
        Err(errno) => Err(ControlError::system("connect to", path, errno)),
    }
}

pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, ControlError> {
    SocketAddrUnix::new(path).map_err(|_| ControlError::TooLong { path: path.to_owned() })
}

fn new_socket(path: &Path) -> Result<OwnedFd, ControlError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| ControlError::system("make a socket for", path, errno))
}

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) path: PathBuf,
    /// Device and inode of the file: it may be another process's by the time it is to be removed.
    file: (u64, u64),
}

impl Listener {
    /// Listens at a path, and replaces a stale socket if there is one.
    pub(super) fn open(path: &Path) -> Result<Listener, ControlError> {
        let address = address(path)?;
        let _lock = lock(path)?;
        match look(path)? {
            Found::Nothing => {}
            Found::Stale => fs::remove_file(path)
                .map_err(|error| ControlError::system("replace", path, error))?,
            Found::Live(pid) => return Err(ControlError::InUse { path: path.to_owned(), pid }),
        }
        let socket = new_socket(path)?;
        let fail = |errno: Errno| ControlError::system("listen at", path, errno);
        // The mode is set on the socket before it has a name, so the file never exists with another mode.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        rustix::net::bind(&socket, &address).map_err(fail)?;
        let file = identity(path).map_err(|error| ControlError::system("look at", path, error))?;
        let listener = Listener { socket, path: path.to_owned(), file };
        rustix::net::listen(&listener.socket, BACKLOG).map_err(fail)?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Even without the lock the file is still ours unless its inode says otherwise.
        let _lock = lock(&self.path);
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // A file that cannot be removed is stale from now on, and will be recognised as such.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Locks the directory that a socket is in, for as long as the file lives.
fn lock(path: &Path) -> Result<File, ControlError> {
    const TRIES: u32 = 100;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(|errno| ControlError::system("open the directory", directory, errno))?;
    for _ in 0..TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file.into()),
            // Its holder needs the lock only for a moment.
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(10)),
            Err(errno) => return Err(ControlError::system("lock", directory, errno)),
        }
    }
    Err(ControlError::Locked { path: directory.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn place(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("napkin-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        directory
    }

    #[test]
    fn a_socket_is_its_owner_s_alone_and_goes_with_it() {
        let directory = place("mode");
        let path = directory.join("a.sock");
        let listener = Listener::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let own = Some(std::process::id() as i32);
        assert_eq!(look(&path).unwrap(), Found::Live(own));
        match Listener::open(&path) {
            Err(ControlError::InUse { pid, .. }) => assert_eq!(pid, own),
            other => panic!("{other:?}"),
        }
        drop(listener);
        assert_eq!(look(&path).unwrap(), Found::Nothing);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_successor_s_is_left_alone() {
        let directory = place("stale");
        let path = directory.join("a.sock");
        // What a killed process leaves: std's listener does not remove its file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert_eq!(look(&path).unwrap(), Found::Stale);
        let first = Listener::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::open(&path).unwrap();
        drop(first);
        assert!(matches!(look(&path).unwrap(), Found::Live(_)));
        drop(second);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_never_removed() {
        let directory = place("file");
        let path = directory.join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::open(&path), Err(ControlError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn of_many_that_start_together_one_wins() {
        let directory = place("race");
        let path = directory.join("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listeners: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| Listener::open(&path))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(listeners.iter().filter(|listener| listener.is_ok()).count(), 1);
        assert!(matches!(look(&path).unwrap(), Found::Live(_)));
        drop(listeners);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_path_too_long_and_a_directory_that_is_not_there_are_errors() {
        let long = std::env::temp_dir().join("x".repeat(200));
        assert!(matches!(Listener::open(&long), Err(ControlError::TooLong { .. })));
        let nowhere = std::env::temp_dir().join("napkin-no-such-directory/a.sock");
        assert!(matches!(Listener::open(&nowhere), Err(ControlError::System { .. })));
    }
}
