//! World 3: the kernel's own NAPI, configured, monitored and restored, under unmodified programs.
//!
//! - [`support`]: whether the running kernel can apply a policy.
//! - [`place`], [`process_change`]: the settings that can be changed on a device, and in a process.
//! - [`journal`], [`apply`]: every change is written to the journal before it is made, and can be put back.
//! - [`attach`]: sets the epoll contexts and sockets of a running program from outside.
//! - [`guard`]: detects a queue that starves under suspension, and ends the suspension.
//! - [`session`]: one policy on a device and a program, with its guard, set and put back in order.
//! - [`placement`]: which CPUs the interrupts, threads and workers of a device's queues get.
//! - [`doctor`], [`show`]: diagnosis of misconfigured devices, and a listing of the current state.
//!
//! The meaning of a policy is defined in `napkin-core`, not here. Nothing here prints.
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
