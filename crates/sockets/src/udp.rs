//! One thread's share of a UDP port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use napkin_os::clock;
use napkin_policy::Ns;
use napkin_stack::{Exchange, Message, UdpExchange};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom, sendto,
    socket_with, sockopt,
};

use crate::Waker;
use crate::epoll::Epoll;
use crate::port::family;

/// The maximum length of a datagram, in bytes.
const MAX_DATAGRAM: usize = 64 * 1_024;
/// The maximum number of buffers kept for the next datagrams.
const MAX_SPARE_BUFFERS: usize = 64;

/// Free receive buffers. Used by one thread, so the lock is not contended.
type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

/// A received datagram. Its buffer goes back to its socket when it is dropped.
#[derive(Debug)]
pub struct OsDatagram {
    /// Allocated for the maximum length of a datagram.
    buffer: Vec<u8>,
    length: usize,
    from: SocketAddr,
    port: u16,
    arrived: Ns,
    spare: Spare,
}

impl OsDatagram {
    /// The peer's address and port.
    pub fn source(&self) -> SocketAddr {
        self.from
    }
}

impl Message for OsDatagram {
    fn payload(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or_default()
    }

    /// When it was read from the socket, on the monotonic clock: its time in the socket's queue is not known.
    fn arrived(&self) -> Ns {
        self.arrived
    }

    fn ports(&self) -> Option<(u16, u16)> {
        Some((self.from.port(), self.port))
    }
}

impl Drop for OsDatagram {
    fn drop(&mut self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

/// One thread's UDP on the operating system's sockets.
#[derive(Debug)]
pub struct OsUdp {
    epoll: Epoll,
    socket: OwnedFd,
    port: u16,
    spare: Spare,
}

impl OsUdp {
    /// Binds an address, which other sockets may bind, too (`SO_REUSEPORT`): the kernel distributes datagrams
    /// over them by flow. If bound to the wildcard address (0.0.0.0, ::), a reply's source address is chosen by
    /// the route, and need not be the address that the request was sent to.
    ///
    /// # Errors
    /// As [`OsTcp::listen`](crate::OsTcp::listen).
    pub fn bind(address: SocketAddr) -> io::Result<OsUdp> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family(address), SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        bind(&socket, &address)?;
        let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
        let epoll = Epoll::new()?;
        epoll.watch(&socket, 0, EventFlags::IN)?;
        Ok(OsUdp { epoll, socket, port, spare: Spare::default() })
    }

    /// The port, also if the kernel chose it because 0 was given.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a handle that ends a wait from any thread.
    pub fn waker(&self) -> Waker {
        self.epoll.waker.clone()
    }

    /// Waits until a datagram has arrived, [`Waker::wake`] is called, or `timeout` has passed; returns whether
    /// a datagram has arrived.
    ///
    /// # Errors
    /// If the kernel is older than 5.11 (`ENOSYS`).
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut ready = false;
        self.epoll.wait(timeout, |_| ready = true)?;
        Ok(ready)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        loop {
            match sendto(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Exchange for OsUdp {
    type Message = OsDatagram;
    type Error = io::Error;

    fn try_recv(&self) -> Option<OsDatagram> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare.unwrap_or_else(|| vec![0; MAX_DATAGRAM]);
        loop {
            match recvfrom(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, length, from)) => {
                    // The address is always of the socket's own family; the default is for the type only.
                    let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    return Some(OsDatagram {
                        buffer,
                        length,
                        from: from.unwrap_or(unknown),
                        port: self.port,
                        arrived: clock::now(),
                        spare: Arc::clone(&self.spare),
                    });
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
                    return None;
                }
            }
        }
    }

    fn echo(&self, message: OsDatagram, _: Ns) -> io::Result<()> {
        self.send(message.payload(), message.from)
    }

    fn reply(&self, message: OsDatagram, payload: &[u8], _: Ns) -> io::Result<()> {
        self.send(payload, message.from)
    }
}

impl UdpExchange for OsUdp {
    fn reply_each(
        &self,
        message: OsDatagram,
        payloads: impl IntoIterator<Item = impl AsRef<[u8]>>,
        _: Ns,
    ) -> io::Result<()> {
        payloads.into_iter().try_for_each(|payload| self.send(payload.as_ref(), message.from))
    }
}
