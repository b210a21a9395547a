//! Wishes: which policy which device is to have, written down in `/etc/napkin`, and held.
//!
//! - [`Wish`]: what a file says. [`Directory`]: the files, read without trust and written whole.
//! - [`Match`]: which devices are meant.
//! - [`Unit`]: whose programs are meant.
//! - [`assign`]: what all wishes together want of one device, and which of them cannot be had.
//! - [`Survey`]: whether each wish is in force now. It takes no right and changes nothing.
//! - [`Keeper`]: brings devices to what is wished, at its start and whenever something changes.
//!
//! What a policy takes on a device, and how that is written down and put back, is `napkin-linux`'.
//! Nothing here prints.
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
// For its tests, which need rights and so are shown as ignored without them.
#[doc(hidden)]
pub use watch::{Follow, Watch, WatchError, Woken};
