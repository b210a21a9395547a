//! Raw sockets: whole frames, before any protocol processing.
//!
//! The user-space counterpart of an AF_XDP socket: the frames that its [`RawFilter`] matches go to this socket
//! alone, unverified. Frames that turn out to be UDP can be answered in place.

use std::sync::Arc;

use napkin_nic::Frame;
use napkin_policy::Ns;

use crate::emit::{self, Addressing, Ports};
use crate::wire::UDP_HEADER;
use crate::{Exchange, RawFilter, Receiver, SendError, Socket, Stack};

/// A socket that receives whole frames. Dropping it closes it: its frames go to the protocols again, and frames
/// still delivered by an older snapshot of the tables count as [`FrameOutcome::NoPort`](crate::FrameOutcome::NoPort).
#[derive(Debug)]
pub struct RawSocket {
    stack: Arc<Stack>,
    receiver: Arc<Receiver>,
    filter: RawFilter,
}

impl RawSocket {
    pub(crate) fn new(stack: Arc<Stack>, receiver: Arc<Receiver>, filter: RawFilter) -> RawSocket {
        RawSocket { stack, receiver, filter }
    }

    /// The frames that the socket receives.
    pub fn filter(&self) -> RawFilter {
        self.filter
    }

    /// The stack that the socket belongs to.
    pub fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    /// The receive buffer.
    pub fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    /// Whether a frame is waiting.
    pub fn readable(&self) -> bool {
        self.receiver.readable()
    }

    /// Removes and returns the oldest waiting frame.
    pub fn try_recv(&self) -> Option<Frame> {
        self.receiver.pop().map(|arrival| arrival.frame)
    }

    /// Sends a whole frame unchanged, on the queue that last fed this socket, or on the stack's first queue.
    ///
    /// # Errors
    /// If there is no queue, or it refuses the frame.
    pub fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.transmit(frame, now)
    }

    /// Turns a UDP frame round in place, payload included, and sends it back to its sender.
    ///
    /// # Errors
    /// If it is no UDP frame whose sender can be answered, or the queue refuses it.
    pub fn reply_in_place(&self, mut frame: Frame, now: Ns) -> Result<(), SendError> {
        let (addressing, ports, end) = self.reply_addressing(&frame)?;
        frame.set_len(end);
        emit::turn_udp(&mut frame, &addressing, ports)?;
        self.transmit(&frame, now)
    }

    /// Answers a UDP frame with another payload, in the same buffer.
    ///
    /// # Errors
    /// If it is no UDP frame whose sender can be answered, the payload is longer than
    /// [`PAYLOAD_LIMIT`](crate::PAYLOAD_LIMIT), or the queue refuses it.
    pub fn reply_with(&self, mut frame: Frame, payload: &[u8], now: Ns) -> Result<(), SendError> {
        let (addressing, ports, _) = self.reply_addressing(&frame)?;
        emit::put(frame.buffer(), addressing.layout(), payload)?;
        let length = emit::write_udp(frame.buffer(), &addressing, ports, payload.len())?;
        frame.set_len(length);
        self.transmit(&frame, now)
    }

    fn transmit(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.stack.transmit(self.receiver.incoming_napi_id(), frame, now)
    }

    /// The way back to a frame's sender, and where its datagram ends. The frame is unverified, so the UDP length
    /// field is checked here.
    fn reply_addressing(&self, frame: &[u8]) -> Result<(Addressing, Ports, usize), SendError> {
        let addressing = emit::udp_reply_addressing(frame, self.stack.addresses());
        let (addressing, ports) = addressing.ok_or(SendError::Unanswerable)?;
        let start = addressing.layout().transport();
        let length = frame.get(start + 4..start + 6).map(|b| u16::from_be_bytes([b[0], b[1]]));
        match length.map(usize::from) {
            Some(length) if length >= UDP_HEADER && start + length <= frame.len() => {
                Ok((addressing, ports, start + length))
            }
            _ => Err(SendError::Unanswerable),
        }
    }
}

impl Drop for RawSocket {
    fn drop(&mut self) {
        self.stack.close(&self.receiver);
    }
}

impl Socket for RawSocket {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }
}

impl Exchange for RawSocket {
    type Message = Frame;
    type Error = SendError;

    fn try_recv(&self) -> Option<Frame> {
        RawSocket::try_recv(self)
    }

    fn echo(&self, message: Frame, now: Ns) -> Result<(), SendError> {
        self.reply_in_place(message, now)
    }

    fn reply(&self, message: Frame, payload: &[u8], now: Ns) -> Result<(), SendError> {
        self.reply_with(message, payload, now)
    }
}
