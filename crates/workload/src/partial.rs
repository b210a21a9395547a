//! The finished measurements of a run, in a file that exists only until the run is complete.
//!
//! The file has one JSON value per line. The first line identifies the run: this program's version, and the plan,
//! which is everything that the results depend on. Every other line is a measurement, appended when it ends. A
//! process that is killed leaves at most one incomplete line, which is dropped on resuming. A file with another
//! plan is refused, with the first difference.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use napkin_policy::text::quoted;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// Why a run cannot be resumed from a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartialError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file has another format.
    #[error("{}:{line}: this is no line of an interrupted run: {why}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with the line.
        why: String,
    },
    /// The file belongs to another run.
    #[error(
        "{} is of another run: {what} is {theirs} there and {ours} now; give the same options, or begin \
         anew without --resume", path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// The path of the value that differs, such as `host.kernel`.
        what: String,
        /// The value in the file.
        theirs: String,
        /// The value of this run.
        ours: String,
    },
    /// Another process holds the lock of the file.
    #[error("{} is being written by another run", .0.display())]
    Busy(PathBuf),
}

/// The first line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    /// The version, with the commit if it is known.
    napkin: String,
    /// The command: `bench`, `reproduce`.
    command: String,
    /// Everything that the results depend on.
    plan: Value,
}

/// Every other line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Line<F> {
    /// The workload or experiment of the run.
    part: String,
    /// The step of the run's order, from 0.
    step: u64,
    /// The measured values.
    figures: F,
}

/// The finished measurements of a run. The default stores nothing.
#[derive(Debug, Default)]
pub struct Partial {
    header: Option<Header>,
    /// The folder for a new file.
    folder: PathBuf,
    file: Option<(PathBuf, File)>,
    /// Measurements of an earlier run that were not requested yet.
    found: BTreeMap<(String, u64), Value>,
    done: u64,
    /// The error that prevented a measurement from being stored.
    lost: Option<String>,
}

impl Partial {
    /// Begins a new run, whose file is created in `folder` with the first measurement. `version` is the program's,
    /// `command` the subcommand.
    pub fn begin(folder: &Path, version: &str, command: &str, plan: Value) -> Partial {
        let header = Header { napkin: version.to_owned(), command: command.to_owned(), plan };
        Partial { header: Some(header), folder: folder.to_owned(), ..Partial::default() }
    }

    /// Resumes from a file, which must have the same plan.
    ///
    /// # Errors
    /// If the file cannot be read, has another format, is locked, or belongs to another run.
    pub fn resume(mut self, path: &Path) -> Result<Partial, PartialError> {
        let io = |source| PartialError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).append(true).open(path).map_err(io)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(PartialError::Busy(path.to_owned()));
        }
        let bytes = fs::read(path).map_err(io)?;
        let form = |line, why| PartialError::Form { path: path.to_owned(), line, why };
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for (place, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let wrong = |error: serde_json::Error| form(place + 1, error.to_string());
            if place > 0 {
                let Line { part, step, figures } = serde_json::from_slice(line).map_err(wrong)?;
                self.found.insert((part, step), figures);
                continue;
            }
            let held: Header = serde_json::from_slice(line).map_err(wrong)?;
            if let Some((what, theirs, ours)) =
                self.header.as_ref().and_then(|own| own.difference(&held))
            {
                return Err(PartialError::Other { path: path.to_owned(), what, theirs, ours });
            }
        }
        if whole == 0 {
            return Err(form(1, "it has no first line".to_owned()));
        }
        // Truncate only now that the file is known to belong to this run.
        if whole < bytes.len() {
            file.set_len(whole as u64).map_err(io)?;
        }
        self.file = Some((path.to_owned(), file));
        Ok(self)
    }

    /// Returns the number of an earlier run's measurements that were not requested yet.
    pub fn there(&self) -> u64 {
        self.found.len() as u64
    }

    /// Removes and returns the values of a measurement that an earlier run has finished.
    pub fn found<F: DeserializeOwned>(&mut self, part: &str, step: u64) -> Option<F> {
        let figures = self.found.remove(&(part.to_owned(), step))?;
        // Values that do not round-trip through JSON, such as NaN, are measured anew.
        let figures = serde_json::from_value(figures).ok()?;
        self.done += 1;
        Some(figures)
    }

    /// Stores a finished measurement. A failure does not end the run; [`Partial::kept`] reports it.
    pub fn keep(&mut self, part: &str, step: u64, figures: &impl Serialize) {
        self.done += 1;
        if self.header.is_some()
            && self.lost.is_none()
            && let Err(error) = self.append(&Line { part: part.to_owned(), step, figures })
        {
            self.lost = Some(error.to_string());
        }
    }

    /// Counts a step that needs no measurement.
    pub fn pass(&mut self) {
        self.done += 1;
    }

    /// Returns the number of finished steps, of this run and of those before it.
    pub fn done(&self) -> u64 {
        self.done + self.there()
    }

    /// Returns the last value stored for a part whose lines are each a full snapshot, and forgets all others.
    pub fn last<F: DeserializeOwned>(&mut self, part: &str) -> Option<F> {
        let (_, last) = self.found.iter().rfind(|((of, _), _)| of == part)?;
        let last = serde_json::from_value(last.clone()).ok();
        self.found.clear();
        last
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), PartialError> {
        let mut bytes = Vec::new();
        let (path, mut file) = match self.file.take() {
            Some(made) => made,
            None => {
                let made = self.make()?;
                put(&mut bytes, &self.header);
                made
            }
        };
        put(&mut bytes, line);
        // A single write, so that a killed process leaves whole lines except for the last.
        let written = file.write_all(&bytes);
        self.file = Some((path.clone(), file));
        written.map_err(|source| PartialError::Io { path, source })
    }

    /// Creates a file with a unique name: `napkin-bench-20261122-174512.partial`.
    fn make(&self) -> Result<(PathBuf, File), PartialError> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let now: String = now.chars().filter(char::is_ascii_digit).collect();
        let (day, time) = now.split_at(8.min(now.len()));
        let command = self.header.as_ref().map_or("", |it| it.command.as_str());
        for number in 1_u32.. {
            let more = if number == 1 { String::new() } else { format!("-{number}") };
            let path = self.folder.join(format!("napkin-{command}-{day}-{time}{more}.partial"));
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(PartialError::Io { path, source }),
                Ok(file) => {
                    // No other process knows this file yet, so the lock is free.
                    let _ = file.try_lock();
                    return Ok((path, file));
                }
            }
        }
        Err(PartialError::Busy(self.folder.clone()))
    }

    /// Returns the file to resume from, if there is one.
    ///
    /// # Errors
    /// The reason if a measurement could not be stored.
    pub fn kept(&self) -> Result<Option<&Path>, &str> {
        match &self.lost {
            Some(why) => Err(why),
            None => Ok(self.file.as_ref().map(|(path, _)| path.as_path())),
        }
    }

    /// Deletes the file, after everything was measured and printed.
    pub fn end(self) {
        if let Some((path, _)) = self.file {
            // It may have been deleted already.
            let _ = fs::remove_file(path);
        }
    }
}

impl Header {
    /// Returns the first difference from another header: its path, the other value, and this value.
    fn difference(&self, other: &Header) -> Option<(String, String, String)> {
        for (what, one, other) in
            [("napkin", &self.napkin, &other.napkin), ("command", &self.command, &other.command)]
        {
            if one != other {
                return Some((what.to_owned(), other.clone(), one.clone()));
            }
        }
        difference("", &self.plan, &other.plan)
    }
}

/// Returns the path of the first difference between two values, `theirs`, and `ours`.
fn difference(place: &str, one: &Value, other: &Value) -> Option<(String, String, String)> {
    let below = |name: &str| match place {
        "" => name.to_owned(),
        place => format!("{place}.{name}"),
    };
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let of = |map: &Map<String, Value>, name: &str| {
                map.get(name).cloned().unwrap_or(Value::Null)
            };
            one.keys()
                .chain(other.keys())
                .find_map(|name| difference(&below(name), &of(one, name), &of(other, name)))
        }
        (Value::Array(one), Value::Array(other)) => {
            let of = |all: &[Value], place: usize| all.get(place).cloned().unwrap_or(Value::Null);
            (0..one.len().max(other.len())).find_map(|place| {
                difference(&below(&place.to_string()), &of(one, place), &of(other, place))
            })
        }
        _ if one == other => None,
        _ => {
            let text_of = |value: &Value| match value {
                Value::Null => "absent".to_owned(),
                Value::String(text) => quoted(text),
                value => quoted(&value.to_string()),
            };
            Some((place.to_owned(), text_of(other), text_of(one)))
        }
    }
}

/// Appends a line. A value that cannot be serialized, which would be a bug, is skipped.
fn put(bytes: &mut Vec<u8>, line: &impl Serialize) {
    if let Ok(line) = serde_json::to_vec(line) {
        bytes.extend(line);
        bytes.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use napkin_testing::Folder;
    use serde_json::json;

    use super::*;

    fn files(folder: &Folder) -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect()
    }

    fn new(folder: &Folder, plan: &Value) -> Partial {
        Partial::begin(folder, "napkin 1.0", "bench", plan.clone())
    }

    fn plan() -> Value {
        json!({ "seed": 1, "host": { "kernel": "7.2" }, "policies": ["base", "threaded"] })
    }

    /// A file with two measurements.
    fn kept(folder: &Folder) -> PathBuf {
        let mut partial = new(folder, &plan());
        partial.keep("udp-sink", 0, &0.1);
        partial.keep("udp-sink", 2, &[0.2, 0.3]);
        assert_eq!(partial.done(), 2);
        partial.kept().unwrap().unwrap().to_owned()
    }

    #[test]
    fn what_was_measured_is_there_again_and_nothing_is_left_at_the_end() {
        let folder = Folder::new("partial-again");
        assert_eq!(new(&folder, &plan()).kept(), Ok(None), "nothing yet");
        let path = kept(&folder);
        assert_eq!(files(&folder), std::slice::from_ref(&path));
        let mut partial = new(&folder, &plan()).resume(&path).unwrap();
        assert_eq!(partial.found::<f64>("udp-sink", 1), None);
        assert_eq!(partial.found::<f64>("xsk-rr", 0), None);
        assert_eq!(partial.found("udp-sink", 0), Some(0.1));
        assert_eq!(partial.found::<f64>("udp-sink", 2), None, "not of that form: measured anew");
        assert_eq!((partial.done(), partial.there()), (1, 0));
        partial.keep("udp-sink", 1, &"more");
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4);
        partial.end();
        assert_eq!(files(&folder), [] as [PathBuf; 0]);
    }

    #[test]
    fn of_lines_that_say_all_the_last_counts() {
        let folder = Folder::new("partial-last");
        let path = kept(&folder);
        let last = || new(&folder, &plan()).resume(&path).unwrap().last::<Value>("udp-sink");
        assert_eq!(last(), Some(json!([0.2, 0.3])));
        assert_eq!(new(&folder, &plan()).resume(&path).unwrap().last::<Value>("swarm"), None);
    }

    #[test]
    fn a_half_line_is_dropped_and_a_file_without_a_whole_one_is_refused() {
        let folder = Folder::new("partial-half");
        let path = kept(&folder);
        let whole = fs::read(&path).unwrap();
        let lines: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
        for cut in lines[1] + 1..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut partial = new(&folder, &plan()).resume(&path).unwrap();
            assert_eq!(partial.found("udp-sink", 0), Some(0.1), "{cut}");
            assert_eq!(partial.found::<Value>("udp-sink", 2), None, "{cut}");
            drop(partial);
            assert_eq!(fs::read(&path).unwrap(), whole[..=lines[1]]);
        }
        fs::write(&path, &whole[..lines[0]]).unwrap();
        let error = new(&folder, &plan()).resume(&path).unwrap_err().to_string();
        assert!(
            error.ends_with(
                ".partial:1: this is no line of an interrupted run: it has no first line"
            )
        );
        assert_eq!(fs::read(&path).unwrap(), whole[..lines[0]], "left as it is");
    }

    #[test]
    fn another_run_s_file_is_refused_with_what_differs_and_left_as_it_is() {
        let folder = Folder::new("partial-other");
        let path = kept(&folder);
        let half = [&fs::read(&path).unwrap()[..], b"{\"part"].concat();
        fs::write(&path, &half).unwrap();
        let differs = |partial: Partial| partial.resume(&path).unwrap_err().to_string();
        for (pointer, value, message) in [
            ("/seed", json!(7), "seed is 1 there and 7 now"),
            ("/host/kernel", json!("7.3"), "host.kernel is 7.2 there and 7.3 now"),
            ("/policies/1", json!("hold"), "policies.1 is threaded there and hold now"),
            ("/policies", json!(["base"]), "policies.1 is threaded there and absent now"),
            ("/host", json!({}), "host.kernel is 7.2 there and absent now"),
        ] {
            let mut plan = plan();
            *plan.pointer_mut(pointer).unwrap() = value;
            let error = differs(new(&folder, &plan));
            assert!(error.contains(message), "{error}");
        }
        let of = |version, command| Partial::begin(&folder, version, command, plan());
        let error = differs(of("napkin 2.0", "bench"));
        assert!(error.contains("napkin is napkin 1.0 there and napkin 2.0 now"), "{error}");
        assert!(
            differs(of("napkin 1.0", "swarm")).contains("command is bench there and swarm now")
        );
        assert_eq!(fs::read(&path).unwrap(), half);
        fs::write(&path, "my diary\n").unwrap();
        assert!(differs(new(&folder, &plan())).contains(":1: this is no line"));
        fs::remove_file(&path).unwrap();
        assert!(differs(new(&folder, &plan())).contains("No such file"));
    }

    #[test]
    fn two_runs_do_not_write_one_file_and_two_new_ones_have_two() {
        let folder = Folder::new("partial-busy");
        let mut one = new(&folder, &plan());
        let mut two = new(&folder, &plan());
        one.keep("a", 0, &1);
        two.keep("a", 0, &1);
        assert_eq!(files(&folder).len(), 2);
        let path = one.kept().unwrap().unwrap().to_owned();
        let busy = || new(&folder, &plan()).resume(&path);
        assert!(matches!(busy(), Err(PartialError::Busy(_))));
        drop(one);
        assert!(busy().is_ok());
    }

    #[test]
    fn what_cannot_be_kept_is_said_when_it_matters() {
        let folder = Folder::new("partial-lost");
        let nowhere = folder.join("no/such/folder");
        let mut partial = Partial::begin(&nowhere, "napkin 1.0", "bench", plan());
        partial.keep("a", 0, &1);
        partial.keep("a", 1, &1);
        assert_eq!(partial.done(), 2);
        assert!(partial.kept().unwrap_err().contains("no/such/folder/napkin-bench-"));
        let mut nothing = Partial::default();
        nothing.keep("a", 0, &1);
        assert_eq!(nothing.kept(), Ok(None));
    }
}
