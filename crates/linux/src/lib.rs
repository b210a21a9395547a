//! World 3: the kernel's own NAPI, set, watched and repaired, under unmodified programs.
//!
//! - [`netlink`], [`sysfs`], [`procfs`], [`process`], [`count`]: the kernel's interfaces.
//! - [`device`]: a device with its queues, its instances and their [`settings`].
//! - [`kernel`]: what this kernel can do, probed; [`support`]: whether that is enough for a policy.
//! - [`journal`], [`apply`]: every change is written down before it is made, and can be put back.
//! - [`attach`]: a running program's epoll descriptors, set from outside; [`open_files`]: so that
//!   there are enough descriptors of this process for it.
//! - [`doctor`], [`show`], [`sample`]: what is wrong, what there is, what is going on.
//!
//! Nothing here decides what a policy means: that is `napkin-core`'s. Nothing here prints.

pub mod apply;
pub mod attach;
pub mod count;
pub mod device;
pub mod doctor;
pub mod guard;
pub mod journal;
pub mod kernel;
pub mod namespace;
pub mod netlink;
pub mod open_files;
pub mod process;
pub mod sample;
pub mod settings;
pub mod shell;
pub mod show;
pub mod support;
pub mod sysfs;

pub use device::{Device, Napi};
pub use settings::{Setting, Settings};
