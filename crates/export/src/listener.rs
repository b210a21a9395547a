//! The listening socket for scrapes: a TCP address, or a Unix socket.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP address and port; port 0 selects a free one.
    Tcp(SocketAddr),
    /// A Unix socket's path.
    Unix(PathBuf),
}

/// A text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is no address: write IP:PORT, as 127.0.0.1:9917 or [::1]:9917, or unix:PATH")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Unix(path.into()));
        }
        text.parse().map(Address::Tcp).map_err(|_| AddressError(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}/metrics"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why listening failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The operating system refused.
    #[error("cannot listen on {address}: {error}")]
    Refused {
        /// The address that was to be listened on.
        address: Address,
        /// The operating system's reason.
        error: io::Error,
    },
    /// The path is a file other than a socket.
    #[error("cannot listen on {0}: there is a file that is no socket; name another, or remove it")]
    NoSocket(Address),
    /// Another process listens there.
    #[error(
        "cannot listen on {0}: another process does; name another address (--listen), or end it"
    )]
    InUse(Address),
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A non-blocking listening socket. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// Device and inode of a Unix socket's file, as created.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens on an address. Replaces a Unix socket that a dead process has left.
    ///
    /// # Errors
    /// If another process listens there, or the operating system refuses.
    pub fn bind(address: &Address) -> Result<Listener, ListenError> {
        let refused = |error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => ListenError::InUse(address.clone()),
            _ => ListenError::Refused { address: address.clone(), error },
        };
        match address {
            Address::Tcp(wanted) => {
                let socket = TcpListener::bind(wanted).map_err(refused)?;
                socket.set_nonblocking(true).map_err(refused)?;
                let address = Address::Tcp(socket.local_addr().map_err(refused)?);
                Ok(Listener { socket: Socket::Tcp(socket), address, file: None })
            }
            Address::Unix(path) => {
                if let Ok(metadata) = fs::symlink_metadata(path) {
                    if !metadata.file_type().is_socket() {
                        return Err(ListenError::NoSocket(address.clone()));
                    }
                    let dead = UnixStream::connect(path)
                        .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
                    if dead {
                        fs::remove_file(path).map_err(refused)?;
                    }
                }
                let socket = UnixListener::bind(path).map_err(refused)?;
                socket.set_nonblocking(true).map_err(refused)?;
                let file = fs::symlink_metadata(path).map_err(refused)?;
                let file = Some((file.dev(), file.ino()));
                Ok(Listener { socket: Socket::Unix(socket), address: address.clone(), file })
            }
        }
    }

    /// The address it listens on, with the actual port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts the next connection, if one is pending.
    pub(crate) fn accept(&self) -> io::Result<Option<Box<dyn Stream>>> {
        let accepted: io::Result<Box<dyn Stream>> = match &self.socket {
            Socket::Tcp(socket) => socket.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
            Socket::Unix(socket) => socket.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Address::Unix(path) = &self.address else { return };
        // Another process may have replaced the file meanwhile.
        let identity = fs::symlink_metadata(path).ok().map(|it| (it.dev(), it.ino()));
        if identity.is_some() && identity == self.file {
            let _ = fs::remove_file(path);
        }
    }
}

/// A connection over TCP or a Unix socket.
pub(crate) trait Stream: Read + Write + AsFd + fmt::Debug {
    /// Shuts down the sending side.
    fn finish(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn finish(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn finish(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("napkin-export-{}-{name}", std::process::id()))
    }

    #[test]
    fn an_address_is_read() {
        assert_eq!("127.0.0.1:0".parse(), Ok(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))));
        assert_eq!("unix:/run/a".parse(), Ok(Address::Unix("/run/a".into())));
        for wrong in ["", "unix:", "localhost", "9917", "127.0.0.1"] {
            let error = wrong.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{wrong}'")), "{error}");
        }
    }

    #[test]
    fn a_living_socket_is_in_use_a_dead_one_is_replaced_and_a_file_is_left_alone() {
        let path = scratch("socket");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        drop(first);
        assert!(!path.exists(), "it goes with its listener");
        // A killed process leaves its file.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::bind(&address).unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_port_is_one_listener_s() {
        let any = "127.0.0.1:0".parse().unwrap();
        let first = Listener::bind(&any).unwrap();
        assert!(matches!(Listener::bind(first.address()), Err(ListenError::InUse(_))));
    }
}
