//! Workloads and honest measurement of delivery policies.
//!
//! [`measure`] turns events into figures, [`report`] turns figures into tables, JSON and progress.

pub mod measure;
pub mod report;
