//! Times on the command line, in the types that options have.

use std::time::Duration;

use napkin_core::{Time, TimeError};

/// A time in nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, TimeError> {
    text.parse().map(|Time(time)| time)
}

/// The same, where the operating system's clock is meant.
pub(crate) fn duration(text: &str) -> Result<Duration, TimeError> {
    nanoseconds(text).map(Duration::from_nanos)
}
