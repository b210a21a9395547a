//! Why a synthetic queue cannot be made, and the limits of its configuration.

use std::io;

use napkin_policy::Ns;
use thiserror::Error;

/// The highest rate of arrivals, per second: one per nanosecond.
pub const MAX_RATE: f64 = 1e9;

/// The lowest rate of arrivals, per second: one in about 12 days.
pub const MIN_RATE: f64 = 1e-6;

/// The longest receive or transmit ring, in frames.
pub const MAX_RING: u32 = 65_536;

/// Why a synthetic queue cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The rate is no number, or out of range.
    #[error(
        "a rate of {per_second} frames a second is out of range: give {MIN_RATE} to {MAX_RATE}"
    )]
    Rate {
        /// What was given.
        per_second: f64,
    },
    /// A burst of no frames.
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
        /// Nanoseconds between them.
        within: Ns,
    },
    /// The arrival would fall together with the unmasking.
    #[error("the gap between unmasking and the next arrival is at least 1 ns")]
    NoGap,
    /// A flood without requests.
    #[error("a flood keeps at least 1 request outstanding")]
    NothingOutstanding,
    /// A ring of an impossible size.
    #[error("a {name} ring of {size} frames is out of range: give 1 to {MAX_RING}")]
    Ring {
        /// The ring, receive or transmit.
        name: &'static str,
        /// What was given.
        size: u32,
    },
    /// No flow to give the frames to.
    #[error("a queue has at least 1 flow")]
    NoFlows,
    /// Moderation waits for more frames than the ring can hold.
    #[error("rx-frames of {frames} is never reached in a ring of {ring}: give at most {ring}")]
    FramesBeyondRing {
        /// `rx-frames` as it was given.
        frames: u32,
        /// The ring's size.
        ring: u32,
    },
    /// The operating system gave no timer.
    #[error("cannot make the interrupt timer: {0}; is the limit of open files reached?")]
    Timer(#[from] io::Error),
}
