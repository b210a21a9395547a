//! The CSV file of a sweep.
//!
//! The file has a header and a line for each point. Each line begins with the sweep's identity and the point's
//! place. On resuming, the points of a sweep with fewer values are kept. Lines are appended as points finish, each
//! in one write. A process that is killed thus leaves at most one incomplete line, which is dropped on resuming.
//! The complete file is sorted by place, so that its bytes do not depend on the order in which the points finished.
//! On standard output (`-`), a line waits for those before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use csv::StringRecord;
use thiserror::Error;

use super::identity::{Identity, LEADING};
use napkin_measure::report::file;

/// Why a sweep's file was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SheetError {
    /// The file exists already.
    #[error("{} is there already: go on with it with --resume, or name another file", .0.display())]
    Exists(PathBuf),
    /// The file has another format.
    #[error("{}:{line}: this is no line of a sweep: {why}; name another file", path.display())]
    Form {
        /// The sweep's file, by the name that was given.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with the line.
        why: String,
    },
    /// The file belongs to another sweep.
    #[error(
        "{} holds another sweep: {theirs}; this one is {ours}. Its parameters, its profile or the \
         program have changed: name another file", path.display()
    )]
    Other {
        /// The sweep's file, by the name that was given.
        path: PathBuf,
        /// The identity in the file.
        theirs: String,
        /// The identity of this sweep.
        ours: String,
    },
    /// Standard output cannot be resumed.
    #[error("--resume continues a file: standard output has none; name one with --out FILE")]
    Stdout,
    /// Another process holds the lock of the file.
    #[error("{} is being written by another sweep", .0.display())]
    Busy(PathBuf),
    /// The last line is incomplete.
    #[error("{} was not finished: it ends in the middle of a line; go on with it with --resume", .0.display())]
    Unfinished(PathBuf),
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The sweep's file, by the name that was given.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file cannot be replaced by the sorted one.
    #[error(transparent)]
    Write(#[from] file::WriteError),
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Sheet {
    path: PathBuf,
    out: Out,
    /// The columns; empty until the first point determines them.
    pub(super) header: Vec<String>,
    /// The points in the file.
    pub(super) done: BTreeSet<u64>,
    /// The number of these points that have an error instead of values.
    pub(super) failed: u64,
}

/// The destination of the lines.
#[derive(Debug)]
enum Out {
    File(File),
    /// The places still to be written, in order, and the lines of places behind the first of them.
    Stdout(VecDeque<u64>, BTreeMap<u64, Vec<u8>>),
}

/// Formats one line of CSV, with its newline.
pub(super) fn line(fields: &[String]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields.iter().map(|field| field.replace(['\n', '\r'], " ")))?;
    writer.into_inner().map_err(|error| io::Error::other(error.to_string()))
}

/// The error for a file of another format.
const NO_HEADER: &str = "it does not begin with the header of a sweep";

pub(super) fn form(path: &Path, line: usize, why: String) -> SheetError {
    SheetError::Form { path: path.to_owned(), line, why }
}

/// Refuses a file that does not begin with a sweep's header.
pub(super) fn check_header(path: &Path, header: &[String]) -> Result<(), SheetError> {
    if header.iter().take(LEADING.len()).ne(LEADING.iter()) {
        return Err(form(path, 1, NO_HEADER.into()));
    }
    Ok(())
}

/// Parses the place of a line's point.
pub(super) fn point(path: &Path, line: usize, record: &StringRecord) -> Result<u64, SheetError> {
    let text = &record[1];
    text.parse().map_err(|_| form(path, line, format!("point '{text}'")))
}

/// Locks the file against other processes until it is closed. On a file system without locks, it stays unlocked.
fn lock(path: &Path, file: &File) -> Result<(), SheetError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(SheetError::Busy(path.to_owned())),
        _ => Ok(()),
    }
}

impl Sheet {
    /// Opens a new file. With `resume`, opens a file of the same sweep or of one with fewer values, or a new one if
    /// there is none. `place` returns the place of the point with these values in this sweep, if it has one.
    pub(super) fn open(
        path: &Path,
        identity: &Identity,
        resume: bool,
        place: impl Fn(&[String]) -> Option<u64>,
    ) -> Result<Sheet, SheetError> {
        let io = |source| SheetError::Io { path: path.to_owned(), source };
        if file::is_stdout(path) {
            let out = Out::Stdout(VecDeque::new(), BTreeMap::new());
            return match resume {
                true => Err(SheetError::Stdout),
                false => Ok(Sheet::of(path, out)),
            };
        }
        let exists = path.exists();
        if exists && !resume {
            return Err(SheetError::Exists(path.to_owned()));
        }
        let file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        lock(path, &file)?;
        let mut sheet = Sheet::of(path, Out::File(file));
        if exists {
            sheet.read(identity, place)?;
        }
        Ok(sheet)
    }

    fn of(path: &Path, out: Out) -> Sheet {
        Sheet { path: path.to_owned(), out, header: Vec::new(), done: BTreeSet::new(), failed: 0 }
    }

    /// Reads the points of an existing file, and cuts off an incomplete last line.
    fn read(
        &mut self,
        identity: &Identity,
        place: impl Fn(&[String]) -> Option<u64>,
    ) -> Result<(), SheetError> {
        let io = |source| SheetError::Io { path: self.path.clone(), source };
        let bytes = fs::read(&self.path).map_err(io)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let expected = identity.header();
        if whole < bytes.len() {
            // A file without a complete line is only accepted if it could be the start of our header.
            let expected = expected.join(",");
            if whole == 0
                && !expected.as_bytes().starts_with(&bytes[..bytes.len().min(expected.len())])
            {
                return Err(form(&self.path, 1, NO_HEADER.into()));
            }
        }
        let (mut text, mut moved) = (Vec::new(), false);
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..whole]);
        for (index, record) in reader.records().enumerate() {
            let number = index + 1;
            let record = record.map_err(|error| form(&self.path, number, error.to_string()))?;
            let mut fields: Vec<String> = record.iter().map(str::to_owned).collect();
            if index == 0 {
                check_header(&self.path, &fields)?;
                self.header = fields.clone();
                if !self.header.starts_with(&expected) {
                    let found = format!("its columns are {}", self.header.join(", "));
                    return Err(self.other(found, identity));
                }
            } else {
                let was = point(&self.path, number, &record)?;
                let values =
                    fields[expected.len() - identity.naming.len()..expected.len()].to_vec();
                let same = identity.fields(was, &values)[..] == fields[..expected.len()];
                // A point of the same settings has another place now, because the sweep has more values.
                let now = if same { Some(was) } else { place(&values) };
                let now = now.filter(|now| {
                    let mut adapted = identity.fields(*now, &values);
                    adapted[..3].clone_from_slice(&fields[..3]);
                    adapted[..] == fields[..expected.len()]
                });
                let Some(now) = now else {
                    let found: Vec<String> = (self.header.iter().zip(&fields))
                        .take(expected.len())
                        .map(|(name, value)| format!("{name} {value}"))
                        .collect();
                    return Err(self.other(found.join(", "), identity));
                };
                self.failed += u64::from(fields.last().is_some_and(|error| !error.is_empty()));
                self.done.insert(now);
                moved |= !same;
                fields.splice(..expected.len(), identity.fields(now, &values));
            }
            text.extend(line(&fields).map_err(io)?);
        }
        if moved {
            // Replace the file atomically. The new file needs a lock of its own: the old lock belongs to the
            // replaced one.
            file::write(&self.path, &String::from_utf8_lossy(&text))?;
            let file = OpenOptions::new().read(true).append(true).open(&self.path).map_err(io)?;
            lock(&self.path, &file)?;
            self.out = Out::File(file);
        } else if whole < bytes.len()
            && let Out::File(file) = &self.out
        {
            // Only now are all lines before it known to belong to this sweep.
            file.set_len(whole as u64).map_err(io)?;
        }
        Ok(())
    }

    fn other(&self, theirs: String, ours: &Identity) -> SheetError {
        let shard = ours.shard.map(|it| format!(", shard {it}")).unwrap_or_default();
        let Identity { sweep, settings, version, .. } = ours;
        let ours = format!("sweep {sweep}, settings {settings}, version {version}{shard}");
        SheetError::Other { path: self.path.clone(), theirs, ours }
    }

    /// Sets the points that will be written, in order.
    pub(super) fn expect(&mut self, points: &[u64]) {
        if let Out::Stdout(due, _) = &mut self.out {
            due.extend(points);
        }
    }

    /// Writes the header of a new file, or compares it with that of a resumed one.
    pub(super) fn head(
        &mut self,
        header: Vec<String>,
        identity: &Identity,
    ) -> Result<(), SheetError> {
        if self.header.is_empty() {
            self.put(None, &header)?;
            self.header = header;
        } else if self.header != header {
            let theirs = format!("its columns are {}", self.header.join(", "));
            return Err(self.other(theirs, identity));
        }
        Ok(())
    }

    /// Appends a point.
    pub(super) fn point(&mut self, place: u64, fields: &[String]) -> Result<(), SheetError> {
        self.put(Some(place), fields)?;
        self.done.insert(place);
        Ok(())
    }

    /// Writes the line of a point, or of the header if `place` is `None`.
    fn put(&mut self, place: Option<u64>, fields: &[String]) -> Result<(), SheetError> {
        let path = self.path.clone();
        let io = |source| SheetError::Io { path, source };
        let written = line(fields).and_then(|bytes| match (&mut self.out, place) {
            (Out::File(file), _) => file.write_all(&bytes),
            (Out::Stdout(..), None) => io::stdout().write_all(&bytes),
            (Out::Stdout(due, held), Some(place)) => {
                held.insert(place, bytes);
                while let Some(bytes) = due.front().and_then(|first| held.remove(first)) {
                    io::stdout().write_all(&bytes)?;
                    due.pop_front();
                }
                io::stdout().flush()
            }
        });
        written.map_err(io)
    }

    /// Sorts the file by place.
    pub(super) fn sort(&mut self) -> Result<(), SheetError> {
        let path = self.path.clone();
        let io = |source| SheetError::Io { path: path.clone(), source };
        if let Out::Stdout(_, held) = &mut self.out {
            // The lines behind a place that was never written.
            return std::mem::take(held)
                .into_values()
                .try_for_each(|bytes| io::stdout().write_all(&bytes))
                .map_err(io);
        }
        let text = fs::read_to_string(&self.path).map_err(io)?;
        let mut lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return Ok(());
        }
        // No field in front of the place contains a comma.
        let place = |line: &str| line.split(',').nth(1).and_then(|it| it.parse::<u64>().ok());
        lines[1..].sort_by_key(|line| place(line));
        lines.dedup();
        let mut sorted = lines.join("\n");
        sorted.push('\n');
        if sorted != text {
            file::write(&self.path, &sorted)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use napkin_testing::Folder;

    use super::*;

    fn id(sweep: &str) -> Identity {
        Identity {
            sweep: sweep.to_owned(),
            points: 3,
            settings: "settings".to_owned(),
            version: "1, 2".to_owned(),
            shard: None,
            naming: vec!["load".to_owned()],
        }
    }

    fn row(place: u64) -> Vec<String> {
        let mut fields = id("id").fields(place, &[format!("{place}00")]);
        fields.push(format!("a, \"b\"\n{place}"));
        fields
    }

    fn header() -> Vec<String> {
        let mut header = id("id").header();
        header.push("error".to_owned());
        header
    }

    fn open(path: &Path, sweep: &str, resume: bool) -> Result<Sheet, SheetError> {
        Sheet::open(path, &id(sweep), resume, |_| None)
    }

    fn begun(path: &Path) -> Sheet {
        let mut sheet = open(path, "id", false).unwrap();
        sheet.head(header(), &id("id")).unwrap();
        for place in [2, 0] {
            sheet.point(place, &row(place)).unwrap();
        }
        sheet
    }

    #[test]
    fn a_half_line_is_dropped_and_the_rest_is_gone_on_with() {
        let folder = Folder::new("sheet-half");
        let path = folder.join("a.csv");
        drop(begun(&path));
        let whole = fs::read_to_string(&path).unwrap();
        for cut in 1..=32 {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let sheet = open(&path, "id", true).unwrap();
            assert_eq!(sheet.done, BTreeSet::from([2]), "cut {cut}");
            assert_eq!(sheet.header, header());
        }
        // The process was killed while it wrote the header.
        fs::write(&path, "swe").unwrap();
        assert!(open(&path, "id", true).unwrap().header.is_empty());
        assert_eq!(fs::read(&path).unwrap(), b"");
        // An unrelated file, without a newline at its end.
        fs::write(&path, "first\nlast words").unwrap();
        assert!(open(&path, "id", true).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"first\nlast words");
    }

    #[test]
    fn at_the_end_the_points_stand_in_their_order_and_read_back() {
        let folder = Folder::new("sheet-sort");
        let path = folder.join("a.csv");
        let mut sheet = begun(&path);
        sheet.point(1, &row(1)).unwrap();
        sheet.sort().unwrap();
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let points: Vec<_> = reader.records().map(|it| it.unwrap()[1].to_owned()).collect();
        assert_eq!(points, ["0", "1", "2"]);
        assert_eq!(open(&path, "id", true).unwrap().done.len(), 3);
    }

    #[test]
    fn a_file_of_another_sweep_or_of_nobody_is_refused_and_left_as_it_is() {
        let folder = Folder::new("sheet-other");
        let path = folder.join("a.csv");
        drop(begun(&path));
        let before = fs::read(&path).unwrap();
        assert!(matches!(open(&path, "id", false), Err(SheetError::Exists(_))));
        let error = open(&path, "other", true).unwrap_err();
        assert!(error.to_string().contains("holds another sweep: sweep id, point 2"), "{error}");
        let mut sheet = open(&path, "id", true).unwrap();
        let columns = sheet.head(id("id").header(), &id("id")).unwrap_err();
        assert!(columns.to_string().contains("its columns are"), "{columns}");
        drop(sheet);
        let sharded = Identity { shard: "1/2".parse().ok(), ..id("id") };
        let error = Sheet::open(&path, &sharded, true, |_| None).unwrap_err();
        assert!(error.to_string().contains("version 1, 2, shard 1/2"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
        let wrong = format!("{}\nid,x,3,settings,1,2\n", id("id").header().join(","));
        for (text, line) in [("my diary", 1), ("a,b\n1,2\n", 1), (wrong.as_str(), 2)] {
            fs::write(&path, text).unwrap();
            let error = open(&path, "id", true).unwrap_err().to_string();
            assert!(
                error.contains(&format!("a.csv:{line}: this is no line of a sweep")),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn the_points_of_a_sweep_with_fewer_values_are_taken_over_and_renumbered() {
        let folder = Folder::new("sheet-grown");
        let path = folder.join("a.csv");
        drop(begun(&path));
        let grown = Identity { points: 6, ..id("grown") };
        let place = |values: &[String]| values[0].parse::<u64>().ok().map(|load| load / 50);
        let sheet = Sheet::open(&path, &grown, true, place).unwrap();
        assert_eq!(sheet.done, BTreeSet::from([0, 4]));
        assert!(matches!(Sheet::open(&path, &grown, true, place), Err(SheetError::Busy(_))));
        drop(sheet);
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let rows: Vec<Vec<String>> = reader
            .records()
            .map(|it| it.unwrap().iter().take(3).map(str::to_owned).collect())
            .collect();
        assert_eq!(rows, [["grown", "4", "6"], ["grown", "0", "6"]]);
        let before = fs::read(&path).unwrap();
        // A file with other settings is never kept, nor one with a value that the new sweep lacks.
        let other = Identity { settings: "others".to_owned(), ..id("grown") };
        assert!(Sheet::open(&path, &other, true, place).is_err());
        let gone = |values: &[String]| place(values).filter(|it| *it == 0);
        assert!(Sheet::open(&path, &id("shrunk"), true, gone).is_err());
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn two_sweeps_do_not_write_one_file() {
        let folder = Folder::new("sheet-busy");
        let path = folder.join("a.csv");
        let sheet = begun(&path);
        assert!(matches!(open(&path, "id", true), Err(SheetError::Busy(_))));
        drop(sheet);
        assert!(open(&path, "id", true).is_ok());
    }
}
