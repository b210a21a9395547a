//! World 3: the kernel's own NAPI, set, watched and repaired, under unmodified programs.
//!
//! - [`support`]: whether this kernel is enough for a policy.
//! - [`place`], [`process_change`]: what can be changed on a device, and in a process.
//! - [`journal`], [`apply`]: every change is written down before it is made, and can be put back.
//! - [`attach`]: a running program's epoll descriptors, set from outside.
//! - [`guard`]: a queue that is starved under suspension is found, and helped.
//! - [`session`]: device, program and guard under one policy, set and put back in order.
//! - [`placement`]: which CPU is whose: interrupts, threads and workers of a device's queues.
//! - [`doctor`], [`show`]: what is wrong, and what there is.
//!
//! Nothing here decides what a policy means: that is `napkin-core`'s. Nothing here prints.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod apply;
pub mod attach;
pub mod doctor;
pub mod guard;
pub mod journal;
pub mod place;
pub mod placement;
pub mod process_change;
pub mod session;
pub mod show;
pub mod support;
