//! Connections between a server's and a client's side, over the veth, or over loopback without the right to create
//! one. This process holds both ends, so that one thread can be both sides.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;

use napkin_workload::error::BenchError;
use napkin_workload::linux::failed;
use napkin_workload::linux::pair::{Pair, SERVER};

/// Approximate sizes of a request and an answer of the memcached workload, in bytes.
pub(super) const REQUEST: usize = 40;
pub(super) const ANSWER: usize = 230;

pub(super) const CONNECTIONS: usize = 32;

/// Both ends of all connections, with an epoll for the server's.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) server: Vec<TcpStream>,
    pub(super) client: Vec<TcpStream>,
    pub(super) server_epoll: OwnedFd,
}

impl Connections {
    pub(super) fn new(pair: Option<&Pair>) -> Result<Connections, BenchError> {
        let listen = |address: Ipv4Addr| TcpListener::bind(SocketAddr::from((address, 0)));
        let (listener, connected) = match pair {
            Some(pair) => {
                let listener =
                    pair.server.run(|| listen(SERVER)).map_err(failed)?.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                let connected = pair.client.run(|| connect(address)).map_err(failed)?;
                (listener, connected)
            }
            None => {
                let listener = listen(Ipv4Addr::LOCALHOST).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                (listener, connect(address))
            }
        };
        let client = connected.map_err(failed)?;
        let mut server = Vec::new();
        for stream in &client {
            let (accepted, from) = listener.accept().map_err(failed)?;
            if Some(from) != stream.local_addr().ok() {
                return Err(BenchError::Linux("connections were accepted out of order".into()));
            }
            server.push(accepted);
        }
        for stream in server.iter().chain(&client) {
            stream.set_nodelay(true).map_err(failed)?;
            stream.set_nonblocking(true).map_err(failed)?;
        }
        let server_epoll = watch(&server)?;
        Ok(Connections { server, client, server_epoll })
    }
}

/// Connects one after another, so that they are accepted in this order.
fn connect(address: SocketAddr) -> io::Result<Vec<TcpStream>> {
    (0..CONNECTIONS).map(|_| TcpStream::connect(address)).collect()
}

/// Creates an epoll that watches these descriptors for input.
pub(super) fn watch<T: AsFd>(all: &[T]) -> Result<OwnedFd, BenchError> {
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
    for (place, fd) in all.iter().enumerate() {
        epoll::add(&epoll, fd, EventData::new_u64(place as u64), EventFlags::IN).map_err(failed)?;
    }
    Ok(epoll)
}

/// Waits on an epoll, without blocking or for ever; returns the number of events.
pub(super) fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, most: usize, blocks: bool) -> usize {
    events.clear();
    events.reserve(most);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = if blocks { None } else { Some(&now) };
    let spare = rustix::buffer::spare_capacity(events);
    // An interrupted wait counts as no events.
    epoll::wait(epoll, spare, timeout).unwrap_or(0)
}

/// Sends all bytes in one call.
pub(super) fn send(mut stream: &TcpStream, bytes: &[u8]) -> Result<(), BenchError> {
    match stream.write(bytes) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(sent) => Err(BenchError::Linux(format!("{sent} of {} bytes were sent", bytes.len()))),
        Err(error) => Err(failed(error)),
    }
}

/// Receives what has arrived; 0 if nothing has.
pub(super) fn receive(mut stream: &TcpStream, buffer: &mut [u8]) -> Result<usize, BenchError> {
    match stream.read(buffer) {
        Ok(0) => Err(BenchError::Linux("a connection was closed".into())),
        Ok(read) => Ok(read),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(failed(error)),
    }
}

/// Receives; spins for at most two seconds.
pub(super) fn receive_soon(stream: &TcpStream, buffer: &mut [u8]) -> Result<usize, BenchError> {
    let began = super::timing::now();
    loop {
        let read = receive(stream, buffer)?;
        if read > 0 {
            return Ok(read);
        }
        if super::timing::now().wrapping_sub(began) > 2_000_000_000 {
            return Err(BenchError::Linux("nothing came within 2 s".into()));
        }
        std::hint::spin_loop();
    }
}
