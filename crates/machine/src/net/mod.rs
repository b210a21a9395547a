//! The network: the link, the card with its queues and moderation, its driver, and sockets.

mod driver;
pub(crate) mod link;
mod moderation;
pub(crate) mod nic;
pub(crate) mod packet;
mod queue;
pub(crate) mod queues;
mod receive;
mod send;
pub(crate) mod socket;

pub(crate) use queue::NicQueue;
