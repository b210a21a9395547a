//! The network: the link, the card with its queues and moderation, its driver, and sockets.

mod driver;
pub(crate) mod link;
mod moderation;
pub(crate) mod nic;
pub(crate) mod packet;
mod queue;
mod receive;
mod send;
mod socket;
pub(crate) mod sockets;
pub(crate) mod wait;

pub(crate) use queue::NicQueue;
