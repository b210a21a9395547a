//! Merges the files of a sweep's shards into the file of the whole sweep.
//!
//! Each line of a sheet names its sweep and the sweep's number of points. So the files alone show whether they fit
//! together and whether a point is missing. The merged lines, sorted and without the column `shard`, are byte for
//! byte what a single process would have written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use csv::StringRecord;
use thiserror::Error;

use super::identity::SHARD;
use super::shard::Shard;
use super::sheet::{self, SheetError};
use super::table::Table;
use napkin_measure::report::file;

/// Why files could not be merged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A file is not a sweep's, or cannot be read.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// The merged file cannot be written.
    #[error(transparent)]
    Write(#[from] file::WriteError),
    /// The merged file exists already.
    #[error("{} is there already: name another file, or remove it", .0.display())]
    Exists(PathBuf),
    /// No file has a point.
    #[error("nothing to merge: no file has a point")]
    Nothing,
    /// Two files are from different sweeps, or one of them was modified.
    #[error("{} and {} do not fit together: {why}", one.display(), other.display())]
    Unfit {
        /// The first of the given files.
        one: PathBuf,
        /// The file that differs from it.
        other: PathBuf,
        /// The difference, and what to do about it.
        why: String,
    },
    /// Points are missing.
    #[error("{missing} of {points} points are missing ({which}): {why}")]
    Missing {
        /// The number of points that are in no file.
        missing: u64,
        /// The number of points of the sweep.
        points: u64,
        /// The first missing points.
        which: String,
        /// What to do about it.
        why: String,
    },
}

impl MergeError {
    /// Whether the files are wrong, as opposed to a failure to read or write them.
    pub fn is_usage(&self) -> bool {
        !matches!(self, MergeError::Sheet(SheetError::Io { .. }) | MergeError::Write(_))
    }
}

/// The counts of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// Points of the sweep.
    pub points: u64,
    /// The points that have an error instead of values.
    pub failed: u64,
}

/// The columns that must be equal in all lines of a sweep, the most obvious first, with a hint for the case that
/// they differ.
const SHARED: [(&str, &str); 6] = [
    ("version", ": run all shards with the same program"),
    ("workload", ""),
    ("profile", ""),
    (
        "settings",
        ": the window, the warm-up or a constant of the profile differs; give all shards the same options",
    ),
    (
        "sweep",
        ": the policy, the load, the seed or what is varied differs; give all shards the same",
    ),
    ("points", ""),
];

/// Merges the files of a sweep's shards, in any order. A point may be in several files if it has the same values in
/// all of them.
///
/// # Errors
/// If a file is not a sweep's or is being written, if the files are from different sweeps, if points are missing,
/// or if the merged file exists already or cannot be written.
pub fn merge(files: &[PathBuf], out: &Path) -> Result<Merged, MergeError> {
    if !file::is_stream(out) && out.exists() {
        return Err(MergeError::Exists(out.to_owned()));
    }
    file::check(out)?;
    let mut whole = Whole::default();
    for path in files {
        whole.add(Table::read(path)?)?;
    }
    let (text, merged) = whole.text()?;
    file::write(out, &text)?;
    Ok(merged)
}

/// The lines merged so far.
#[derive(Debug, Default)]
struct Whole {
    files: Vec<PathBuf>,
    /// Without the column `shard`.
    header: Vec<String>,
    /// The first line, and the index of its file.
    first: Option<(usize, StringRecord)>,
    /// Each point, with the index of its file.
    points: BTreeMap<u64, (usize, StringRecord)>,
    /// The numbers of the shards that have a point, by the number of shards.
    shards: BTreeMap<u64, BTreeSet<u64>>,
}

impl Whole {
    fn add(&mut self, mut table: Table) -> Result<(), MergeError> {
        let this = self.files.len();
        self.files.push(table.path.clone());
        let shard = table.column(SHARD);
        if let Some(column) = shard {
            table.header.remove(column);
        }
        if self.header.is_empty() {
            self.header.clone_from(&table.header);
        } else if self.header != table.header {
            let (one, other) = (self.files[0].clone(), table.path);
            return Err(MergeError::Unfit { one, other, why: differ(&self.header, &table.header) });
        }
        for (index, mut record) in table.rows.into_iter().enumerate() {
            if let Some(column) = shard {
                if let Ok(shard) = record[column].parse::<Shard>() {
                    self.shards.entry(shard.count()).or_default().insert(shard.number());
                }
                let others = record.iter().enumerate().filter(|(place, _)| *place != column);
                record = others.map(|(_, field)| field).collect();
            }
            let point = sheet::point(&table.path, index + 2, &record)?;
            self.check(this, &record)?;
            if point >= self.all(&record) {
                let why = format!("point {point} of {}", &record[2]);
                return Err(sheet::form(&table.path, index + 2, why).into());
            }
            self.first.get_or_insert_with(|| (this, record.clone()));
            self.insert(this, point, record)?;
        }
        Ok(())
    }

    /// The number of points of the sweep, according to one of its lines.
    fn all(&self, record: &StringRecord) -> u64 {
        record[2].parse().unwrap_or(0)
    }

    /// Refuses a line of another sweep.
    fn check(&self, this: usize, record: &StringRecord) -> Result<(), MergeError> {
        let Some((file, first)) = &self.first else { return Ok(()) };
        for (what, hint) in SHARED {
            let Some(column) = self.header.iter().position(|name| name == what) else { continue };
            if record[column] != first[column] {
                let (first, second) = (&first[column], &record[column]);
                return Err(self.unfit(
                    *file,
                    this,
                    format!("{what} is {first} in the first and {second} in the second{hint}"),
                ));
            }
        }
        Ok(())
    }

    fn unfit(&self, one: usize, other: usize, why: String) -> MergeError {
        let [one, other] = [one, other].map(|file| self.files[file].clone());
        MergeError::Unfit { one, other, why }
    }

    fn insert(&mut self, this: usize, point: u64, record: StringRecord) -> Result<(), MergeError> {
        if let Some((file, known)) = self.points.get(&point) {
            let columns = self.header.iter().zip(known.iter().zip(&record));
            if let Some((what, (first, second))) = columns.into_iter().find(|(_, (a, b))| a != b) {
                let why = format!(
                    "both have point {point}, and {what} is {first} in the first and {second} in the \
                     second; the same sweep has the same figures, so one was changed"
                );
                return Err(self.unfit(*file, this, why));
            }
            return Ok(());
        }
        self.points.insert(point, (this, record));
        Ok(())
    }

    /// Returns the merged text, if no point is missing.
    fn text(self) -> Result<(String, Merged), MergeError> {
        let Some((_, first)) = &self.first else { return Err(MergeError::Nothing) };
        let points = self.all(first);
        let missing = points - self.points.len() as u64;
        if missing > 0 {
            let mut which: Vec<String> = (0..points)
                .filter(|point| !self.points.contains_key(point))
                .take(5)
                .map(|point| point.to_string())
                .collect();
            if missing > 5 {
                which.push("...".to_owned());
            }
            let (which, why) = (which.join(", "), self.why());
            return Err(MergeError::Missing { missing, points, which, why });
        }
        let io = |source| SheetError::Io { path: PathBuf::from("the merged lines"), source };
        let mut bytes = sheet::line(&self.header).map_err(io)?;
        let mut failed = 0;
        for (_, record) in self.points.values() {
            let fields: Vec<String> = record.iter().map(str::to_owned).collect();
            failed += u64::from(fields.last().is_some_and(|error| !error.is_empty()));
            bytes.extend(sheet::line(&fields).map_err(io)?);
        }
        Ok((String::from_utf8_lossy(&bytes).into_owned(), Merged { points, failed }))
    }

    /// Returns a hint about where the missing points may be.
    fn why(&self) -> String {
        let mut without = Vec::new();
        for (count, present) in &self.shards {
            // The iterator is lazy: a count from a file may be too large to collect.
            let mut missing = (1..=*count).filter(|it| !present.contains(it));
            let some: Vec<String> =
                missing.by_ref().take(8).map(|it| format!("{it}/{count}")).collect();
            if !some.is_empty() {
                let more = if missing.next().is_some() { ", ..." } else { "" };
                without.push(format!("{}{more}", some.join(", ")));
            }
        }
        match without.is_empty() {
            true => "a sweep or a shard has not finished; go on with it with --resume".to_owned(),
            false => format!(
                "no file has a point of shard {}; give its file, too, or run it",
                without.join(", ")
            ),
        }
    }
}

/// Describes the columns that only one of two headers has.
fn differ(one: &[String], other: &[String]) -> String {
    let without = |a: &[String], b: &[String]| {
        let names: Vec<&str> =
            a.iter().filter(|name| !b.contains(name)).map(String::as_str).collect();
        names.join(", ")
    };
    match (without(one, other), without(other, one)) {
        (only, others) if only.is_empty() && others.is_empty() => {
            "they have the same columns in another order".to_owned()
        }
        (only, others) if others.is_empty() => format!("only the first has the columns {only}"),
        (only, others) if only.is_empty() => format!("only the second has the columns {others}"),
        (only, others) => {
            format!("only the first has the columns {only}, and only the second {others}")
        }
    }
}

#[cfg(test)]
mod tests;
