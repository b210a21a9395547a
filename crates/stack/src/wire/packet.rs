//! An IP packet whose header was verified, for both families.

use std::net::IpAddr;

/// An IP packet behind its verified header.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// What follows the header, without padding.
    pub(super) payload: &'a [u8],
    /// Whether it is addressed to us, not to broadcast or a group.
    pub(super) for_us: bool,
    /// Offset of the payload in the frame.
    pub(super) at: usize,
}
