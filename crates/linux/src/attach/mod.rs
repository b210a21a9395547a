//! An unmodified, running program under a policy's epoll and application part, set from outside.
//!
//! - [`Plan`]: what of a policy can be set from outside.
//! - [`Attachment`]: a process, its children and theirs, kept under a policy until it is let go.
//! - [`run()`], [`keep`]: for as long as a program runs, or as asked.
//!
//! The device's part of a policy is `apply`'s.

mod attached;
mod attachment;
mod event;
mod inherited;
mod inherited_cpus;
mod moved;
mod napi;
mod pace;
mod passing;
mod pin;
mod plan;
mod restoration;
mod run;
mod witness;

pub(crate) use attached::MAX_DESCRIPTORS;
pub(crate) use attachment::cpu_time;
pub use attachment::{Attachment, Look};
pub use event::{Detail, Event, EventKind, Lines};
pub(crate) use inherited::restore_inherited;
pub(crate) use inherited_cpus::{Pins, known as known_threads};
pub(crate) use moved::restore_moved;
pub use napi::{cpus_by_napi, set_on};
pub use pace::{FAST, FAST_FOR, SLOW};
pub use pin::Resolver;
pub use plan::{Plan, PlanError};
pub use restoration::Restoration;
pub use run::{Ended, Exit, RunError, RunEvent, keep, run};
