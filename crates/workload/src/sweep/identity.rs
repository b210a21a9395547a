//! What tells a sweep, and each of its points, from others: the columns in front of the figures.

use super::shard::Shard;

/// The first columns of every sheet. The hashes are of all that a point's figures depend on and that
/// has no column of its own (`settings`), and of that and all values that are varied (`sweep`).
pub(super) const LEADING: [&str; 5] = ["sweep", "point", "points", "settings", "version"];

/// The column that only the sheet of a shard has, behind [`LEADING`].
pub(super) const SHARD: &str = "shard";

/// A sweep's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// Sixteen digits that depend on all that the sweep's figures depend on.
    pub(super) sweep: String,
    /// Points of the whole product.
    pub(super) points: u64,
    /// Sixteen digits, as `sweep`, without the values of its points.
    pub(super) settings: String,
    /// Version of the program that made it.
    pub(super) version: String,
    /// Which part is run; `None` for all of it.
    pub(super) shard: Option<Shard>,
    /// The columns that name a point's own values: `workload` to the last parameter.
    pub(super) naming: Vec<String>,
}

impl Identity {
    /// The columns in front of the figures.
    pub(super) fn header(&self) -> Vec<String> {
        let leading = LEADING.iter().map(|it| (*it).to_owned());
        let shard = self.shard.map(|_| SHARD.to_owned());
        leading.chain(shard).chain(self.naming.iter().cloned()).collect()
    }

    /// The fields under them, of a point with these values.
    pub(super) fn fields(&self, point: u64, values: &[String]) -> Vec<String> {
        let (point, points) = (point.to_string(), self.points.to_string());
        let (sweep, settings) = (self.sweep.clone(), self.settings.clone());
        let leading = [sweep, point, points, settings, self.version.clone()].into_iter();
        let shard = self.shard.map(|it| it.to_string());
        leading.chain(shard).chain(values.iter().cloned()).collect()
    }
}
