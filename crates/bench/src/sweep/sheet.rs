//! The CSV file of a sweep.
//!
//! A header and a line for each point, each of which begins with the sweep's identity and the
//! point's place. Lines are appended as points finish, each in one write, so that a process that is
//! killed leaves at most one half line, which is dropped when the sweep goes on. When all points are
//! there the file is sorted by place: its bytes then do not depend on the order in which they
//! finished. On standard output (`-`) a line waits for those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::report::file;

/// The first two columns of every sheet.
pub(super) const LEADING: [&str; 2] = ["sweep", "point"];

/// What is wrong with a sweep's file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SheetError {
    /// It is there already.
    #[error("{} is there already: go on with it with --resume, or name another file", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It is no sheet of this program.
    #[error("{}:{line}: this is no line of a sweep: {why}; name another file", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It is another sweep's.
    #[error(
        "{} holds another sweep: {theirs}; this one is {ours}. Its parameters, its profile or the \
         program have changed: name another file", path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// What it holds.
        theirs: String,
        /// What it should hold.
        ours: String,
    },
    /// Standard output has nothing to go on with.
    #[error("--resume goes on with a file: standard output has none; name one with --out FILE")]
    Stdout,
    /// Another process is at it.
    #[error("{} is being written by another sweep", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It cannot be replaced by the sorted one.
    #[error(transparent)]
    Write(#[from] file::WriteError),
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Sheet {
    path: PathBuf,
    out: Out,
    /// The columns; empty until the first point says them.
    pub(super) header: Vec<String>,
    /// The points that are there.
    pub(super) done: BTreeSet<u64>,
}

/// Where the lines go.
#[derive(Debug)]
enum Out {
    File(File),
    /// The place that is due, and the lines of those behind it.
    Stdout(u64, BTreeMap<u64, Vec<u8>>),
}

/// One line of CSV, with its newline.
fn line(fields: &[String]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields.iter().map(|field| field.replace(['\n', '\r'], " ")))?;
    writer.into_inner().map_err(|error| io::Error::other(error.to_string()))
}

impl Sheet {
    /// Opens a new file, or, to go on, one of the same sweep. Where to go on there is no file, a new
    /// one is begun.
    pub(super) fn open(path: &Path, identity: &str, resume: bool) -> Result<Sheet, SheetError> {
        let io = |source| SheetError::Io { path: path.to_owned(), source };
        if file::is_stdout(path) {
            let out = Out::Stdout(0, BTreeMap::new());
            return match resume {
                true => Err(SheetError::Stdout),
                false => Ok(Sheet::of(path, out)),
            };
        }
        let there = path.exists();
        if there && !resume {
            return Err(SheetError::Exists { path: path.to_owned() });
        }
        let file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| SheetError::Busy { path: path.to_owned() })?;
        let mut sheet = Sheet::of(path, Out::File(file));
        if there {
            sheet.read(identity)?;
        }
        Ok(sheet)
    }

    fn of(path: &Path, out: Out) -> Sheet {
        Sheet { path: path.to_owned(), out, header: Vec::new(), done: BTreeSet::new() }
    }

    /// Takes over what is there, and cuts off a line that was not finished.
    fn read(&mut self, identity: &str) -> Result<(), SheetError> {
        let io = |source| SheetError::Io { path: self.path.clone(), source };
        let bytes = fs::read(&self.path).map_err(io)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < bytes.len() {
            // Only what looks like ours is cut: a file without a single line could be anything.
            let ours = format!("{},{}", LEADING[0], LEADING[1]);
            if whole == 0 && !ours.as_bytes().starts_with(&bytes[..bytes.len().min(ours.len())]) {
                return Err(self.form(1, "it does not begin with the header of a sweep".into()));
            }
            if let Out::File(file) = &self.out {
                file.set_len(whole as u64).map_err(io)?;
            }
        }
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..whole]);
        for (index, record) in reader.records().enumerate() {
            let number = index + 1;
            let record = record.map_err(|error| self.form(number, error.to_string()))?;
            if index == 0 {
                self.header = record.iter().map(str::to_owned).collect();
                if self.header.iter().take(2).ne(LEADING.iter()) {
                    return Err(self.form(1, "it does not begin with the header of a sweep".into()));
                }
                continue;
            }
            if &record[0] != identity {
                let theirs: Vec<String> = (self.header.iter().zip(&record))
                    .take(7)
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect();
                return Err(SheetError::Other {
                    path: self.path.clone(),
                    theirs: theirs.join(", "),
                    ours: identity.to_owned(),
                });
            }
            let point = record[1].parse::<u64>();
            let point = point.map_err(|_| self.form(number, format!("point '{}'", &record[1])))?;
            self.done.insert(point);
        }
        Ok(())
    }

    fn form(&self, line: usize, why: String) -> SheetError {
        SheetError::Form { path: self.path.clone(), line, why }
    }

    /// Writes the header of a new file; holds it against that of an old one.
    pub(super) fn head(&mut self, header: Vec<String>, identity: &str) -> Result<(), SheetError> {
        if self.header.is_empty() {
            self.put(None, &header)?;
            self.header = header;
        } else if self.header != header {
            return Err(SheetError::Other {
                path: self.path.clone(),
                theirs: format!("its columns are {}", self.header.join(", ")),
                ours: identity.to_owned(),
            });
        }
        Ok(())
    }

    /// Appends a point.
    pub(super) fn point(&mut self, place: u64, fields: &[String]) -> Result<(), SheetError> {
        self.put(Some(place), fields)?;
        self.done.insert(place);
        Ok(())
    }

    /// Writes the line of a point, or of the header.
    fn put(&mut self, place: Option<u64>, fields: &[String]) -> Result<(), SheetError> {
        let path = self.path.clone();
        let io = |source| SheetError::Io { path, source };
        let written = line(fields).and_then(|bytes| match (&mut self.out, place) {
            (Out::File(file), _) => file.write_all(&bytes),
            (Out::Stdout(..), None) => io::stdout().write_all(&bytes),
            (Out::Stdout(due, held), Some(place)) => {
                held.insert(place, bytes);
                while let Some(bytes) = held.remove(due) {
                    io::stdout().write_all(&bytes)?;
                    *due += 1;
                }
                io::stdout().flush()
            }
        });
        written.map_err(io)
    }

    /// Puts the points into their order.
    pub(super) fn sort(&mut self) -> Result<(), SheetError> {
        let path = self.path.clone();
        let io = |source| SheetError::Io { path: path.clone(), source };
        if let Out::Stdout(_, held) = &mut self.out {
            // Those behind a place that never came.
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
        // No field in front of the place has a comma.
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
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let name = format!("napkin-sheet-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn row(place: u64) -> Vec<String> {
        vec!["id".into(), place.to_string(), format!("a, \"b\"\n{place}")]
    }

    fn header() -> Vec<String> {
        vec!["sweep".into(), "point".into(), "error".into()]
    }

    fn begun(path: &Path) -> Sheet {
        let mut sheet = Sheet::open(path, "id", false).unwrap();
        sheet.head(header(), "id").unwrap();
        for place in [2, 0] {
            sheet.point(place, &row(place)).unwrap();
        }
        sheet
    }

    #[test]
    fn a_half_line_is_dropped_and_the_rest_is_gone_on_with() {
        let folder = Folder::new("half");
        let path = folder.0.join("a.csv");
        drop(begun(&path));
        let whole = fs::read_to_string(&path).unwrap();
        for cut in 1..=17 {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let sheet = Sheet::open(&path, "id", true).unwrap();
            assert_eq!(sheet.done, BTreeSet::from([2]), "cut {cut}");
            assert_eq!(sheet.header, header());
        }
        // Killed in the middle of the header.
        fs::write(&path, "swe").unwrap();
        assert!(Sheet::open(&path, "id", true).unwrap().header.is_empty());
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn at_the_end_the_points_stand_in_their_order_and_read_back() {
        let folder = Folder::new("sort");
        let path = folder.0.join("a.csv");
        let mut sheet = begun(&path);
        sheet.point(1, &row(1)).unwrap();
        sheet.sort().unwrap();
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let points: Vec<_> = reader.records().map(|it| it.unwrap()[1].to_owned()).collect();
        assert_eq!(points, ["0", "1", "2"]);
        assert_eq!(Sheet::open(&path, "id", true).unwrap().done.len(), 3);
    }

    #[test]
    fn a_file_of_another_sweep_or_of_nobody_is_refused_and_left_as_it_is() {
        let folder = Folder::new("other");
        let path = folder.0.join("a.csv");
        drop(begun(&path));
        let before = fs::read(&path).unwrap();
        assert!(matches!(Sheet::open(&path, "id", false), Err(SheetError::Exists { .. })));
        let error = Sheet::open(&path, "other", true).unwrap_err();
        assert!(error.to_string().contains("holds another sweep: sweep id, point 2"), "{error}");
        let mut sheet = Sheet::open(&path, "id", true).unwrap();
        let columns = sheet.head(vec!["sweep".into(), "point".into()], "id").unwrap_err();
        assert!(columns.to_string().contains("its columns are"), "{columns}");
        drop(sheet);
        assert_eq!(fs::read(&path).unwrap(), before);
        for (text, line) in [("my diary", 1), ("a,b\n1,2\n", 1), ("sweep,point\nid,x\n", 2)] {
            fs::write(&path, text).unwrap();
            let error = Sheet::open(&path, "id", true).unwrap_err().to_string();
            assert!(
                error.contains(&format!("a.csv:{line}: this is no line of a sweep")),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn two_sweeps_do_not_write_one_file() {
        let folder = Folder::new("busy");
        let path = folder.0.join("a.csv");
        let sheet = begun(&path);
        assert!(matches!(Sheet::open(&path, "id", true), Err(SheetError::Busy { .. })));
        drop(sheet);
        assert!(Sheet::open(&path, "id", true).is_ok());
    }
}
