//! One attempt at a run that may be interrupted: what is said when it is, and how it goes on.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use napkin_measure::report::{length, provenance};
use napkin_workload::{Interrupt, Interrupted, Partial, PartialError};
use serde_json::Value;

use crate::failure::{Failure, say};

/// A command that measures: it may be interrupted, and later goes on from its file.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Whether it was asked to end.
    pub(crate) interrupt: Interrupt,
    /// What it has measured.
    pub(crate) partial: Partial,
    /// Measurements in all.
    all: u64,
}

/// Has signals noted. Before any other thread is made.
pub(crate) fn watch() -> Result<Interrupt, Failure> {
    Interrupt::watch().map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))
}

impl Attempt {
    /// Goes on with that file, or begins; then what is measured is kept in the current directory.
    pub(crate) fn new(
        interrupt: Interrupt,
        resume: Option<&Path>,
        command: &str,
        plan: Value,
        all: u64,
    ) -> Result<Attempt, Failure> {
        let version = provenance::version(crate::COMMIT);
        let mut partial = Partial::begin(Path::new(""), &version, command, plan);
        if let Some(path) = resume {
            partial = partial.resume(path).map_err(|error| match error {
                PartialError::Io { .. } => Failure::of(error),
                error => Failure::Usage(error.to_string()),
            })?;
        }
        Ok(Attempt { interrupt, partial, all })
    }

    /// What it will take, for measurements that all take `time`: `24 measurements, about 1 min 10 s`.
    pub(crate) fn size(&self, time: Duration) -> String {
        let (all, there) = (self.all, self.partial.there());
        let left = all.saturating_sub(there);
        let time = length(time.as_secs_f64() * left as f64 / all.max(1) as f64);
        let s = if all == 1 { "" } else { "s" };
        match there {
            0 => format!("{all} measurement{s}, about {time}"),
            _ => format!("{all} measurement{s}, {left} left, about {time}"),
        }
    }

    /// What interrupted it, unless all had been done by then.
    pub(crate) fn unfinished(&self) -> Option<Interrupted> {
        self.interrupt.check().err().filter(|_| self.partial.done() < self.all)
    }

    /// How many runs there are, where only the first of them tells what they take.
    pub(crate) fn runs(&self) -> String {
        let left = self.all.saturating_sub(self.partial.there());
        let all = if left < self.all { format!(" of {}", self.all) } else { String::new() };
        format!("{left}{all} runs; after the first of each experiment: how long they take")
    }

    /// What was measured is shown and written: nothing is left of it.
    pub(crate) fn end(self) {
        self.partial.end();
    }

    /// It was interrupted: says how far it came, and how it goes on.
    pub(crate) fn interrupted(&self, interrupted: Interrupted) -> Failure {
        self.ended(interrupted, &self.far())
    }

    /// The same, of something that counts in another way.
    pub(crate) fn ended(&self, interrupted: Interrupted, far: &str) -> Failure {
        say(&format!("interrupted: {far}{}", self.how()));
        Failure::Exit(interrupted.exit_code())
    }

    fn far(&self) -> String {
        format!("{} of {} measurements done", self.partial.done(), self.all)
    }

    /// Something else ended it, or what it has measured could not be written: says how it goes on if that is fixed.
    pub(crate) fn failed(&self, failure: Failure) -> Failure {
        if let Ok(Some(_)) = self.partial.kept() {
            say(&format!("{}{}", self.far(), self.how()));
        }
        failure
    }

    fn how(&self) -> String {
        match self.partial.kept() {
            Ok(Some(path)) => format!("; go on with: {}", again(Some(path))),
            Ok(None) => String::new(),
            Err(why) => format!("; they could not be kept: {why}"),
        }
    }
}

/// The world in which a bench has left a file to go on with, if it says so.
pub(crate) fn world_of(path: &Path, workload: &str) -> Option<String> {
    let mut line = String::new();
    // A line of ours is short; what has none is no file of ours.
    BufReader::new(File::open(path).ok()?.take(16 << 20)).read_line(&mut line).ok()?;
    let first: Value = serde_json::from_str(&line).ok()?;
    first["plan"][workload]["world"].as_str().map(str::to_owned)
}

/// The command of this process with `--resume` and, where it takes one, a file.
pub(crate) fn again(path: Option<&Path>) -> String {
    let mut arguments: Vec<String> =
        std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    if let Some(place) = arguments.iter().position(|it| it == "--resume") {
        let with = 1 + usize::from(path.is_some());
        arguments.drain(place..(place + with).min(arguments.len()));
    }
    arguments.retain(|it| !it.starts_with("--resume="));
    arguments.push("--resume".to_owned());
    arguments.extend(path.map(|path| path.display().to_string()));
    provenance::command(arguments)
}
