//! Events of a keeper, and their messages.

use std::fmt;
use std::path::PathBuf;

use napkin_linux::apply::{DeviceRestored, Foreign};
use napkin_linux::place::Change;

use crate::corrections::PAUSE;

/// An event of a keeper.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The wishes were read.
    Read {
        /// Their directory.
        directory: PathBuf,
        /// The number of wishes.
        wishes: usize,
        /// The number of invalid files.
        bad: usize,
    },
    /// A device was brought to the wished state.
    Set {
        /// The device's name.
        ifname: String,
        /// The changes.
        changes: Vec<Change>,
    },
    /// Another program had changed this, and it was set again.
    Again(Foreign),
    /// Something cannot be held, or no longer: reported once, until it is over.
    Problem(String),
    /// A problem is over.
    Over(String),
    /// A device was restored, as no wish matches it any more.
    PutBack(DeviceRestored),
    /// An event of a unit's program, or of a queue that one starves.
    Program(String),
    /// A device has left this network namespace.
    Gone {
        /// Its former name.
        ifname: String,
        /// Whether it is known to be deleted, and not moved to another namespace.
        deleted: bool,
    },
    /// Another program changes a device repeatedly: it is examined less often for a while.
    Fight {
        /// The device's name.
        ifname: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Read { directory, wishes, bad } => {
                let plural = if *wishes == 1 { "wish" } else { "wishes" };
                write!(f, "{}: {wishes} {plural}", directory.display())?;
                match bad {
                    0 => Ok(()),
                    1 => f.write_str(", and a file that is wrong"),
                    bad => write!(f, ", and {bad} files that are wrong"),
                }
            }
            Event::Set { ifname, changes } => {
                let plural = if changes.len() == 1 { "setting" } else { "settings" };
                write!(f, "{ifname}: {} {plural} changed", changes.len())
            }
            Event::Again(foreign) => write!(f, "set again: {foreign}"),
            Event::Problem(why) | Event::Program(why) => f.write_str(why),
            Event::Over(why) => write!(f, "over: {why}"),
            Event::PutBack(restored) => {
                let DeviceRestored { ifname, changes, .. } = restored;
                write!(f, "{ifname}: {} settings put back", changes.len())?;
                restored.words().iter().try_for_each(|why| write!(f, "; {why}"))
            }
            Event::Gone { ifname, deleted: true } => write!(f, "{ifname}: the device is gone"),
            Event::Gone { ifname, deleted: false } => write!(
                f,
                "{ifname}: the device is gone from this network namespace; if it is in another one, napkin \
                 restore puts it back there"
            ),
            Event::Fight { ifname } => write!(
                f,
                "{ifname}: another program changes again and again what is wished: looked at every {} s for \
                 now",
                PAUSE.as_secs()
            ),
        }
    }
}
