//! One connection: its socket, its request outstanding, and what it has read of the answer.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use napkin_traffic::Rng;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use super::answer::Parser;

/// A request that was made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) record: usize,
    pub(super) set: bool,
    /// The time that its latency counts from.
    pub(super) intended: u64,
    /// When its first byte was given to the socket.
    pub(super) sent: u64,
}

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It can send.
    Free,
    /// The socket has taken so many bytes of the request and is full.
    Sending(usize),
    /// The request is sent.
    Waiting,
    /// It was lost, and is being made again.
    Connecting,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) parser: Parser,
    pub(super) phase: Phase,
    /// The request outstanding, in the phases that have one.
    pub(super) request: Request,
    /// The epoll tells when the socket has room.
    pub(super) watched_for_room: bool,
    /// Draws what to ask.
    choice: Rng,
}

/// The random numbers of one connection.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    /// Of its schedule.
    pub(super) schedule: Rng,
    /// Of what it asks.
    pub(super) choice: Rng,
}

impl Streams {
    /// One for each connection of a client. Connection `i` asks the same at the same times whatever
    /// thread it is on, and whatever the server does.
    pub(super) fn of(seed: u64, connections: usize) -> Vec<Streams> {
        // Not the stream of the records, which comes from the seed itself.
        let mut rng = Rng::new(seed).split();
        let mut streams = || Streams { schedule: rng.split(), choice: rng.split() };
        (0..connections).map(|_| streams()).collect()
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, choice: Rng) -> Connection {
        Connection {
            socket,
            parser: Parser::default(),
            phase: Phase::Free,
            request: Request { record: 0, set: false, intended: 0, sent: 0 },
            watched_for_room: false,
            choice,
        }
    }

    /// Makes up the next request, which is sent now.
    pub(super) fn ask(&mut self, records: usize, update: f64, intended: u64, now: u64) {
        let set = self.choice.unit() < update;
        let record = self.choice.below(records as u64) as usize;
        self.request = Request { record, set, intended, sent: now };
    }
}

/// A connected socket, for the set-up: it waits, at most so long.
pub(super) fn open(address: SocketAddr, timeout: Duration) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// A socket that begins to connect, for a running client: it does not wait.
pub(super) fn reopen(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_s_requests_are_its_own_and_the_seed_s() {
        let asked = |seed, number: usize| {
            let streams = Streams::of(seed, 3)[number].clone();
            let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
            let mut connection = Connection::new(socket.into(), streams.choice);
            let mut ask = || {
                connection.ask(1_000, 0.03, 5, 7);
                connection.request
            };
            (0..20_000).map(|_| ask()).collect::<Vec<_>>()
        };
        let first = asked(1, 0);
        assert_eq!(first, asked(1, 0));
        assert!(first != asked(1, 1) && first != asked(2, 0));
        let sets = first.iter().filter(|request| request.set).count();
        assert!((500..700).contains(&sets), "3 % of 20000: {sets}");
        assert!(first.iter().all(|request| request.record < 1_000 && (request.intended, request.sent) == (5, 7)));
    }
}
