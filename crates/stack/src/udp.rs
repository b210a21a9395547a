//! UDP sockets.
//!
//! Receiving copies nothing: a [`Datagram`] keeps the frame it arrived in, and dropping the datagram returns the
//! buffer to the pool. A reply turns that frame round in place and takes the peer's addresses from it; only
//! [`UdpSocket::send_to`], which has no received frame, needs a neighbour entry.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use napkin_nic::{FRAME_CAPACITY, Frame};
use napkin_policy::Ns;

use crate::emit::{self, Addressing, Ports};
use crate::wire::{self, HEADERS, Layout};
use crate::{Exchange, Message, Receiver, SendError, Socket, Stack, UdpExchange};

/// Sends a frame: at once, or posted until the next flush.
type SendFrame = fn(&Stack, u32, &[u8], Ns) -> Result<(), SendError>;

/// The longest payload that fits a frame of the pool, whatever the headers. A device with a smaller MTU refuses
/// longer frames itself.
pub const PAYLOAD_LIMIT: usize = FRAME_CAPACITY - HEADERS;

/// A received datagram, in its frame.
#[derive(Debug)]
pub struct Datagram {
    frame: Frame,
    /// Offset of the payload.
    start: usize,
    /// End of the payload; padding may follow.
    end: usize,
}

impl Datagram {
    /// The payload.
    pub fn payload(&self) -> &[u8] {
        // Always in range: frames shorter than their headers are dropped before they reach a socket.
        self.frame.get(self.start..self.end).unwrap_or_default()
    }

    /// The peer's IP address and port.
    pub fn source(&self) -> SocketAddr {
        let nobody = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        wire::udp_source(&self.frame).unwrap_or(nobody)
    }

    /// When the frame arrived, see [`Frame::arrived`].
    pub fn arrived(&self) -> Ns {
        self.frame.arrived()
    }
}

impl Message for Datagram {
    fn payload(&self) -> &[u8] {
        Datagram::payload(self)
    }

    fn arrived(&self) -> Ns {
        Datagram::arrived(self)
    }

    fn ports(&self) -> Option<(u16, u16)> {
        wire::udp_ports(&self.frame)
    }
}

/// A bound UDP port. Dropping it closes it: the port is free at once, waiting frames are released, and frames that
/// still arrive count as [`FrameOutcome::NoPort`](crate::FrameOutcome::NoPort).
#[derive(Debug)]
pub struct UdpSocket {
    stack: Arc<Stack>,
    receiver: Arc<Receiver>,
    port: u16,
}

impl UdpSocket {
    pub(crate) fn new(stack: Arc<Stack>, receiver: Arc<Receiver>, port: u16) -> UdpSocket {
        UdpSocket { stack, receiver, port }
    }

    /// The port that the socket is bound to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The stack that the socket belongs to.
    pub fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    /// The receive buffer.
    pub fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    /// Whether a datagram is waiting.
    pub fn readable(&self) -> bool {
        self.receiver.readable()
    }

    /// Removes and returns the oldest waiting datagram.
    pub fn try_recv(&self) -> Option<Datagram> {
        let arrival = self.receiver.pop()?;
        let start = Layout::of(&arrival.frame).map_or(arrival.end, Layout::payload);
        Some(Datagram { frame: arrival.frame, start, end: arrival.end })
    }

    /// Sends a datagram of at most [`PAYLOAD_LIMIT`] bytes, on the queue that last fed this socket, or on the
    /// stack's first queue.
    ///
    /// # Errors
    /// If the neighbour is unknown (see [`Stack::resolve`]), the payload is too long, or the queue refuses the
    /// frame.
    pub fn send_to(&self, payload: &[u8], to: SocketAddr, now: Ns) -> Result<(), SendError> {
        self.stack.send_udp(self.receiver.incoming_napi_id(), self.port, payload, to, now)
    }

    /// Answers a datagram with its own payload: turns its frame round in place and sends it on the queue that last
    /// fed this socket.
    ///
    /// # Errors
    /// If the source port is 0, or the queue refuses the frame.
    pub fn echo(&self, datagram: Datagram, now: Ns) -> Result<(), SendError> {
        self.turn(datagram, now, Stack::transmit)
    }

    fn turn(&self, datagram: Datagram, now: Ns, send_frame: SendFrame) -> Result<(), SendError> {
        let Datagram { mut frame, end, .. } = datagram;
        frame.set_len(end);
        let (addressing, ports) = self.reply_addressing(&frame)?;
        emit::turn_udp(&mut frame, &addressing, ports)?;
        send_frame(&self.stack, self.receiver.incoming_napi_id(), &frame, now)
    }

    /// Answers a datagram with another payload of at most [`PAYLOAD_LIMIT`] bytes, in the same frame, on the queue
    /// that last fed this socket.
    ///
    /// # Errors
    /// If the source port is 0, the payload is too long, or the queue refuses the frame.
    pub fn reply(&self, datagram: Datagram, payload: &[u8], now: Ns) -> Result<(), SendError> {
        self.reply_each(datagram, [payload], now)
    }

    /// Answers a datagram with several, each sent as [`reply`](Self::reply) does.
    ///
    /// # Errors
    /// The first failure, for the reasons of `reply`; later payloads are not sent.
    pub fn reply_each(
        &self,
        datagram: Datagram,
        payloads: impl IntoIterator<Item = impl AsRef<[u8]>>,
        now: Ns,
    ) -> Result<(), SendError> {
        self.answer(datagram, payloads, now, Stack::transmit)
    }

    fn answer(
        &self,
        datagram: Datagram,
        payloads: impl IntoIterator<Item = impl AsRef<[u8]>>,
        now: Ns,
        send_frame: SendFrame,
    ) -> Result<(), SendError> {
        let Datagram { mut frame, .. } = datagram;
        let (addressing, ports) = self.reply_addressing(&frame)?;
        payloads.into_iter().try_for_each(|payload| {
            let payload = payload.as_ref();
            emit::put(frame.buffer(), addressing.layout(), payload)?;
            let length = emit::write_udp(frame.buffer(), &addressing, ports, payload.len())?;
            frame.set_len(length);
            send_frame(&self.stack, self.receiver.incoming_napi_id(), &frame, now)
        })
    }

    fn reply_addressing(&self, frame: &[u8]) -> Result<(Addressing, Ports), SendError> {
        emit::udp_reply_addressing(frame, self.stack.addresses()).ok_or(SendError::Unanswerable)
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.stack.close(&self.receiver);
    }
}

impl Socket for UdpSocket {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }
}

impl Exchange for UdpSocket {
    type Message = Datagram;
    type Error = SendError;

    fn try_recv(&self) -> Option<Datagram> {
        UdpSocket::try_recv(self)
    }

    fn echo(&self, message: Datagram, now: Ns) -> Result<(), SendError> {
        self.turn(message, now, Stack::post)
    }

    fn reply(&self, message: Datagram, payload: &[u8], now: Ns) -> Result<(), SendError> {
        self.answer(message, [payload], now, Stack::post)
    }

    fn flush(&self) {
        self.stack.flush_all();
    }
}

impl UdpExchange for UdpSocket {
    fn reply_each(
        &self,
        message: Datagram,
        payloads: impl IntoIterator<Item = impl AsRef<[u8]>>,
        now: Ns,
    ) -> Result<(), SendError> {
        self.answer(message, payloads, now, Stack::post)
    }
}
