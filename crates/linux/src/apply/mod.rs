//! A policy's device part, set on the kernel's own devices, and put back.
//!
//! - [`Backend`]: how the kernel is read and written; [`Linux`] is the real one.
//! - [`plan`]: which changes a policy takes, and in which order. Pure.
//! - [`apply`]: makes them, each written down in the [`journal`](crate::journal) before.
//! - [`Temporary`]: the same for as long as something runs. [`restore`]: puts back what the journal knows.
//! - [`HeldDevice`]: a device that is brought to what is wanted of it, again and again.
//! - [`end_suspension`], [`give_back`]: one instance's suspension, for a [`guard`](crate::guard).
//! - [`difference`], [`difference_of`]: what napkin changed, and what somebody else has changed since.
//!
//! The program's part of a policy is [`attach`](crate::attach)'s.

mod again;
mod backend;
mod difference;
mod error;
mod execute;
#[cfg(test)]
pub(crate) mod fake;
mod fold;
mod foreign;
mod held_device;
mod lifeline;
mod linux;
mod located;
mod neighbours;
mod plan;
mod restore;
mod restored;
mod suspension;
mod temporary;
#[cfg(test)]
mod tests;
mod undo;

pub use backend::{Backend, Snapshot, Target, Whereabouts};
pub use difference::{Difference, difference, difference_of};
pub use error::{ApplyError, BackendError, PlanError};
pub use execute::{Applied, Request, apply};
pub use fold::{Folded, fold};
pub use foreign::Foreign;
pub use held_device::{HeldDevice, Kept};
pub use lifeline::{Lifeline, can_delay, lifelines};
pub use linux::{Linux, links_and_sysfs};
pub use neighbours::{Neighbours, neighbours};
pub use plan::{Options, Plan, Wanted, changes, in_order, plan, wanted};
pub use restore::{RestoreOptions, restore, restore_left};
pub use restored::{DeviceRestored, Failed, OtherJournal, ProcessRestored, Restoration};
pub(crate) use suspension::held_by_others;
pub use suspension::{Suspension, end_suspension, give_back};
pub use temporary::{Ended, NOT_STOPPED, Temporary};
