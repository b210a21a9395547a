//! The parameters of a ring, split or packed: its addresses and negotiated features.
//!
//! All modules that read or write rings depend on this one; it depends on none of them.

/// Addresses of a ring's parts, in the address space of vhost-user messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RingAddresses {
    /// The descriptor table.
    pub(super) table: u64,
    /// The part that the driver writes: the available ring, or (packed) its event suppression.
    pub(super) driver: u64,
    /// The part that the device writes: the used ring, or (packed) its event suppression.
    pub(super) device: u64,
}

/// The negotiated features that concern a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RingFeatures {
    /// Whether notifications are requested at an index, not just switched on or off.
    pub(super) event: bool,
    /// Whether a frame may span several of the receiver's buffers.
    pub(super) mergeable: bool,
    /// Whether a driver's frame may leave a checksum to the device. If not, the header of its frames is not read.
    pub(super) checksums: bool,
    /// Whether a descriptor may refer to a table of descriptors.
    pub(super) indirect: bool,
    /// Whether TCP packets may come to be segmented here: over IPv4, and over IPv6.
    pub(super) tso4: bool,
    pub(super) tso6: bool,
    /// Whether the device uses buffers in order.
    pub(super) in_order: bool,
}

impl RingFeatures {
    /// Whether packets may have to be segmented.
    pub(super) fn cuts(self) -> bool {
        self.tso4 || self.tso6
    }
}
