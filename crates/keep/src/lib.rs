//! Wishes: files in `/etc/napkin` that say which policy which device is to have, and the keeper that holds
//! them in force.
//!
//! - [`Wish`]: the contents of a file. [`Directory`]: the files, validated when read and written atomically.
//! - [`Match`]: selects devices.
//! - [`Unit`]: selects the programs of a systemd unit.
//! - [`assign`]: combines all wishes for one device, and reports which of them cannot be had.
//! - [`Survey`]: checks whether each wish is in force now. It needs no privilege and changes nothing.
//! - [`Keeper`]: brings devices to the wished state, at its start and at every change.
//!
//! `napkin-linux` defines the settings of a policy on a device, and journals and restores them. Nothing here prints.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod assign;
mod corrections;
mod device_match;
mod directory;
mod event;
mod guards;
mod keeper;
mod parse;
mod programs;
mod refusals;
mod sd_notify;
mod survey;
mod unit;
mod watch;
mod wish;

pub use assign::{Assignment, Share, assign};
pub use device_match::Match;
pub use directory::{Directory, DirectoryError, Found};
pub use event::Event;
pub use keeper::{Keeper, KeeperError, Options};
pub use parse::{BadFile, Mistake};
pub use survey::{OnDevice, Standing, State, Survey};
pub use unit::Unit;
pub use wish::Wish;
// For its tests, which need privileges, and are shown as ignored without them.
#[doc(hidden)]
pub use watch::{Follow, Watch, WatchError, Woken};
