//! Times on the command line, in the types that options have.

use std::time::Duration;

use napkin_policy::{Time, TimeError};
use napkin_workload::machine::plan::LONGEST;

/// A time in nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, TimeError> {
    text.parse().map(|Time(time)| time)
}

/// The virtual time of a run in nanoseconds, as far as any run goes.
pub(crate) fn virtual_time(text: &str) -> Result<u64, String> {
    let time = nanoseconds(text).map_err(|error| error.to_string())?;
    if time > LONGEST { Err("a run has at most 1h of virtual time".into()) } else { Ok(time) }
}

/// The same, where the operating system's clock is meant.
pub(crate) fn duration(text: &str) -> Result<Duration, TimeError> {
    nanoseconds(text).map(Duration::from_nanos)
}
