//! Findings of the checks, and the report of all of them.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::fix::{self, Fix};

/// The outcome for a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The condition does not hold: the mode does not work, or not as its policy says.
    Fault,
    /// The mode works, and would work better, or at less cost for others.
    Advice,
    /// The condition could not be observed.
    Unknown,
    /// The condition holds.
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

/// The result of one check for one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check, see [`CHECKS`](super::CHECKS).
    pub check: &'static str,
    /// The outcome.
    pub status: Status,
    /// The conclusion.
    pub what: String,
    /// The evidence; for [`Status::Unknown`], what was missing.
    pub seen: String,
    /// The changes that fix it, if any. In JSON: the commands, in one line.
    pub fix: Vec<Fix>,
    /// Why these commands would be refused now, and what to do first: printed as a comment behind them.
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

    /// Creates a finding that something could be better.
    pub(super) fn advice(
        what: impl Into<String>,
        seen: impl Into<String>,
        fix: impl IntoIterator<Item = Fix>,
    ) -> Finding {
        Finding::new(Status::Advice, what, seen, fix)
    }

    /// Creates a finding that something is wrong.
    pub(super) fn fault(
        what: impl Into<String>,
        seen: impl Into<String>,
        fix: impl IntoIterator<Item = Fix>,
    ) -> Finding {
        Finding::new(Status::Fault, what, seen, fix)
    }

    /// The shell command line that fixes it, if there is one.
    pub fn command(&self) -> Option<String> {
        fix::line(&self.fix, self.in_the_way.as_deref())
    }

    /// Creates a finding that something could not be observed; `missing` says why.
    pub(super) fn unknown(what: impl Into<String>, missing: impl Into<String>) -> Finding {
        Finding::new(Status::Unknown, what, missing, None)
    }

    fn new(
        status: Status,
        what: impl Into<String>,
        seen: impl Into<String>,
        fix: impl IntoIterator<Item = Fix>,
    ) -> Finding {
        // `examine` fills in the check's name and `in_the_way`.
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

/// All findings about a device and the programs on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// The interface's name, as `ip link` prints it.
    pub ifname: String,
    /// The policy whose conditions were checked.
    pub policy: String,
    /// Whether that policy was requested; otherwise the settings imply it.
    pub asked: bool,
    /// The programs that were examined, as `comm[pid]`.
    pub programs: Vec<String>,
    /// Faults first, then advice, unknown conditions, and those in order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The number of findings with a status.
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
