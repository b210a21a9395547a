//! The interface that all sockets share.
//!
//! It is split into two traits for two kinds of caller. [`Socket`] is for code that waits: the receive buffer and
//! the queue that feeds it. [`Exchange`] is for a service: it receives messages and answers them without blocking.
//! A service written against [`Exchange`] runs over UDP sockets, raw sockets, and any other implementation.

use std::sync::Arc;

use napkin_nic::Frame;
use napkin_policy::Ns;

use crate::{Receiver, wire};

/// A socket of the stack, as the engine uses it.
pub trait Socket: Send + Sync {
    /// The receive buffer.
    fn receiver(&self) -> &Arc<Receiver>;

    /// Whether a receive would return a message.
    fn readable(&self) -> bool {
        self.receiver().readable()
    }

    /// The NAPI id of the queue that delivered last; 0 before the first frame.
    fn incoming_napi_id(&self) -> u32 {
        self.receiver().incoming_napi_id()
    }
}

/// A received message.
pub trait Message {
    /// The bytes that the peer sent: a datagram's payload, or a raw socket's whole frame.
    fn payload(&self) -> &[u8];

    /// When its frame arrived, in nanoseconds of the device's clock.
    fn arrived(&self) -> Ns;

    /// The UDP source and destination port, the latter being ours. `None` for a raw socket's frame that is not UDP.
    fn ports(&self) -> Option<(u16, u16)>;
}

impl Message for Frame {
    fn payload(&self) -> &[u8] {
        self
    }

    fn arrived(&self) -> Ns {
        Frame::arrived(self)
    }

    fn ports(&self) -> Option<(u16, u16)> {
        wire::udp_ports(self)
    }
}

/// A socket whose messages can be answered one by one. Nothing here blocks.
pub trait Exchange {
    /// A received message.
    type Message: Message;
    /// Why an answer was not sent.
    type Error: std::error::Error;

    /// Removes the oldest message from the receive buffer.
    fn try_recv(&self) -> Option<Self::Message>;

    /// Sends a message back to its sender unchanged.
    ///
    /// # Errors
    /// If the sender cannot be answered, or the queue refuses the frame. The message is dropped then.
    fn echo(&self, message: Self::Message, now: Ns) -> Result<(), Self::Error>;

    /// Answers a message with another payload, which is written into the message's buffer.
    ///
    /// # Errors
    /// If the sender cannot be answered, the payload does not fit, or the queue refuses the frame. The message is
    /// dropped then.
    fn reply(&self, message: Self::Message, payload: &[u8], now: Ns) -> Result<(), Self::Error>;

    /// Sends posted answers: they may be held back until then to be sent as a batch. A service calls it after it
    /// has answered all waiting messages.
    fn flush(&self) {}
}

/// A UDP socket, where an answer may consist of several datagrams.
pub trait UdpExchange: Exchange {
    /// Answers a message with several payloads, in order.
    ///
    /// # Errors
    /// The first failure, for the reasons of [`Exchange::reply`]; later payloads are not sent.
    fn reply_each(
        &self,
        message: Self::Message,
        payloads: impl IntoIterator<Item = impl AsRef<[u8]>>,
        now: Ns,
    ) -> Result<(), Self::Error>;
}
