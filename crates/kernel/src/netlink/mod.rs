//! The kernel's netlink interfaces: the generic families `netdev` and `ethtool`, and links.
//!
//! - [`Netdev`]: devices, queues and NAPI instances, and what can be set on them.
//! - [`Ethtool`]: coalescing, channels, rings, features.
//! - [`Notices`]: wakes who waits for links, channels or devices to change, and says of links that have
//!   left whether they were deleted.
//! - [`Route`]: links, and as much of making them as measurements and tests need.
//!
//! Each is one socket, bound to the network namespace of the thread that opened it; it stays there
//! when the thread moves on. Replies are read without trust: what a reply says about itself is
//! checked, its length is bounded, and nothing waits for ever. Messages are framed by
//! `netlink-packet-core`; the lists within them are read by `attribute.rs`, which takes a
//! structure that a later kernel made longer.

mod attribute;
mod error;
mod ethtool;
mod generic;
#[cfg(test)]
mod hostile;
mod netdev;
mod notice;
#[cfg(test)]
mod numbers;
mod route;
mod socket;

pub use error::NetlinkError;
pub use ethtool::{Channels, Coalescing, Ethtool, GRO, GSO, Rings, TSO};
pub use netdev::{Ability, DevRecord, NapiRecord, Netdev, Operation, QueueKind, QueueRecord};
pub use notice::{Notices, Taken};
pub use route::{AddressRecord, LinkRecord, Route, VethConfig};
