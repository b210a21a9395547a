//! The identity of a sweep and of its points: the columns that precede the measured values.

use super::shard::Shard;

/// The first columns of every sheet. `settings` is a hash of everything that a point's values depend on and that
/// has no column of its own; `sweep` is a hash of that and of all varied values.
pub(super) const LEADING: [&str; 5] = ["sweep", "point", "points", "settings", "version"];

/// The additional column in the sheet of a shard, after [`LEADING`].
pub(super) const SHARD: &str = "shard";

/// The identity of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// 16 hexadecimal digits: a hash of everything that the sweep's values depend on.
    pub(super) sweep: String,
    /// The number of points of the whole cross product.
    pub(super) points: u64,
    /// 16 hexadecimal digits: the same hash without the values of the points.
    pub(super) settings: String,
    /// The version of the program that runs it.
    pub(super) version: String,
    /// The shard that is run; `None` for the whole sweep.
    pub(super) shard: Option<Shard>,
    /// The columns that identify a point by its parameters: from `workload` to the last parameter.
    pub(super) naming: Vec<String>,
}

impl Identity {
    /// Returns the names of the columns that precede the measured values.
    pub(super) fn header(&self) -> Vec<String> {
        let leading = LEADING.iter().map(|it| (*it).to_owned());
        let shard = self.shard.map(|_| SHARD.to_owned());
        leading.chain(shard).chain(self.naming.iter().cloned()).collect()
    }

    /// Returns the fields of these columns, for a point with these parameter values.
    pub(super) fn fields(&self, point: u64, values: &[String]) -> Vec<String> {
        let (point, points) = (point.to_string(), self.points.to_string());
        let (sweep, settings) = (self.sweep.clone(), self.settings.clone());
        let leading = [sweep, point, points, settings, self.version.clone()].into_iter();
        let shard = self.shard.map(|it| it.to_string());
        leading.chain(shard).chain(values.iter().cloned()).collect()
    }
}
