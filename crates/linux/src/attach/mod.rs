//! Sets the epoll and application part of a policy in running, unmodified programs, from outside.
//!
//! - [`Plan`]: the part of a policy that can be set from outside.
//! - [`Attachment`]: a process and all its descendants, kept under a policy until they are released.
//! - [`run()`], [`keep`]: hold a policy while a program runs, or for a given time.
//!
//! The device's part of a policy is set by `apply`.

mod attached;
mod attachment;
mod event;
mod forwarding;
mod inherited;
mod inherited_cpus;
mod moved;
mod napi;
mod pace;
mod pin;
mod plan;
mod restoration;
mod run;
mod witness;

pub(crate) use attached::MAX_DESCRIPTORS;
pub(crate) use attachment::cpu_time;
pub use attachment::{Attachment, Scan};
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
