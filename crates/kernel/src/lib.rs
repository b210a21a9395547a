//! The kernel's interfaces, read and written: what a device's instances are set to, whom they serve, and
//! what they do.
//!
//! - [`netlink`], [`sysfs`], [`process`], [`count`]: one module an interface.
//! - [`device`]: a device with its queues, its instances and their [`settings`].
//! - [`topology`]: which CPUs share a core, which are near a device, which are kept free.
//! - [`probe`]: what this kernel can do, tried.
//! - [`namespace`]: a thread in another network namespace; [`open_files`]: so that there are enough
//!   descriptors; [`shell`]: names in commands that somebody may copy.
//!
//! Nothing here decides, journals or puts back: that is `napkin-linux`'s. Nothing here prints.
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
