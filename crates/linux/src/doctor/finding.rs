//! What a check found, and all of them together.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::fix::{self, Fix};

/// How a condition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It does not hold: the mode does not work, or not as its policy says.
    Fault,
    /// It works, and would work better, or at less cost for others.
    Advice,
    /// It could not be seen.
    Unknown,
    /// As the policy wants it.
    Ok,
}

impl Status {
    /// Its name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Fault => "fault",
            Status::Advice => "advice",
            Status::Unknown => "unknown",
            Status::Ok => "ok",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What one check found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The check's name, see [`CHECKS`](super::CHECKS).
    pub check: &'static str,
    /// How it is.
    pub status: Status,
    /// What that means.
    pub what: String,
    /// How it was seen; of [`Status::Unknown`], what was missing.
    pub seen: String,
    /// The changes that fix it, where there are some. In JSON: the commands, in one line.
    pub fix: Vec<Fix>,
    /// Why these would be refused now, and what to do first: a comment behind the commands.
    pub in_the_way: Option<String>,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut finding = serializer.serialize_struct("Finding", 5)?;
        finding.serialize_field("check", self.check)?;
        finding.serialize_field("status", &self.status)?;
        finding.serialize_field("what", &self.what)?;
        finding.serialize_field("seen", &self.seen)?;
        finding.serialize_field("fix", &self.command())?;
        finding.end()
    }
}

impl Finding {
    pub(super) fn ok(what: impl Into<String>, seen: impl Into<String>) -> Finding {
        Finding::new(Status::Ok, what, seen, None)
    }

    /// It could be better.
    pub(super) fn advice(
        what: impl Into<String>,
        seen: impl Into<String>,
        fix: impl IntoIterator<Item = Fix>,
    ) -> Finding {
        Finding::new(Status::Advice, what, seen, fix)
    }

    /// It is wrong.
    pub(super) fn fault(
        what: impl Into<String>,
        seen: impl Into<String>,
        fix: impl IntoIterator<Item = Fix>,
    ) -> Finding {
        Finding::new(Status::Fault, what, seen, fix)
    }

    /// The command that fixes it, where there is one: a line for a shell.
    pub fn command(&self) -> Option<String> {
        fix::line(&self.fix, self.in_the_way.as_deref())
    }

    /// It could not be seen, and what was missing.
    pub(super) fn unknown(what: impl Into<String>, missing: impl Into<String>) -> Finding {
        Finding::new(Status::Unknown, what, missing, None)
    }

    fn new(
        status: Status,
        what: impl Into<String>,
        seen: impl Into<String>,
        fix: impl IntoIterator<Item = Fix>,
    ) -> Finding {
        // The check's name, and what is in the way, are filled in by whoever runs the check.
        Finding {
            check: "",
            status,
            what: what.into(),
            seen: seen.into(),
            fix: fix.into_iter().collect(),
            in_the_way: None,
        }
    }
}

/// Everything that was found about a device and the programs on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// The interface's name, as `ip link` prints it.
    pub ifname: String,
    /// The policy whose conditions were checked.
    pub policy: String,
    /// Whether that policy was asked for; otherwise it is the one in force by the settings.
    pub asked: bool,
    /// The programs that were looked at, as `comm[pid]`.
    pub programs: Vec<String>,
    /// Faults first, then advice, what is unknown, and what is in order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many findings have a status.
    pub fn count(&self, status: Status) -> usize {
        self.findings.iter().filter(|finding| finding.status == status).count()
    }

    /// `2 faults, 1 advice, 14 in order, 3 unknown`.
    pub fn summary(&self) -> String {
        let faults = self.count(Status::Fault);
        format!(
            "{faults} fault{}, {} advice, {} in order, {} unknown",
            if faults == 1 { "" } else { "s" },
            self.count(Status::Advice),
            self.count(Status::Ok),
            self.count(Status::Unknown),
        )
    }
}
