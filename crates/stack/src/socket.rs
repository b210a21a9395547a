//! What sockets have in common.
//!
//! Two traits, because two parties use them. [`Socket`] is for whoever waits: the receive buffer and
//! where it is fed from. [`Exchange`] is for a service: messages in, answers out, never blocking. A
//! service written against [`Exchange`] runs over UDP sockets, raw sockets, and whatever else
//! implements it.

use std::sync::Arc;

use napkin_nic::Frame;
use napkin_policy::Ns;

use crate::{Receiver, wire};

/// A socket of the stack, as the engine sees it.
pub trait Socket: Send + Sync {
    /// The receive buffer, with its levels and its listener.
    fn receiver(&self) -> &Arc<Receiver>;

    /// Whether a receive would find something.
    fn readable(&self) -> bool {
        self.receiver().readable()
    }

    /// The NAPI id of the queue that delivered last; 0 before the first frame.
    fn incoming_napi_id(&self) -> u32 {
        self.receiver().incoming_napi_id()
    }
}

/// A message as a service sees it.
pub trait Message {
    /// The bytes that the peer sent: a datagram's payload, or the whole frame of a raw socket.
    fn payload(&self) -> &[u8];

    /// When its frame arrived, in nanoseconds of the device's clock.
    fn arrived(&self) -> Ns;

    /// The UDP source and destination port: from where it came, and to which of ours. `None` for a
    /// raw socket's frame that is no UDP.
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
    /// What it receives.
    type Message: Message;
    /// Why an answer was not sent.
    type Error: std::error::Error;

    /// Takes the oldest message out of the receive buffer, if there is one.
    fn try_recv(&self) -> Option<Self::Message>;

    /// Sends a message back to where it came from, as it is.
    ///
    /// # Errors
    /// If it cannot be answered, or could not be sent; it is dropped then.
    fn echo(&self, message: Self::Message, now: Ns) -> Result<(), Self::Error>;

    /// Answers a message with another payload, which takes its buffer.
    ///
    /// # Errors
    /// If it cannot be answered, the payload does not fit, or could not be sent; it is dropped then.
    fn reply(&self, message: Self::Message, payload: &[u8], now: Ns) -> Result<(), Self::Error>;

    /// Sends what was answered: answers may wait for each other until then. A service calls it once it has
    /// answered what there was.
    fn flush(&self) {}
}

/// A UDP socket as a service sees it: an answer may take several datagrams.
pub trait UdpExchange: Exchange {
    /// Answers a message with several payloads, one after the other.
    ///
    /// # Errors
    /// The first one that cannot be sent, as [`Exchange::reply`] says it; those behind it are not sent.
    fn reply_each(
        &self,
        message: Self::Message,
        payloads: impl IntoIterator<Item = impl AsRef<[u8]>>,
        now: Ns,
    ) -> Result<(), Self::Error>;
}
