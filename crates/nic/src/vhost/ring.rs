//! The common parts of all rings: split or packed, served by us (device) or driven by us (driver).
//!
//! # Notification suppression
//!
//! A ring's consumer requests notifications, and its producer checks for the request after it has put something in.
//! Each writes one place and then reads the other's, so each has a sequentially consistent fence in between: the
//! producer between its index (split) or flags (packed) and the read of the request ([`Incoming::publish`],
//! [`Outgoing::publish`]); the consumer between its request and the check for work ([`Incoming::unmask`]) or for
//! room ([`Outgoing::await_room`]). At least one of the two therefore sees the other: the producer notifies, or the
//! consumer finds the work. If both do, the notification is spurious. Withdrawing a request (masking) needs no
//! order: a notification that was on its way is spurious as well.

use std::sync::atomic::Ordering::Relaxed;

use super::header::{self, HEADER};
use super::memory::{Area, Memory};
use super::segments::Segments;
use super::setup::RingFeatures;
use crate::ETHERNET_HEADER;

/// The most entries of a ring: virtio's limit.
pub const MAX_RING: u16 = 1 << 15;

/// The distance, in frames, at which the memory of a frame to be copied is prefetched: it comes from another CPU's
/// cache, which takes about as long as copying that many frames.
pub(super) const AHEAD: u16 = 8;

/// The chain continues in another descriptor.
pub(super) const NEXT: u16 = 1;
/// The buffer is for the device to write.
pub(super) const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(super) const INDIRECT: u16 = 4;

/// The result of taking the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeResult {
    /// There is no frame.
    Empty,
    /// A frame of this many bytes.
    Frame(usize),
    /// A frame that does not fit a buffer; like the following kinds, it was returned to the peer.
    Oversized,
    /// A frame shorter than an Ethernet header.
    Truncated,
    /// A frame with invalid descriptors, addresses or header.
    Malformed,
    /// A packet to be segmented, which stays in the ring for [`take_large`](Incoming::take_large).
    Large,
    /// The ring itself is invalid, and is no longer used.
    Broken,
}

/// The result of putting a frame into a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutResult {
    /// The frame is in the ring.
    Sent,
    /// There is no buffer for it now.
    Full,
    /// The peer's buffers are too small for it.
    TooLong,
    /// The ring is invalid, and is no longer used.
    Broken,
}

/// A ring from which frames are received.
pub(super) trait Incoming {
    /// The number of frames that are ready, up to `most` and as far as is known; 0 only if there is none, and
    /// `None` if the ring is broken.
    fn ready(&mut self, most: u16) -> Option<u16>;
    /// Takes the next frame into `buffer` and returns its descriptors, which the peer sees after the next
    /// [`publish`](Incoming::publish).
    fn take(&mut self, buffer: &mut [u8]) -> TakeResult;
    /// The negotiated features.
    fn features(&self) -> RingFeatures;
    /// Takes the next frame part by part, and returns its descriptors. Returns whether it is valid, or the reason
    /// why there is no frame.
    fn take_parts(&mut self, gather: &mut Gather<'_>) -> Result<bool, TakeResult>;
    /// Takes the next frame, which is [`Large`](TakeResult::Large), to be segmented; `Large` again if that can begin.
    #[cold]
    fn take_large(&mut self, into: &mut Segments) -> TakeResult {
        let features = self.features();
        let mut gather = Gather::new(into.room());
        let large = self.take_parts(&mut gather).and_then(|good| gather.large(good));
        large.map_or_else(|why| why, |it| it.begin(into, features))
    }
    /// Publishes all that was returned; `true` if the peer requests a notification of that.
    fn publish(&mut self) -> bool;
    /// Requests no notifications.
    fn mask(&mut self);
    /// Requests a notification with the next frame, then checks the ring once more: `true` if there is a frame
    /// already.
    fn unmask(&mut self) -> bool;
}

/// A ring to which frames are sent.
pub(super) trait Outgoing {
    /// Puts a frame in, which the peer sees after the next [`publish`](Outgoing::publish).
    fn put(&mut self, frame: &[u8]) -> PutResult;
    /// Publishes all that was put in; `true` if the peer requests a notification of that.
    fn publish(&mut self) -> bool;
    /// To be called after [`PutResult::Full`], with everything published: requests a notification once there is more
    /// room, then checks once more: `true` if there is room already, and then the request is withdrawn.
    fn await_room(&mut self) -> bool;
    /// Withdraws the request for room.
    fn ignore_room(&mut self);
    /// The number of frames that the peer has not taken yet. 0 for a ring that we serve: its frames are in the
    /// peer's own memory.
    fn in_flight(&mut self) -> u16 {
        0
    }
}

/// The virtio specification's `vring_need_event`: whether the move from `old` to `new` passed `event`.
pub(super) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A descriptor of either ring. The two 16-bit fields are flags and `next` in a split ring, id and flags in a
/// packed one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    /// The two 16-bit fields after the length, in memory order.
    pub(super) first: u16,
    pub(super) second: u16,
}

impl Descriptor {
    /// Reads entry `index` once, so that the checked values are the used ones.
    #[inline]
    pub(super) fn read(table: &Area, index: u16) -> Descriptor {
        let at = usize::from(index) * 16;
        Descriptor::of(table.load64(at, Relaxed), table.load64(at + 8, Relaxed))
    }

    #[inline]
    fn of(address: u64, rest: u64) -> Descriptor {
        let (first, second) = ((rest >> 32) as u16, (rest >> 48) as u16);
        Descriptor { address, len: rest as u32, first, second }
    }
}

/// The most descriptors of a frame, in all of its chains and tables together: QEMU's limit. Linux uses some twenty at
/// most. A descriptor of no bytes costs a step as well, and each entry of a ring may lead to as many as the ring has.
pub(super) const MAX_PARTS: u16 = 1024;

/// A table of descriptors in the peer's memory, which a descriptor of a ring refers to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    address: u64,
    count: u16,
}

impl Table {
    /// `None` if the length is not a whole number of descriptors, 0, or too large.
    pub(super) fn new(address: u64, len: u32) -> Option<Table> {
        let count = len / 16;
        (len.is_multiple_of(16) && (1..=u32::from(MAX_PARTS)).contains(&count))
            .then_some(Table { address, count: count as u16 })
    }

    pub(super) fn count(self) -> u16 {
        self.count
    }

    /// Reads an entry once; `None` if the index is out of range, or the entry is not within the peer's memory.
    pub(super) fn read(self, memory: &Memory, index: u16) -> Option<Descriptor> {
        let mut bytes = [0; 16];
        let at = self.address.wrapping_add(16 * u64::from(index));
        if index >= self.count || !memory.read(at, &mut bytes) {
            return None;
        }
        let both = u128::from_le_bytes(bytes);
        Some(Descriptor::of(both as u64, (both >> 64) as u64))
    }
}

/// A frame being assembled from the parts of a chain.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    header: [u8; HEADER],
    /// Bytes of header and frame so far.
    have: u64,
    /// Number of parts so far.
    parts: u16,
    buffer: &'a mut [u8],
}

impl<'a> Gather<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Gather<'a> {
        Gather { header: [0; HEADER], have: 0, parts: 0, buffer }
    }

    /// Adds the bytes at `address`; `false` if they are not within the peer's memory, or there are too many parts.
    #[inline]
    pub(super) fn add(&mut self, memory: &Memory, mut address: u64, len: u32) -> bool {
        let mut left = u64::from(len);
        // The common case: the header and the whole frame in one part.
        if self.have == 0
            && let Some(body) = left.checked_sub(HEADER as u64)
            && let Some(part) = self.buffer.get_mut(..body as usize)
        {
            (self.have, self.parts) = (left, 1);
            return memory.read_parts(address, &mut self.header, part);
        }
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return false;
        }
        if self.have < HEADER as u64 {
            let part = &mut self.header[self.have as usize..];
            let n = part.len().min(left as usize);
            if !memory.read(address, &mut part[..n]) {
                return false;
            }
            (address, left, self.have) =
                (address.wrapping_add(n as u64), left - n as u64, self.have + n as u64);
        }
        let start = self.have - HEADER.min(self.have as usize) as u64;
        self.have += left;
        match self.buffer.get_mut(start as usize..(start + left) as usize) {
            Some(part) => memory.read(address, part),
            // It does not fit, so its bytes need not be read.
            None => true,
        }
    }

    /// Whether nothing has been added.
    pub(super) fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// The number of buffers that the frame spans, by its header.
    pub(super) fn buffers(&self) -> u16 {
        header::buffers(&self.header)
    }

    /// Whether it is a packet to be segmented.
    pub(super) fn is_large(&self) -> bool {
        self.have >= HEADER as u64 && header::is_large(&self.header)
    }

    /// Ends a packet to be segmented; `good` tells whether its parts were valid.
    fn large(self, good: bool) -> Result<Large, TakeResult> {
        let len =
            self.have.checked_sub(HEADER as u64).filter(|_| good).ok_or(TakeResult::Malformed)?;
        match len > self.buffer.len() as u64 {
            true => Err(TakeResult::Oversized),
            false => Ok(Large { header: self.header, len: len as usize }),
        }
    }

    /// Ends a frame; `good` tells whether its parts were valid.
    #[inline]
    pub(super) fn end(self, good: bool) -> TakeResult {
        if !good {
            return TakeResult::Malformed;
        }
        let Some(len) = self.have.checked_sub(HEADER as u64) else { return TakeResult::Malformed };
        let len = len as usize;
        match self.buffer.get_mut(..len) {
            None => TakeResult::Oversized,
            Some(_) if len < ETHERNET_HEADER => TakeResult::Truncated,
            Some(frame) => match header::apply(&self.header, frame) {
                true => TakeResult::Frame(len),
                false => TakeResult::Malformed,
            },
        }
    }
}

/// A packet to be segmented, in the buffer of the segments.
#[derive(Debug)]
pub(super) struct Large {
    header: [u8; HEADER],
    len: usize,
}

impl Large {
    /// Starts the segmentation.
    fn begin(self, segments: &mut Segments, agreed: RingFeatures) -> TakeResult {
        match segments.begin(&self.header, self.len, agreed) {
            true => TakeResult::Large,
            false => TakeResult::Malformed,
        }
    }
}

/// Takes a frame in its most common form: in one part, with a header that requests nothing. Returns its length;
/// `None`, and nothing is done, for any other form.
#[inline]
pub(super) fn take_whole(
    memory: &Memory,
    (address, len): (u64, u32),
    headers: bool,
    buffer: &mut [u8],
) -> Option<usize> {
    let len = (len as usize).checked_sub(HEADER).filter(|len| *len >= ETHERNET_HEADER)?;
    let frame = buffer.get_mut(..len)?;
    if headers {
        let mut header = [0; HEADER];
        (memory.read_parts(address, &mut header, frame) && header::is_plain(&header)).then_some(len)
    } else {
        memory.read(address.wrapping_add(HEADER as u64), frame).then_some(len)
    }
}

/// A frame being spread over the parts of one or more chains.
#[derive(Debug)]
pub(super) struct Scatter<'a> {
    /// The rest of the frame.
    rest: &'a [u8],
    /// The address of its header, which is written once the number of buffers is known.
    header: Option<u64>,
    /// Number of parts that were too small for the rest.
    parts: u16,
}

impl<'a> Scatter<'a> {
    pub(super) fn new(frame: &'a [u8]) -> Scatter<'a> {
        Scatter { rest: frame, header: None, parts: 0 }
    }

    /// Writes as much as fits `len` bytes at `address`, and returns how many bytes, header included. `None` if they
    /// are not within the peer's memory, the first buffer cannot hold a header, or there are too many parts.
    #[inline]
    pub(super) fn add(&mut self, memory: &Memory, address: u64, len: u32) -> Option<u32> {
        let (mut at, mut room) = (address, len as usize);
        if self.header.is_none() {
            room = room.checked_sub(HEADER)?;
            self.header = Some(address);
            at = address.wrapping_add(HEADER as u64);
        }
        let n = room.min(self.rest.len());
        let (now, later) = self.rest.split_at(n);
        self.rest = later;
        if !later.is_empty() {
            self.parts += 1;
            if self.parts == MAX_PARTS {
                return None;
            }
        }
        let header = at.wrapping_sub(address) as u32;
        memory.write(at, now).then_some(header + n as u32)
    }

    pub(super) fn done(&self) -> bool {
        self.rest.is_empty()
    }

    /// Writes the header.
    #[inline]
    pub(super) fn end(self, memory: &Memory, buffers: u16) -> bool {
        self.header.is_some_and(|at| memory.write(at, &header::plain(buffers)))
    }
}
