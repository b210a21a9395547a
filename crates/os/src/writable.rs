//! Whether a line can be written without waiting for whoever reads it.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::timespec;

/// Whether a descriptor takes bytes within so much time: a pipe takes `PIPE_BUF` (4096) then without waiting. One whose
/// reader has gone takes them too, and the write says so.
pub fn writable(fd: impl AsFd, within: Duration) -> bool {
    let within = timespec(within.as_nanos() as u64);
    poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&within)).is_ok_and(|ready| ready > 0)
}
