//! What all rings have in common: split or packed, ours to serve (device) or ours to drive (driver).
//!
//! # Suppression
//!
//! A ring's consumer says when it wants to be notified, and its producer looks at that after it has put
//! something in. Both write one place and then read the other's, so each has a sequentially consistent
//! fence in between: the producer between its index (split) or flags (packed) and the look at the
//! consumer's wish ([`Incoming::publish`], [`Outgoing::publish`]); the consumer between its wish and the
//! look for work ([`Incoming::unmask`]) or for room ([`Outgoing::await_room`]). One of the two therefore sees the other: the producer notifies, or
//! the consumer finds the work. Both may, and then a notification is spurious. Other wishes (masking) need no
//! order: a notification that was on its way is spurious as well.

use std::sync::atomic::Ordering::Relaxed;

use super::header::{self, HEADER};
use super::memory::{Area, Memory};
use super::segments::Segments;
use super::setup::RingFeatures;
use crate::ETHERNET_HEADER;

/// The most entries of a ring of ours to drive, and of a peer's that we serve: virtio's limit.
pub const MAX_RING: u16 = 1 << 15;

/// How many frames before it is copied a frame's memory is brought nearer: it comes from another CPU's cache,
/// which takes about as long as copying so many.
pub(super) const AHEAD: u16 = 8;

/// A buffer continues in another descriptor.
pub(super) const NEXT: u16 = 1;
/// A buffer for the device to write to.
pub(super) const WRITE: u16 = 2;
/// A buffer that is a table of descriptors.
pub(super) const INDIRECT: u16 = 4;

/// What came of taking the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// There is none.
    Empty,
    /// One of so many bytes.
    Frame(usize),
    /// One that does not fit a buffer; it was let go, as were those below.
    Oversized,
    /// One that is shorter than an Ethernet header.
    Truncated,
    /// One whose descriptors, addresses or header make no sense.
    Malformed,
    /// A packet to be cut, which is still there for [`take_large`](Incoming::take_large).
    Large,
    /// The ring itself makes no sense, and will not be looked at again.
    Broken,
}

/// What came of putting a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// It is in the ring.
    Sent,
    /// There is no buffer for it now.
    Full,
    /// The peer's buffers are too small for it.
    TooLong,
    /// The ring makes no sense, and will not be looked at again.
    Broken,
}

/// A ring that frames come from.
pub(super) trait Incoming {
    /// How many frames there are, at most and as far as is known; 0 only if there is none, and `None` if the ring makes
    /// no sense.
    fn ready(&mut self, most: u16) -> Option<u16>;
    /// Takes the next frame into `buffer` and gives its place back, which the peer sees with the next
    /// [`publish`](Incoming::publish).
    fn take(&mut self, buffer: &mut [u8]) -> Taken;
    /// What was agreed on.
    fn features(&self) -> RingFeatures;
    /// Takes the next frame as its parts are, and gives its place back: whether it makes sense, or what there is in
    /// place of a frame.
    fn take_parts(&mut self, gather: &mut Gather<'_>) -> Result<bool, Taken>;
    /// Takes the next frame, which is [`Large`](Taken::Large), to be cut: `Large` again if it can be.
    #[cold]
    fn take_large(&mut self, into: &mut Segments) -> Taken {
        let features = self.features();
        let mut gather = Gather::new(into.room());
        let large = self.take_parts(&mut gather).and_then(|good| gather.large(good));
        large.map_or_else(|why| why, |it| it.begin(into, features))
    }
    /// Lets the peer see all that was given back; `true` if it wants to be notified of that.
    fn publish(&mut self) -> bool;
    /// Asks for no notifications.
    fn mask(&mut self);
    /// Asks for one with the next frame, and looks once more: `true` if there is one already.
    fn unmask(&mut self) -> bool;
}

/// A ring that frames go to.
pub(super) trait Outgoing {
    /// Puts a frame in, which the peer sees with the next [`publish`](Outgoing::publish).
    fn put(&mut self, frame: &[u8]) -> Put;
    /// Lets the peer see all that was put in; `true` if it wants to be notified of that.
    fn publish(&mut self) -> bool;
    /// After [`Put::Full`], with all published: asks for a notification once there is more room, and looks once
    /// more: `true` if there is already, and then none is asked for.
    fn await_room(&mut self) -> bool;
    /// No longer asks for one.
    fn ignore_room(&mut self);
    /// Frames that the peer has not taken yet. Who serves a ring has written them into the peer's own memory.
    fn under_way(&mut self) -> u16 {
        0
    }
}

/// The standard's `vring_need_event`: whether the move from `old` to `new` passed `event`.
pub(super) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// One descriptor of either ring; the last field is `next` in a split one, and `id` comes before the flags in
/// a packed one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    /// The two 16-bit fields behind the length, in their order.
    pub(super) first: u16,
    pub(super) second: u16,
}

impl Descriptor {
    /// Reads entry `index`, once: what is checked is what is used.
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

/// The most descriptors of a frame, in all of its chains and tables together: as many as QEMU takes. Linux makes some twenty at
/// most. A descriptor of no bytes costs a step as well, and each entry of a ring may lead to as many as the ring has.
pub(super) const MAX_PARTS: u16 = 1024;

/// A table of descriptors in the peer's memory, to which one descriptor of a ring leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    address: u64,
    count: u16,
}

impl Table {
    /// `None` if it has no whole number of descriptors, none at all, or too many.
    pub(super) fn new(address: u64, len: u32) -> Option<Table> {
        let count = len / 16;
        (len.is_multiple_of(16) && (1..=u32::from(MAX_PARTS)).contains(&count))
            .then_some(Table { address, count: count as u16 })
    }

    pub(super) fn count(self) -> u16 {
        self.count
    }

    /// Reads an entry, once; `None` if there is none of this number, or it is not within the peer's memory.
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

/// A frame as it comes together from the parts of a chain.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    header: [u8; HEADER],
    /// Bytes of header and frame so far.
    have: u64,
    /// Parts so far.
    parts: u16,
    buffer: &'a mut [u8],
}

impl<'a> Gather<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Gather<'a> {
        Gather { header: [0; HEADER], have: 0, parts: 0, buffer }
    }

    /// Adds the bytes at `address`; `false` if they are not within the peer's memory, or one part too many.
    #[inline]
    pub(super) fn add(&mut self, memory: &Memory, mut address: u64, len: u32) -> bool {
        let mut left = u64::from(len);
        // As it is nearly always: the header and all of the frame in one piece.
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
            // It does not fit, so it is of no interest where it lies.
            None => true,
        }
    }

    /// Whether nothing has been added.
    pub(super) fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// In how many buffers the frame is said to be.
    pub(super) fn buffers(&self) -> u16 {
        header::buffers(&self.header)
    }

    /// Whether it is a packet to be cut.
    pub(super) fn is_large(&self) -> bool {
        self.have >= HEADER as u64 && header::is_large(&self.header)
    }

    /// All parts of a packet to be cut are there, and make sense or do not.
    fn large(self, good: bool) -> Result<Large, Taken> {
        let len = self.have.checked_sub(HEADER as u64).filter(|_| good).ok_or(Taken::Malformed)?;
        match len > self.buffer.len() as u64 {
            true => Err(Taken::Oversized),
            false => Ok(Large { header: self.header, len: len as usize }),
        }
    }

    /// All parts are there, and make sense or do not.
    #[inline]
    pub(super) fn end(self, good: bool) -> Taken {
        if !good {
            return Taken::Malformed;
        }
        let Some(len) = self.have.checked_sub(HEADER as u64) else { return Taken::Malformed };
        let len = len as usize;
        match self.buffer.get_mut(..len) {
            None => Taken::Oversized,
            Some(_) if len < ETHERNET_HEADER => Taken::Truncated,
            Some(frame) => match header::apply(&self.header, frame) {
                true => Taken::Frame(len),
                false => Taken::Malformed,
            },
        }
    }
}

/// A packet to be cut as it came, in the room of the segments.
#[derive(Debug)]
pub(super) struct Large {
    header: [u8; HEADER],
    len: usize,
}

impl Large {
    /// Begins to cut it.
    fn begin(self, segments: &mut Segments, agreed: RingFeatures) -> Taken {
        match segments.begin(&self.header, self.len, agreed) {
            true => Taken::Large,
            false => Taken::Malformed,
        }
    }
}

/// Takes a frame as it nearly always comes: with its header in one piece, about which nothing is to be done. How
/// long it is; `None`, and nothing counts as done, if it comes in any other way.
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

/// A frame as it is spread over the parts of one or more chains.
#[derive(Debug)]
pub(super) struct Scatter<'a> {
    /// What is left of it.
    rest: &'a [u8],
    /// Where its header goes, once the number of buffers is known.
    header: Option<u64>,
    /// Parts that it was not done with.
    parts: u16,
}

impl<'a> Scatter<'a> {
    pub(super) fn new(frame: &'a [u8]) -> Scatter<'a> {
        Scatter { rest: frame, header: None, parts: 0 }
    }

    /// Writes as much as fits `len` bytes at `address`: how many, or `None` if they are not within the peer's
    /// memory, the first buffer cannot hold a header, or the frame would be in too many.
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
