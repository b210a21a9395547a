//! The device part of a policy: setting it on the kernel's own devices, and putting it back.
//!
//! - [`Backend`]: reads and writes the kernel; [`Linux`] is the real one.
//! - [`plan`]: the changes that a policy needs, and their order. Pure.
//! - [`apply`]: makes them, each recorded in the [`journal`](crate::journal) first.
//! - [`Temporary`]: applies a policy for a limited time. [`restore`]: puts back what the journal records.
//! - [`HeldDevice`]: a locked device that is repeatedly brought to its wanted state.
//! - [`end_suspension`], [`give_back`]: one instance's suspension, for a [`guard`](crate::guard).
//! - [`difference`], [`difference_of`]: what napkin has changed, and what other programs have changed since.
//!
//! The program's part of a policy is set by [`attach`](crate::attach).

mod backend;
mod difference;
mod error;
mod execute;
#[cfg(test)]
pub(crate) mod fake;
mod find_device;
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
pub use restore::{RestoreOptions, restore, restore_leftovers};
pub use restored::{DeviceRestored, Failed, OtherJournal, ProcessRestored, Restoration};
pub(crate) use suspension::held_by_others;
pub use suspension::{Suspension, end_suspension, give_back};
pub use temporary::{Ended, NOT_STOPPED, Temporary};
