//! What is left of an IP packet once its header was verified, the same for both families.

use std::net::IpAddr;

/// An IP packet whose header was verified.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// What follows the header, and no padding.
    pub(super) payload: &'a [u8],
    /// It is for us alone.
    pub(super) for_us: bool,
    /// The byte of the frame at which the payload begins.
    pub(super) at: usize,
}
