//! Operating system services that all worlds share: the clock, capabilities, CPU affinity and scheduling classes of
//! threads, signals, and the parts of `/proc` about CPUs, interrupts and threads.
//!
//! Nothing here deals with packets. Other programs' descriptors, netlink and sysfs belong to the linux world.
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

/// Returns the `errno` of this thread's last system call; `EIO` if there is none.
pub fn last_error() -> rustix::io::Errno {
    let error = std::io::Error::last_os_error();
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}
