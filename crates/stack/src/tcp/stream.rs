//! A connection as the application has it for the time of a call.

use std::fmt;

use smoltcp::socket::tcp::{Socket, State};

use super::Flow;

/// One connection's bytes. Nothing here blocks.
pub struct TcpStream<'a> {
    pub(super) socket: &'a mut Socket<'static>,
    pub(super) flow: Flow,
    pub(super) napi_id: u32,
}

impl TcpStream<'_> {
    /// Its two ends.
    pub fn flow(&self) -> Flow {
        self.flow
    }

    /// The NAPI id of the queue that its last segment came from (`SO_INCOMING_NAPI_ID`).
    pub fn incoming_napi_id(&self) -> u32 {
        self.napi_id
    }

    /// Appends what has arrived to `into`, `most` bytes at most, and says how many; 0 says that
    /// nothing waits, see [`ended`](TcpStream::ended) for whether anything will.
    pub fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
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

    /// Takes as many of `bytes` to send as there is room for, and says how many.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        self.socket.send_slice(bytes).unwrap_or(0)
    }

    /// Whether the peer has sent its last byte, and that was received; or has gone.
    pub fn ended(&self) -> bool {
        !self.socket.may_recv()
    }

    /// Whether what was sent can still reach the peer.
    pub fn writable(&self) -> bool {
        self.socket.may_send()
    }

    /// Sends no more after what was sent so far; what still arrives is received.
    pub fn close(&mut self) {
        self.socket.close();
    }

    /// Ends it at once: the peer gets a RST.
    pub fn abort(&mut self) {
        self.socket.abort();
    }

    /// Whether nothing will happen any more: this is the last call for it.
    pub fn is_closed(&self) -> bool {
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
