//! The errors of a synthetic queue's configuration, and the limits they refer to.

use std::io;

use napkin_policy::Ns;
use thiserror::Error;

/// The highest rate of arrivals, per second: one per nanosecond.
pub const MAX_RATE: f64 = 1e9;

/// The lowest rate of arrivals, per second: one in about 12 days.
pub const MIN_RATE: f64 = 1e-6;

/// The longest receive or transmit ring, in frames.
pub const MAX_RING: u32 = 65_536;

/// Why a synthetic queue could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The rate is not a number, or out of range.
    #[error(
        "a rate of {per_second} frames a second is out of range: give {MIN_RATE} to {MAX_RATE}"
    )]
    Rate {
        /// The rate that was given, frames a second.
        per_second: f64,
    },
    /// A burst has no frames.
    #[error("a burst has at least 1 frame")]
    EmptyBurst,
    /// Bursts would overlap.
    #[error(
        "a burst of {size} frames {within} ns apart does not end before the next one starts: lower \
         the rate, the size or the gap"
    )]
    BurstTooLong {
        /// Frames in a burst.
        size: u32,
        /// Time between them, ns.
        within: Ns,
    },
    /// The arrival would coincide with the unmask.
    #[error("the gap between unmasking and the next arrival is at least 1 ns")]
    NoGap,
    /// A flood has no requests.
    #[error("a flood keeps at least 1 request outstanding")]
    NothingOutstanding,
    /// The size of a ring is out of range.
    #[error("a {name} ring of {size} frames is out of range: give 1 to {MAX_RING}")]
    Ring {
        /// The ring, receive or transmit.
        name: &'static str,
        /// The size that was given, in frames.
        size: u32,
    },
    /// There is no flow for the frames.
    #[error("a queue has at least 1 flow")]
    NoFlows,
    /// Moderation waits for more frames than the ring can hold.
    #[error("rx-frames of {frames} is never reached in a ring of {ring}: give at most {ring}")]
    FramesBeyondRing {
        /// `rx-frames` that was given.
        frames: u32,
        /// Size of the ring, in frames.
        ring: u32,
    },
    /// The operating system refused a timer descriptor.
    #[error("cannot make the interrupt timer: {0}; is the limit of open files reached?")]
    Timer(#[from] io::Error),
}
