//! The set-up of a ring, split or packed: where its parts are, and what both sides agreed on.
//!
//! It is below all that reads or writes rings, and uses none of it.

/// Where a ring's parts are, in addresses of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RingAddresses {
    /// The descriptor table.
    pub(super) table: u64,
    /// What the driver writes: the available ring, or (packed) its event suppression.
    pub(super) driver: u64,
    /// What the device writes: the used ring, or (packed) its event suppression.
    pub(super) device: u64,
}

/// What was agreed that a ring has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RingFeatures {
    /// Notifications at a place instead of on or off.
    pub(super) event: bool,
    /// A frame may be spread over several buffers of the receiver's.
    pub(super) mergeable: bool,
    /// A driver's frame may leave a checksum to the device. If not, its header says nothing.
    pub(super) checksums: bool,
    /// A descriptor may be of a table of descriptors.
    pub(super) indirect: bool,
    /// A driver may leave TCP packets to the device to be cut: over IPv4, and over IPv6.
    pub(super) tso4: bool,
    pub(super) tso6: bool,
    /// The device uses buffers in order.
    pub(super) in_order: bool,
}

impl RingFeatures {
    /// Whether there may be packets to be cut.
    pub(super) fn cuts(self) -> bool {
        self.tso4 || self.tso6
    }
}
