//! The control thread of a backend: listens, serves one peer at a time, and listens again.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};

use super::control::{Peers, pause};
use super::message::{Connection, Ended, Message};
use super::port::Port;
use super::session::Session;
use super::socket::Listener;

/// Runs until `stop` becomes readable.
pub(super) fn run(
    listener: &Listener,
    ports: &Arc<[Arc<Port>]>,
    peers: &Arc<Peers>,
    stop: BorrowedFd<'_>,
) {
    while let Some(peer) = accept(listener, stop) {
        match serve(&peer, ports, peers, stop) {
            Ended::Stopped => return,
            Ended::Closed => {}
            ended => peers.refuse(ended.to_string()),
        }
    }
}

/// Waits for the next peer. A second one waits in the accept queue until the first is gone.
fn accept(listener: &Listener, stop: BorrowedFd<'_>) -> Option<UnixStream> {
    loop {
        let mut watched = [
            PollFd::new(&listener.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
        ];
        let waited = poll(&mut watched, None);
        if !watched[1].revents().is_empty() {
            return None;
        }
        match (waited, listener.socket.accept()) {
            (_, Ok((peer, _))) => return Some(peer),
            // The peer has gone again, or the process is out of descriptors: try again later.
            (_, Err(_)) => {
                if pause(stop, 100) {
                    return None;
                }
            }
        }
    }
}

/// Serves a peer, and returns why that ended.
fn serve(
    peer: &UnixStream,
    ports: &Arc<[Arc<Port>]>,
    peers: &Arc<Peers>,
    stop: BorrowedFd<'_>,
) -> Ended {
    let connection = match Connection::new(peer, stop) {
        Ok(connection) => connection,
        Err(error) => return error.into(),
    };
    let mut session = Session::new(ports, peers);
    loop {
        let message = match connection.receive() {
            Ok(message) => message,
            Err(ended) => return ended,
        };
        let (request, asked) = (message.request, message.needs_reply());
        let answer = match session.handle(message) {
            Ok(answer) => answer,
            Err(refused) => {
                if asked {
                    let failed = Message::reply(request, 1u64.to_ne_bytes().to_vec());
                    let _ = connection.send(&failed);
                }
                peers.refuse(refused.to_string());
                return Ended::Closed;
            }
        };
        if let Some(answer) = answer
            && let Err(ended) = connection.send(&answer)
        {
            return ended;
        }
    }
}
