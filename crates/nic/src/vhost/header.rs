//! The header of each frame (`virtio_net_hdr`, 12 bytes since virtio 1.0), and the checksum that it may leave to
//! the receiver.

/// Size of `struct virtio_net_hdr_v1` in bytes.
pub(super) const HEADER: usize = 12;

/// The checksum from `csum_start` on is still to be completed.
pub(super) const NEEDS_CSUM: u8 = 1;

/// `gso_type` of a frame that is not to be segmented, apart from the ECN bit.
const GSO_NONE: u8 = 0;

/// The header of a complete frame that spans `buffers` buffers.
pub(super) fn plain(buffers: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[10..].copy_from_slice(&buffers.to_le_bytes());
    header
}

/// Whether the header requests nothing, and counts at most one buffer.
#[inline]
pub(super) fn is_plain(header: &[u8; HEADER]) -> bool {
    header[..2] == [0, GSO_NONE] && buffers(header) <= 1
}

/// Whether the header belongs to a packet to be segmented.
pub(super) fn is_large(header: &[u8; HEADER]) -> bool {
    header[1] != GSO_NONE
}

/// The number of buffers that the frame spans, from the header in the first.
pub(super) fn buffers(header: &[u8; HEADER]) -> u16 {
    u16::from_le_bytes([header[10], header[11]])
}

/// Does what the header requests of the receiver. `false` if that is impossible: for a packet to be segmented
/// (which is done elsewhere), or a checksum outside of the frame.
#[inline]
pub(super) fn apply(header: &[u8; HEADER], frame: &mut [u8]) -> bool {
    header[1] == GSO_NONE && (header[0] & NEEDS_CSUM == 0 || complete(header, frame).is_some())
}

/// Completes the checksum. The field holds the sum of the pseudo-header, and so includes it in the sum.
#[cold]
fn complete(header: &[u8; HEADER], frame: &mut [u8]) -> Option<()> {
    let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (start, offset) = (field(6), field(8));
    let part = frame.get_mut(start..)?;
    let at = offset..offset + 2;
    part.get(at.clone())?;
    // 0 would mean that UDP has no checksum; 0 and 0xffff are equal in this arithmetic.
    let sum = match !fold(sum(part)) {
        0 => 0xffff,
        sum => sum,
    };
    part.get_mut(at)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// The sum of 16-bit words for the Internet checksum; an odd last byte counts as a high byte.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// Folds the carries of a sum into 16 bits.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(start: u16, offset: u16) -> [u8; HEADER] {
        let mut header = plain(1);
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8..10].copy_from_slice(&offset.to_le_bytes());
        header
    }

    #[test]
    fn the_checksum_is_completed_over_the_sum_that_stands_in_its_place() {
        // From RFC 1071: 0001 f203 f4f5 f6f7 add up to ddf2.
        let mut frame = [9, 9, 0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7, 0, 0];
        assert!(apply(&asks(2, 8), &mut frame));
        assert_eq!(frame[10..], (!0xddf2u16).to_be_bytes());
        assert_eq!(frame[..2], [9, 9]);
        // An odd byte counts as a high byte; a checksum of zero is written as 0xffff.
        let mut frame = [0, 0, 0xff];
        assert!(apply(&asks(0, 0), &mut frame));
        assert_eq!(frame, [0x00, 0xff, 0xff]);
        let mut frame = [0xff, 0xff];
        assert!(apply(&asks(0, 0), &mut frame));
        assert_eq!(frame, [0xff, 0xff]);
    }

    #[test]
    fn what_does_not_fit_the_frame_or_was_never_agreed_is_refused() {
        let mut frame = [0; 20];
        for (start, offset) in [(21, 0), (20, 0), (0, 19), (65_535, 65_535), (0, 65_535), (18, 1)] {
            assert!(!apply(&asks(start, offset), &mut frame), "{start} {offset}");
        }
        let mut segments = plain(1);
        segments[1] = 1;
        assert!(!apply(&segments, &mut frame));
        assert!(apply(&plain(1), &mut frame));
        assert_eq!(frame, [0; 20]);
    }
}
