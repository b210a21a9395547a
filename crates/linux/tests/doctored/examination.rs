//! The findings of one examination by the doctor.

use std::collections::BTreeSet;

use napkin_linux::doctor::{Finding, Status};

/// The findings of one examination by the doctor.
#[derive(Debug)]
pub(crate) struct Examination {
    pub(crate) policy: String,
    pub(crate) programs: Vec<String>,
    pub(super) findings: Vec<Finding>,
}

impl Examination {
    pub(crate) fn of(&self, status: Status) -> Vec<&Finding> {
        self.findings.iter().filter(|finding| finding.status == status).collect()
    }

    pub(crate) fn checks(&self, status: Status) -> BTreeSet<&'static str> {
        self.of(status).iter().map(|finding| finding.check).collect()
    }

    pub(crate) fn faults(&self) -> BTreeSet<&'static str> {
        self.checks(Status::Fault)
    }

    /// Returns the worst finding of a check.
    #[track_caller]
    pub(super) fn worst(&self, check: &str) -> &Finding {
        self.findings.iter().find(|finding| finding.check == check).expect(check)
    }

    #[track_caller]
    pub(crate) fn fix(&self, check: &str) -> String {
        self.worst(check).command().expect(check)
    }

    #[track_caller]
    pub(crate) fn seen(&self, check: &str) -> String {
        self.worst(check).seen.clone()
    }
}
