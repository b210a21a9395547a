//! What every world asks of the operating system, read or done in one place: the clock, rights, CPUs and
//! scheduling classes of threads, and what `/proc` says of CPUs, interrupts and threads.
//!
//! Nothing here knows of packets. Descriptors of other programs, netlink and sysfs are the linux world's.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod clock;
pub mod meter;
pub mod procfs;
pub mod rights;
pub mod sched;
pub mod signals;
pub mod usage;
mod writable;

pub use writable::writable;

/// What the last system call of this thread said.
pub fn last_error() -> rustix::io::Errno {
    let error = std::io::Error::last_os_error();
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}
