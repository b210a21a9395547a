//! Places of a packed ring, the flags and words of its descriptors, and its event suppression: what its
//! device, its driver, and whoever finds out where a device was, have in common.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::memory::Area;
use super::ring::need_event;

/// Set as the driver's lap when a descriptor is made available.
pub(super) const AVAILABLE: u16 = 1 << 7;
/// Set as the device's lap when it was used.
pub(super) const USED: u16 = 1 << 15;

/// The most chains that a device gives back before the driver sees them; with more, some are shown earlier.
pub(super) const BATCH: usize = 64;

/// A place in the ring and the lap that it is in, whose parity says what the flags mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    at: u16,
    lap: bool,
    size: u16,
}

impl Turn {
    /// The beginning of the first lap.
    pub(super) fn first(size: u16) -> Turn {
        Turn { at: 0, lap: true, size }
    }

    /// A place in a lap, 1 or 0; `None` if there is no such place.
    pub(super) fn new(at: u16, lap: u8, size: u16) -> Option<Turn> {
        (at < size && lap <= 1).then_some(Turn { at, lap: lap == 1, size })
    }

    /// The place before this one, by less than a lap or by a whole one, at which is `at`.
    #[inline]
    pub(super) fn before(self, at: u16) -> Turn {
        Turn { at, lap: self.lap == (at < self.at), size: self.size }
    }

    /// As messages have it: the lap in the highest bit. `None` if there is no such place.
    pub(super) fn from_base(base: u16, size: u16) -> Option<Turn> {
        let (at, lap) = (base & 0x7fff, base >> 15 == 1);
        (at < size).then_some(Turn { at, lap, size })
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

    /// Goes on by at most a lap.
    #[inline]
    pub(super) fn step(&mut self, count: u16) {
        self.at += count;
        if self.at >= self.size {
            self.at -= self.size;
            self.lap = !self.lap;
        }
    }

    /// On how many places from here on something holds, of at most so many, and a lap.
    #[inline]
    pub(super) fn count(mut self, most: u16, holds: impl Fn(Turn) -> bool) -> u16 {
        let most = most.min(self.size);
        for count in 0..most {
            if !holds(self) {
                return count;
            }
            self.step(1);
        }
        most
    }

    /// Whether flags say that the descriptor here is for the device.
    #[inline]
    pub(super) fn is_available(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.lap && (flags & USED != 0) != self.lap
    }

    /// Whether flags say that the descriptor here was used.
    #[inline]
    pub(super) fn is_used(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.lap && (flags & USED != 0) == self.lap
    }

    /// The flags of a descriptor that is used here.
    #[inline]
    pub(super) fn used(self) -> u16 {
        if self.lap { AVAILABLE | USED } else { 0 }
    }
}

/// Length, id and flags of a descriptor, which are written at once.
#[inline]
pub(super) fn packed_word(len: u32, id: u16, flags: u16) -> u64 {
    u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
}

/// Both flags as a driver sets them in the lap that `turn` is in.
#[inline]
pub(super) fn available_flags(turn: Turn) -> u16 {
    if turn.lap() { AVAILABLE } else { USED }
}

const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
/// At a place.
const PLACE: u16 = 2;

/// What one side wants to be notified of: a place and its lap, and flags.
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

    /// From now on, or from a place on.
    pub(super) fn enable(&self, place: Option<Turn>) {
        match place {
            Some(turn) => {
                self.area.store16(0, turn.base(), Relaxed);
                // Who sees the flags sees the place.
                self.area.store16(2, PLACE, Release);
            }
            None => self.area.store16(2, ENABLE, Relaxed),
        }
    }

    /// Whether the move by `moved` descriptors to `now` is to be told of.
    #[inline]
    pub(super) fn wants(&self, now: Turn, moved: u16) -> bool {
        match self.area.load16(2, Acquire) {
            DISABLE => false,
            PLACE => {
                let place = self.area.load16(0, Relaxed);
                let mut event = place & 0x7fff;
                if (place >> 15 == 1) != now.lap {
                    // Of the lap before.
                    event = event.wrapping_sub(now.size);
                }
                need_event(event, now.at, now.at.wrapping_sub(moved))
            }
            _ => true,
        }
    }
}
