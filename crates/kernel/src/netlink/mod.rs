//! The kernel's netlink interfaces: the generic families `netdev` and `ethtool`, and links.
//!
//! - [`Netdev`]: devices, queues and NAPI instances, and what can be set on them.
//! - [`Ethtool`]: coalescing, channels, rings, features.
//! - [`Notices`]: notifications of changes to links, channels or devices; for links that have left, whether they
//!   were deleted.
//! - [`Route`]: links, addresses and default routes, and the few changes that servers, measurements and tests need.
//!
//! Each is one socket in the network namespace of the thread that opened it; it stays there when the thread moves
//! on. Replies are not trusted: their headers are checked, their length is bounded, and every wait has a limit.
//! `netlink-packet-core` parses the message headers; `attribute.rs` parses the attribute lists, and accepts
//! structures that a later kernel has extended.

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
pub use notice::{NoticeBatch, Notices};
pub use route::{AddressRecord, LinkRecord, Route, VethConfig};
