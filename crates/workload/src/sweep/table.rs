//! Reads a sweep's CSV file.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use csv::StringRecord;

use super::sheet::{self, SheetError};

/// The header and the lines of a file.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) path: PathBuf,
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<StringRecord>,
}

impl Table {
    /// Reads a file that no sweep is writing.
    pub(super) fn read(path: &Path) -> Result<Table, SheetError> {
        let io = |source| SheetError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        if matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return Err(SheetError::Busy(path.to_owned()));
        }
        let bytes = fs::read(path).map_err(io)?;
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..]);
        let mut records = reader.records().enumerate();
        let mut next = || {
            let (index, record) = records.next()?;
            Some(record.map_err(|error| sheet::form(path, index + 1, error.to_string())))
        };
        let header: Vec<String> = match next() {
            Some(record) => record?.iter().map(str::to_owned).collect(),
            None => Vec::new(),
        };
        sheet::check_header(path, &header)?;
        // The header is right, so `--resume` can complete it.
        if bytes.last() != Some(&b'\n') {
            return Err(SheetError::Unfinished(path.to_owned()));
        }
        let mut rows = Vec::new();
        while let Some(record) = next() {
            rows.push(record?);
        }
        Ok(Table { path: path.to_owned(), header, rows })
    }

    /// Returns the index of a column.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|it| it == name)
    }
}
