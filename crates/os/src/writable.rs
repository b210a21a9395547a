//! A writability check for a descriptor with a slow reader.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::timespec;

/// Whether a descriptor becomes writable within a time limit. A pipe then takes `PIPE_BUF` bytes (4096) without
/// blocking. A descriptor whose reader has gone counts as writable, and the write reports the error.
pub fn writable(fd: impl AsFd, within: Duration) -> bool {
    let within = timespec(within.as_nanos() as u64);
    poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&within)).is_ok_and(|ready| ready > 0)
}
