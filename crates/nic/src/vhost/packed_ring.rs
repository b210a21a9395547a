//! Positions in a packed ring, the flags and words of its descriptors, and its event suppression: common to its
//! device, its driver, and the recovery of a position.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::memory::Area;
use super::ring::need_event;

/// Equals the driver's lap parity when a descriptor is made available.
pub(super) const AVAILABLE: u16 = 1 << 7;
/// Equals the device's lap parity when a descriptor is used.
pub(super) const USED: u16 = 1 << 15;

/// The most chains that a device returns before it publishes them to the driver; with more, some are published early.
pub(super) const BATCH: usize = 64;

/// A position in the ring and its lap, whose parity determines the meaning of the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    at: u16,
    lap: bool,
    size: u16,
}

impl Position {
    /// The start of the first lap.
    pub(super) fn first(size: u16) -> Position {
        Position { at: 0, lap: true, size }
    }

    /// The position `at` in a lap of parity `lap`, 1 or 0; `None` if invalid.
    pub(super) fn new(at: u16, lap: u8, size: u16) -> Option<Position> {
        (at < size && lap <= 1).then_some(Position { at, lap: lap == 1, size })
    }

    /// The last position before this one with the index `at`, at most one lap back.
    #[inline]
    pub(super) fn before(self, at: u16) -> Position {
        Position { at, lap: self.lap == (at < self.at), size: self.size }
    }

    /// Decodes a base as in messages: the lap in the highest bit. `None` if invalid.
    pub(super) fn from_base(base: u16, size: u16) -> Option<Position> {
        let (at, lap) = (base & 0x7fff, base >> 15 == 1);
        (at < size).then_some(Position { at, lap, size })
    }

    pub(super) fn base(self) -> u16 {
        self.at | u16::from(self.lap) << 15
    }

    #[inline]
    pub(super) fn at(self) -> u16 {
        self.at
    }

    pub(super) fn lap(self) -> bool {
        self.lap
    }

    pub(super) fn size(self) -> u16 {
        self.size
    }

    /// Advances by `count`, at most a lap.
    #[inline]
    pub(super) fn step(&mut self, count: u16) {
        self.at += count;
        if self.at >= self.size {
            self.at -= self.size;
            self.lap = !self.lap;
        }
    }

    /// Counts the consecutive positions from here on for which `holds` is true, up to `most` and a lap.
    #[inline]
    pub(super) fn count(mut self, most: u16, holds: impl Fn(Position) -> bool) -> u16 {
        let most = most.min(self.size);
        for count in 0..most {
            if !holds(self) {
                return count;
            }
            self.step(1);
        }
        most
    }

    /// Whether `flags` mark the descriptor here as available to the device.
    #[inline]
    pub(super) fn is_available(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.lap && (flags & USED != 0) != self.lap
    }

    /// Whether `flags` mark the descriptor here as used.
    #[inline]
    pub(super) fn is_used(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.lap && (flags & USED != 0) == self.lap
    }

    /// The flags that mark a descriptor here as used.
    #[inline]
    pub(super) fn used(self) -> u16 {
        if self.lap { AVAILABLE | USED } else { 0 }
    }
}

/// The second word of a descriptor: length, id and flags, which are written at once.
#[inline]
pub(super) fn packed_word(len: u32, id: u16, flags: u16) -> u64 {
    u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
}

/// Both flags as a driver sets them in the lap of `position`.
#[inline]
pub(super) fn available_flags(position: Position) -> u16 {
    if position.lap() { AVAILABLE } else { USED }
}

const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
/// Notify at a given position.
const PLACE: u16 = 2;

/// The event suppression structure of one side: a position with its lap, and flags.
#[derive(Debug)]
pub(super) struct Suppression {
    area: Area,
}

impl Suppression {
    pub(super) fn new(area: Area) -> Suppression {
        Suppression { area }
    }

    pub(super) fn disable(&self) {
        self.area.store16(2, DISABLE, Relaxed);
    }

    /// Enables notifications from now on, or at a position.
    pub(super) fn enable(&self, place: Option<Position>) {
        match place {
            Some(position) => {
                self.area.store16(0, position.base(), Relaxed);
                // A reader that sees the flags also sees the position.
                self.area.store16(2, PLACE, Release);
            }
            None => self.area.store16(2, ENABLE, Relaxed),
        }
    }

    /// Whether the other side is to be notified of the advance by `moved` descriptors to `now`.
    #[inline]
    pub(super) fn wants(&self, now: Position, moved: u16) -> bool {
        match self.area.load16(2, Acquire) {
            DISABLE => false,
            PLACE => {
                let place = self.area.load16(0, Relaxed);
                let mut event = place & 0x7fff;
                if (place >> 15 == 1) != now.lap {
                    // The position is in the previous lap.
                    event = event.wrapping_sub(now.size);
                }
                need_event(event, now.at, now.at.wrapping_sub(moved))
            }
            _ => true,
        }
    }
}
