//! The outcome of a restore, for display or as JSON.

use std::path::PathBuf;

use serde::Serialize;

use super::backend::Snapshot;
use super::foreign::Foreign;
use crate::journal::Subject;
use crate::place::{Change, Place, all_as_json, as_json};
use napkin_kernel::shell;

/// A place that could not be put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failed {
    /// The place on the device.
    #[serde(flatten, serialize_with = "as_json")]
    pub place: Place,
    /// The reason, in words.
    pub why: String,
}

/// The outcome for one device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceRestored {
    /// The interface's name, as `ip link` prints it.
    pub ifname: String,
    /// Whether the device was deleted; its changes are gone with it.
    pub gone: bool,
    /// Its location, if it is not in this namespace and not known to be deleted.
    pub away: Option<String>,
    /// Whether the device is up.
    pub up: bool,
    /// The changes that were put back (or would be).
    pub changes: Vec<Change>,
    /// Values that another program set, which were left alone.
    pub foreign: Vec<Foreign>,
    /// Places that do not exist now, and may return: instances of a device that is down, or that has fewer
    /// queues.
    #[serde(serialize_with = "all_as_json")]
    pub missing: Vec<Place>,
    /// Places that could not be put back.
    pub failed: Vec<Failed>,
    /// The number of places that the journal still records.
    pub kept: usize,
    /// Whether these records were dropped.
    pub forgotten: bool,
    /// The reason if nothing was done at all.
    pub refused: Option<String>,
    /// The failure of the journal, if any.
    pub journal: Option<String>,
}

impl DeviceRestored {
    pub(super) fn of(at: &Snapshot) -> DeviceRestored {
        DeviceRestored {
            ifname: at.device.ifname.clone(),
            up: at.device.up,
            ..DeviceRestored::default()
        }
    }

    /// Whether some place does not have its original value, dropped from the journal or not.
    pub fn left(&self) -> bool {
        let left = !self.foreign.is_empty() || !self.missing.is_empty() || !self.failed.is_empty();
        left || self.away.is_some()
    }

    /// Describes every place that does not have its original value, and every failure, in one sentence each;
    /// empty if there is none. Does not say whether the records were dropped.
    pub fn words(&self) -> Vec<String> {
        let ifname = &self.ifname;
        let named = |why: &String| format!("{ifname}: {why}");
        let refused =
            self.refused.iter().map(|why| format!("{ifname}: nothing was put back: {why}"));
        let foreign = self.foreign.iter().map(|foreign| format!("left alone: {foreign}"));
        let failed = self.failed.iter().map(|Failed { place, why }| {
            let (what, subject) = (place.what(), place.subject());
            format!("{what} of {ifname} {subject} is not put back: {why}")
        });
        // There may be thousands, all for the same reason.
        let missing = self.missing.first().map(|place| {
            let are = match self.missing.len() - 1 {
                0 => "is".to_owned(),
                more => format!("and {more} more are"),
            };
            let (what, subject, word) = (place.what(), place.subject(), shell::word(ifname));
            let why = if self.up {
                format!("now, and may come back (more channels: ethtool -L {word})")
            } else {
                format!("while it is down (ip link set {word} up)")
            };
            format!("{what} of {ifname} {subject} {are} not there {why}: then napkin restore")
        });
        let all = refused.chain(self.away.iter().map(named)).chain(foreign).chain(failed);
        all.chain(missing).chain(self.journal.iter().map(named)).collect()
    }

    /// Whether every place has its original value, or the remaining records were dropped.
    pub fn is_complete(&self) -> bool {
        self.refused.is_none() && self.journal.is_none() && (!self.left() || self.forgotten)
    }
}

/// The outcome for one process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessRestored {
    /// Process ID, as this PID namespace has it.
    pub pid: i32,
    /// The changes that were put back (or would be), in words.
    pub changes: Vec<String>,
    /// The number of changes that ended with the process, or with its descriptors.
    pub gone: usize,
    /// The changes that were left alone, each with the reason.
    pub left: Vec<String>,
    /// Whether the records of these were dropped.
    pub forgotten: bool,
}

/// Any other file of the journal's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
#[non_exhaustive]
pub enum OtherJournal {
    /// Of another boot, whose settings ended with it: removed.
    OtherBoot {
        /// The device or the process of the journal.
        subject: Subject,
    },
    /// Of a network namespace that is gone: removed.
    NamespaceGone {
        /// The device or the process of the journal.
        subject: Subject,
        /// Its network namespace: `net:[INODE]`, as in `/proc/PID/ns`.
        namespace: String,
    },
    /// Of another network namespace: left alone.
    OtherNamespace {
        /// The device or the process of the journal.
        subject: Subject,
        /// Its network namespace: `net:[INODE]`, as in `/proc/PID/ns`.
        namespace: String,
        /// The journal's file, for a restore from within that namespace.
        path: PathBuf,
    },
    /// It cannot be read or removed, or its owner cannot be determined.
    Unreadable {
        /// The journal's file.
        path: PathBuf,
        /// The reason, in words.
        why: String,
        /// Whether it was removed.
        forgotten: bool,
    },
}

/// The outcome of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Restoration {
    /// The outcome for each device that had a journal.
    pub devices: Vec<DeviceRestored>,
    /// The outcome for each process that had a journal.
    pub processes: Vec<ProcessRestored>,
    /// The other files, each with its reason.
    pub also: Vec<OtherJournal>,
}

impl Restoration {
    /// Whether nothing of this namespace remains to be put back.
    pub fn is_complete(&self) -> bool {
        let unreadable =
            |also: &OtherJournal| matches!(also, OtherJournal::Unreadable { forgotten: false, .. });
        self.devices.iter().all(DeviceRestored::is_complete)
            && self.processes.iter().all(|it| it.left.is_empty() || it.forgotten)
            && !self.also.iter().any(unreadable)
    }

    /// Whether the journal had no records.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.processes.is_empty() && self.also.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Value;
    use napkin_kernel::settings::Setting;

    #[test]
    fn whatever_is_left_is_in_the_words() {
        let place = Place::Device(Setting::GroFlushTimeout);
        let none = || DeviceRestored { ifname: "va".into(), ..DeviceRestored::default() };
        let [now, set, before] = [7, 20_000, 0].map(Value::Number);
        let ifname = String::from("va");
        let foreign = Foreign { ifname, place: place.clone(), now, set, before };
        let why = String::from("why");
        let failed = Failed { place: place.clone(), why: why.clone() };
        let each = [
            DeviceRestored { refused: Some(why.clone()), ..none() },
            DeviceRestored { away: Some(why.clone()), ..none() },
            DeviceRestored { foreign: vec![foreign], ..none() },
            DeviceRestored { failed: vec![failed], ..none() },
            DeviceRestored { missing: vec![place.clone(), place], ..none() },
            DeviceRestored { journal: Some(why), ..none() },
        ];
        for restored in each {
            let words = restored.words();
            assert!(!restored.is_complete() && words.len() == 1, "{words:?}");
            assert!(words[0].contains("va"), "{words:?}");
        }
        assert!(none().is_complete() && none().words().is_empty());
    }
}
