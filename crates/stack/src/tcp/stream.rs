//! A connection as the application has it for the time of a call.

use std::fmt;

use smoltcp::socket::tcp::{Socket, State};

use super::Flow;

/// One connection's bytes, whoever's TCP it is. Nothing here blocks.
pub trait ByteStream {
    /// Its two ends.
    fn flow(&self) -> Flow;

    /// Appends what has arrived to `into`, `most` bytes at most, and says how many; 0 says that
    /// nothing waits, see [`ended`](ByteStream::ended) for whether anything will.
    fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize;

    /// Takes as many of `bytes` to send as there is room for, and says how many.
    fn send(&mut self, bytes: &[u8]) -> usize;

    /// Whether the peer has sent its last byte, and that was received; or has gone.
    fn ended(&self) -> bool;

    /// Whether what was sent can still reach the peer.
    fn writable(&self) -> bool;

    /// Sends no more after what was sent so far; what still arrives is received.
    fn close(&mut self);

    /// Ends it at once: the peer gets a RST.
    fn abort(&mut self);

    /// Whether nothing will happen any more: this is the last call for it.
    fn is_closed(&self) -> bool;
}

/// A connection of the stack's TCP.
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
        // Twice where the ring's end lies between.
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
