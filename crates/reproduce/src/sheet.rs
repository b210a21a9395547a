//! A CSV reader with typed columns, found by name.
//!
//! The published tables are embedded, but a user may supply a table (`--table FILE`): errors name the line, the
//! column and the offending value. Unused columns are ignored, so that a table may have more. Nothing here knows
//! what a column means.

use std::str::FromStr;

use csv::{ReaderBuilder, StringRecord};
use thiserror::Error;

/// An error in a table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{table}{}: {problem}", line.map_or(String::new(), |line| format!(", line {line}")))]
pub struct TableError {
    /// The file, or the name of the embedded table.
    pub table: String,
    /// Line number, where the header is 1; `None` for the file as a whole.
    pub line: Option<u64>,
    /// The problem, and what is expected.
    pub problem: String,
}

/// A type of column values.
pub trait Field: Sized {
    /// The accepted values, for error messages: "a number", "0 or 1".
    const WANTED: &'static str;

    /// Parses a cell; `None` if it is invalid.
    fn read(text: &str) -> Option<Self>;
}

/// A row of a typed table; `table_row!` generates one from a list of columns.
pub trait TableRow: Sized {
    /// Parses a line.
    ///
    /// # Errors
    /// If a column is missing or has an invalid value.
    fn read(line: &Line<'_>) -> Result<Self, TableError>;
}

/// One line of a table.
#[derive(Debug)]
pub struct Line<'a> {
    table: &'a str,
    header: &'a StringRecord,
    record: &'a StringRecord,
    number: u64,
}

impl Line<'_> {
    /// Parses the value of a column.
    ///
    /// # Errors
    /// If the table has no such column, or the value is invalid.
    pub fn get<T: Field>(&self, column: &str) -> Result<T, TableError> {
        let index = self.header.iter().position(|name| name == column);
        let text = index.and_then(|index| self.record.get(index));
        let text = text.ok_or_else(|| TableError {
            line: Some(1),
            ..self.error(format!("there is no column \"{column}\"; add it to the header"))
        })?;
        T::read(text).ok_or_else(|| {
            self.error(format!(
                "column \"{column}\" holds \"{text}\"; {} is wanted there",
                T::WANTED
            ))
        })
    }

    /// Creates an error that refers to this line.
    pub fn error(&self, problem: String) -> TableError {
        TableError { table: self.table.to_owned(), line: Some(self.number), problem }
    }
}

/// Parses all rows of a table; `table` is its name in errors.
///
/// # Errors
/// If the text is not valid CSV, has no rows, or has an invalid row.
pub fn rows<R: TableRow>(table: &str, text: &str) -> Result<Vec<R>, TableError> {
    let whole = |problem: String| TableError { table: table.to_owned(), line: None, problem };
    let mut reader = ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| whole(error.to_string()))?.clone();
    if let Some(twice) =
        header.iter().enumerate().find(|(i, name)| header.iter().take(*i).any(|n| n == *name))
    {
        return Err(TableError {
            line: Some(1),
            ..whole(format!("column \"{}\" stands in the header twice; remove one", twice.1))
        });
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| match error.position() {
            Some(at) => TableError {
                line: Some(line_of(text, at.byte())),
                ..whole(format!(
                    "{}; every line needs as many fields as the header, {}",
                    message(&error),
                    header.len()
                ))
            },
            None => whole(error.to_string()),
        })?;
        let number = record.position().map_or(0, |at| line_of(text, at.byte()));
        rows.push(R::read(&Line { table, header: &header, record: &record, number })?);
    }
    if rows.is_empty() {
        return Err(whole("there is no row below the header; nothing can be compared".to_owned()));
    }
    Ok(rows)
}

/// The line number, from 1, of the record that starts at a byte offset. Counted here because the reader's line
/// number is one too low in files with CR LF line ends, and its offset may be that of the end of the previous line.
fn line_of(text: &str, byte: u64) -> u64 {
    let begin = usize::try_from(byte).unwrap_or(usize::MAX).min(text.len());
    let (before, after) = text.as_bytes().split_at(begin);
    let ends = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    let blank = after.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    1 + ends(before) + ends(&after[..blank])
}

/// The reader's message without the position, which the error already contains.
fn message(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { len, .. } => format!("the line has {len} fields"),
        csv::ErrorKind::Utf8 { err, .. } => format!("the line is no UTF-8 ({err})"),
        _ => error.to_string(),
    }
}

/// Defines a row type and its parser from a list of columns.
macro_rules! table_row {
    ($(#[$about:meta])* $vis:vis $name:ident { $($(#[$doc:meta])* $column:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name { $($(#[$doc])* $vis $column: $type,)* }

        impl $crate::sheet::TableRow for $name {
            fn read(
                line: &$crate::sheet::Line<'_>,
            ) -> Result<Self, $crate::sheet::TableError> {
                Ok($name { $($column: line.get(stringify!($column))?,)* })
            }
        }
    };
}
pub(super) use table_row;

/// Implements [`Field`] for a type with a few keywords: the text for error messages, and the value of each word.
macro_rules! words {
    ($type:ty, $wanted:literal, $($text:literal => $value:expr,)*) => {
        impl $crate::sheet::Field for $type {
            const WANTED: &'static str = $wanted;

            fn read(text: &str) -> Option<Self> {
                match text { $($text => Some($value),)* _ => None }
            }
        }
    };
}
pub(super) use words;

impl Field for String {
    const WANTED: &'static str = "text";

    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Field for f64 {
    const WANTED: &'static str = "a finite number";

    fn read(text: &str) -> Option<Self> {
        f64::from_str(text).ok().filter(|value| value.is_finite())
    }
}

impl Field for u64 {
    const WANTED: &'static str = "a whole number from 0";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Field for u32 {
    const WANTED: &'static str = "a whole number from 0 to 4294967295";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Field for bool {
    const WANTED: &'static str = "0 or 1";

    fn read(text: &str) -> Option<Self> {
        match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}

/// An empty cell, or -1 as in the kernel's tables for a task that has exited, is `None`.
impl Field for Option<u64> {
    const WANTED: &'static str = "a whole number from 0, or -1 or nothing where it is not known";

    fn read(text: &str) -> Option<Self> {
        match text {
            "" | "-1" => Some(None),
            _ => text.parse().ok().map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    table_row! {
        /// A row for these tests.
        Invented {
            /// A name.
            name: String,
            /// A rate.
            rate: f64,
            /// A flag.
            echo: bool,
            /// A count, if known.
            count: Option<u64>,
        }
    }

    fn read(text: &str) -> Result<Vec<Invented>, TableError> {
        rows("invented.csv", text)
    }

    fn complaint(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn columns_are_found_by_name_in_any_order_and_others_are_ignored() {
        let rows = read("count,extra,name,echo,rate\n7,x,\"a, b\",1,2.5\n-1,,c,0,3\n").unwrap();
        let want = Invented { name: "a, b".into(), rate: 2.5, echo: true, count: Some(7) };
        assert_eq!(rows[0], want);
        assert_eq!((rows[1].count, rows[1].echo), (None, false));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line_and_column() {
        let text = "name,rate,echo,count\na,1,0,1\nb,fast,0,1\n";
        assert_eq!(
            complaint(text),
            "invented.csv, line 3: column \"rate\" holds \"fast\"; a finite number is wanted there"
        );
        assert!(complaint("name,rate,echo,count\na,inf,0,1\n").contains("\"inf\""));
        assert!(complaint("name,rate,echo,count\na,1,yes,1\n").contains("0 or 1 is wanted"));
        assert!(complaint("name,rate,echo,count\na,1,0,-2\n").contains("\"-2\""));
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        for text in
            ["name,rate,echo,count\r\na,1,0,1\r\nb,fast,0,1\r\n", "name,rate,echo,count\n\nb,?,0,1"]
        {
            assert!(
                complaint(text).starts_with("invented.csv, line 3: column \"rate\""),
                "{text:?}"
            );
        }
        assert!(
            complaint("name,rate,echo,count\r\na,1,0,1\r\nb,0\r\n")
                .contains("line 3: the line has 2")
        );
    }

    #[test]
    fn a_missing_column_a_short_line_and_an_empty_table_are_different_errors() {
        assert!(
            complaint("name,echo,count\na,0,1\n").contains("line 1: there is no column \"rate\"")
        );
        assert_eq!(
            complaint("name,rate,echo,count\na,1\n"),
            "invented.csv, line 2: the line has 2 fields; every line needs as many fields as the \
             header, 4"
        );
        assert!(complaint("name,rate,echo,count\n").contains("no row below the header"));
        assert!(complaint("").contains("no row below the header"));
        assert!(complaint("name,name,rate,echo,count\na,a,1,0,1\n").contains("twice"));
    }
}
