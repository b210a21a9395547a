//! A connection's byte stream, as passed to the application's callbacks.

use std::fmt;

use smoltcp::socket::tcp::{Socket, State};

use super::Flow;

/// The byte stream of one connection, for any TCP implementation. No method blocks.
pub trait ByteStream {
    /// The two ends of the connection.
    fn flow(&self) -> Flow;

    /// Appends up to `most` received bytes to `into` and returns how many. 0 means that nothing is waiting;
    /// [`ended`](ByteStream::ended) tells whether more can come.
    fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize;

    /// Takes as many of `bytes` as fit the send buffer and returns how many.
    fn send(&mut self, bytes: &[u8]) -> usize;

    /// Whether the peer has closed its side and everything it sent was received, or the peer is gone.
    fn ended(&self) -> bool;

    /// Whether data can still be sent to the peer.
    fn writable(&self) -> bool;

    /// Closes our side after the data sent so far; data from the peer is still received.
    fn close(&mut self);

    /// Aborts the connection with a RST.
    fn abort(&mut self);

    /// Whether the connection is closed; there are no more calls for it.
    fn is_closed(&self) -> bool;
}

/// A connection of the stack's own TCP.
pub struct TcpStream<'a> {
    pub(super) socket: &'a mut Socket<'static>,
    pub(super) flow: Flow,
    pub(super) napi_id: u32,
}

impl TcpStream<'_> {
    /// The NAPI id of the queue that its last segment came from (`SO_INCOMING_NAPI_ID`).
    pub fn incoming_napi_id(&self) -> u32 {
        self.napi_id
    }
}

impl ByteStream for TcpStream<'_> {
    fn flow(&self) -> Flow {
        self.flow
    }

    fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let mut received = 0;
        // Two rounds if the data wraps around the end of the ring buffer.
        while received < most {
            let taken = self.socket.recv(|bytes| {
                let taken = bytes.len().min(most - received);
                into.extend_from_slice(&bytes[..taken]);
                (taken, taken)
            });
            match taken {
                Ok(0) | Err(_) => break,
                Ok(taken) => received += taken,
            }
        }
        received
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.socket.send_slice(bytes).unwrap_or(0)
    }

    fn ended(&self) -> bool {
        !self.socket.may_recv()
    }

    fn writable(&self) -> bool {
        self.socket.may_send()
    }

    fn close(&mut self) {
        self.socket.close();
    }

    fn abort(&mut self) {
        self.socket.abort();
    }

    fn is_closed(&self) -> bool {
        matches!(self.socket.state(), State::Closed | State::TimeWait)
    }
}

impl fmt::Debug for TcpStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("flow", &self.flow)
            .field("state", &self.socket.state())
            .finish_non_exhaustive()
    }
}
