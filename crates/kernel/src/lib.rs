//! Access to the kernel's interfaces: the settings of a device's NAPI instances, the processes that they serve, and
//! their activity.
//!
//! - [`netlink`], [`sysfs`], [`process`], [`count`]: one module per interface.
//! - [`device`]: a device with its queues, its instances and their [`settings`].
//! - [`topology`]: which CPUs share a core, are near a device, or are isolated.
//! - [`probe`]: which features this kernel has, found by trying them.
//! - [`namespace`]: threads in another network namespace; [`open_files`]: raising the limit of
//!   descriptors; [`shell`]: quoting of names in commands that a user may copy.
//! - [`listening`]: the ports on which sockets of a namespace serve.
//!
//! Policies, the journal and restoring settings belong to `napkin-linux`. Nothing here prints.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod count;
pub mod device;
pub mod listening;
pub mod namespace;
pub mod netlink;
pub mod open_files;
pub mod probe;
pub mod process;
pub mod settings;
pub mod shell;
pub mod sysfs;
pub mod topology;

pub use device::{Device, Napi};
pub use settings::{Setting, Settings};
