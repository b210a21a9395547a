//! What can be agreed on, by the bits of virtio and of vhost-user.

use super::setup::RingFeatures;

/// The device computes checksums that the driver leaves open.
pub(super) const CSUM: u64 = 1 << 0;
/// The driver does so for the device's frames.
pub(super) const GUEST_CSUM: u64 = 1 << 1;
/// The driver cuts the device's TCP packets: over IPv4, over IPv6, and with ECN.
pub(super) const GUEST_TSO4: u64 = 1 << 7;
pub(super) const GUEST_TSO6: u64 = 1 << 8;
pub(super) const GUEST_ECN: u64 = 1 << 9;
/// The device cuts the driver's TCP packets: over IPv4, over IPv6, and with ECN.
pub(super) const HOST_TSO4: u64 = 1 << 11;
pub(super) const HOST_TSO6: u64 = 1 << 12;
pub(super) const HOST_ECN: u64 = 1 << 13;
/// A frame to the driver may be in several buffers.
pub(super) const MRG_RXBUF: u64 = 1 << 15;
/// Several pairs of rings.
pub(super) const MQ: u64 = 1 << 22;
/// A descriptor may be of a table of descriptors.
pub(super) const INDIRECT_DESC: u64 = 1 << 28;
/// Notifications at a place.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// Of vhost-user: there are protocol features, and rings are enabled one by one.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio 1: little-endian, and a header of 12 bytes.
pub(super) const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_RING_PACKED`.
pub(super) const RING_PACKED: u64 = 1 << 34;
/// `VIRTIO_F_IN_ORDER`: the device uses buffers in the order in which it got them, and need not tell of each.
pub(super) const IN_ORDER: u64 = 1 << 35;

/// Protocol feature: several pairs of rings.
pub(super) const PROTOCOL_MQ: u64 = 1 << 0;
/// Protocol feature: an answer to every request that asks for one.
pub(super) const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// Protocol feature: what is in flight is in memory that outlives the backend.
pub(super) const PROTOCOL_INFLIGHT_SHMFD: u64 = 1 << 12;

/// What a device of ours offers. Large packets to the driver (`GUEST_TSO4` ...) are not among it: there are none here. It uses
/// buffers in the order in which it got them whether that is agreed on or not; told of it, DPDK's driver reads less.
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
/// What of vhost-user a device of ours offers.
pub(super) const PROTOCOL_OFFERED: u64 = PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_INFLIGHT_SHMFD;

/// What a driver of ours takes, but for packed rings, which it takes if it was told to.
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

/// Entries of a ring with room for two of the largest packets, in buffers of a frame each.
const LARGE_RING: u16 = 64;

/// What of vhost-user a driver of ours takes.
pub(super) const PROTOCOL_TAKEN: u64 = PROTOCOL_MQ | PROTOCOL_INFLIGHT_SHMFD;

/// What of an offer a driver of ours takes, whose rings have so many entries.
pub(super) fn taken(offered: u64, packed: bool, ring: u16) -> u64 {
    let taken = offered & (TAKEN | if packed { RING_PACKED } else { 0 });
    // A large packet needs buffers enough, to be put together from, and its checksum is open.
    let needs = MRG_RXBUF | GUEST_CSUM;
    let some = taken & (GUEST_TSO4 | GUEST_TSO6) != 0;
    match some && taken & needs == needs && ring >= LARGE_RING {
        true => taken,
        false => taken & !(GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN),
    }
}

/// What of this a ring of ours to drive has to know.
pub(super) fn of_driver(features: u64) -> RingFeatures {
    let (tso4, tso6) = (features & GUEST_TSO4 != 0, features & GUEST_TSO6 != 0);
    RingFeatures { tso4, tso6, ..of_device(features) }
}

/// What of this a ring that we serve has to know.
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
        // What a driver leaves to its device is another matter.
        assert!(!of_device(GUEST_TSO4).tso4 && !of_driver(HOST_TSO4).tso4);
    }
}
