//! Time as a value.
//!
//! The core never reads a clock: every entry point takes the time as an argument, so that the
//! engine's monotonic clock, the machine's virtual time and a test's counter are the same thing to
//! it.

/// Nanoseconds: a point on the world's monotonic clock, or a length of time.
pub type Ns = u64;

/// No deadline: later than any time a world can reach (584 years).
pub const NEVER: Ns = Ns::MAX;

/// Nanoseconds in one microsecond, the unit in which the kernel takes most timeouts.
pub const MICROSECOND: Ns = 1_000;

/// Nanoseconds in one millisecond.
pub const MILLISECOND: Ns = 1_000_000;
