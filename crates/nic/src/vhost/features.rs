//! The feature bits of virtio and of vhost-user, and the sets that our devices and drivers negotiate.

use super::setup::RingFeatures;

/// `VIRTIO_NET_F_CSUM`: the device completes checksums that the driver leaves open.
pub(super) const CSUM: u64 = 1 << 0;
/// `VIRTIO_NET_F_GUEST_CSUM`: the driver does so for the device's frames.
pub(super) const GUEST_CSUM: u64 = 1 << 1;
/// The driver accepts TCP packets to be segmented: over IPv4, over IPv6, and with ECN.
pub(super) const GUEST_TSO4: u64 = 1 << 7;
pub(super) const GUEST_TSO6: u64 = 1 << 8;
pub(super) const GUEST_ECN: u64 = 1 << 9;
/// The device segments the driver's TCP packets: over IPv4, over IPv6, and with ECN.
pub(super) const HOST_TSO4: u64 = 1 << 11;
pub(super) const HOST_TSO6: u64 = 1 << 12;
pub(super) const HOST_ECN: u64 = 1 << 13;
/// A frame to the driver may span several buffers.
pub(super) const MRG_RXBUF: u64 = 1 << 15;
/// Several ring pairs.
pub(super) const MQ: u64 = 1 << 22;
/// A descriptor may refer to a table of descriptors.
pub(super) const INDIRECT_DESC: u64 = 1 << 28;
/// Notifications may be requested at an index (`VIRTIO_F_EVENT_IDX`).
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// vhost-user: there are protocol features, and rings are enabled individually.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio 1.0: little-endian, and a header of 12 bytes.
pub(super) const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_RING_PACKED`.
pub(super) const RING_PACKED: u64 = 1 << 34;
/// `VIRTIO_F_IN_ORDER`: the device uses buffers in the order in which they were made available, and may mark
/// several as used at once.
pub(super) const IN_ORDER: u64 = 1 << 35;

/// Protocol feature: several ring pairs.
pub(super) const PROTOCOL_MQ: u64 = 1 << 0;
/// Protocol feature: requests may ask for an acknowledgement.
pub(super) const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// Protocol feature: in-flight chains are recorded in memory that outlives the backend.
pub(super) const PROTOCOL_INFLIGHT_SHMFD: u64 = 1 << 12;

/// The features that our device offers. Large packets to the driver (`GUEST_TSO4` ...) are not among them: there
/// are none here. It uses buffers in order whether or not that is negotiated; if it is, DPDK's driver reads less.
pub(super) const OFFERED: u64 = CSUM
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | MQ
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1
    | RING_PACKED
    | IN_ORDER;
/// The protocol features that our device offers.
pub(super) const PROTOCOL_OFFERED: u64 = PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_INFLIGHT_SHMFD;

/// The features that our driver accepts, apart from packed rings, which it accepts if configured.
const TAKEN: u64 = GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | MRG_RXBUF
    | MQ
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1
    | IN_ORDER;

/// Entries of a ring that has room for two of the largest packets, in buffers of one frame each.
const LARGE_RING: u16 = 64;

/// The protocol features that our driver accepts.
pub(super) const PROTOCOL_TAKEN: u64 = PROTOCOL_MQ | PROTOCOL_INFLIGHT_SHMFD;

/// Returns the subset of `offered` that our driver accepts with rings of `ring` entries.
pub(super) fn taken(offered: u64, packed: bool, ring: u16) -> u64 {
    let taken = offered & (TAKEN | if packed { RING_PACKED } else { 0 });
    // A large packet needs enough mergeable buffers to be assembled from, and its checksum is open.
    let needs = MRG_RXBUF | GUEST_CSUM;
    let some = taken & (GUEST_TSO4 | GUEST_TSO6) != 0;
    match some && taken & needs == needs && ring >= LARGE_RING {
        true => taken,
        false => taken & !(GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN),
    }
}

/// The part of `features` that a ring which we drive needs to know.
pub(super) fn of_driver(features: u64) -> RingFeatures {
    let (tso4, tso6) = (features & GUEST_TSO4 != 0, features & GUEST_TSO6 != 0);
    RingFeatures { tso4, tso6, ..of_device(features) }
}

/// The part of `features` that a ring which we serve needs to know.
pub(super) fn of_device(features: u64) -> RingFeatures {
    RingFeatures {
        event: features & EVENT_IDX != 0,
        mergeable: features & MRG_RXBUF != 0,
        checksums: features & CSUM != 0,
        indirect: features & INDIRECT_DESC != 0,
        tso4: features & HOST_TSO4 != 0,
        tso6: features & HOST_TSO6 != 0,
        in_order: features & IN_ORDER != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packets_are_taken_where_they_can_be_put_together_and_completed() {
        let all = u64::MAX;
        let tso = GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN;
        assert_eq!(taken(all, false, LARGE_RING) & tso, tso);
        assert_eq!(taken(all, true, 4 * LARGE_RING) & (tso | RING_PACKED), tso | RING_PACKED);
        for (offered, ring) in
            [(all, LARGE_RING / 2), (!MRG_RXBUF, LARGE_RING), (!GUEST_CSUM, LARGE_RING)]
        {
            let taken = taken(offered, false, ring);
            assert_eq!((taken & tso, taken & VERSION_1), (0, VERSION_1), "{offered:x} {ring}");
        }
        assert_eq!(taken(!(GUEST_TSO4 | GUEST_TSO6), false, LARGE_RING) & tso, 0);
        let four = of_driver(taken(all & !GUEST_TSO6, false, LARGE_RING));
        assert!(four.tso4 && !four.tso6 && four.in_order);
        // TSO from driver to device and from device to driver are independent.
        assert!(!of_device(GUEST_TSO4).tso4 && !of_driver(HOST_TSO4).tso4);
    }
}
