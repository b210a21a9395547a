//! A run that can be interrupted and resumed: its signals, its results so far, and what it prints when it ends early.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use napkin_measure::report::{length, provenance};
use napkin_workload::{Interrupt, Interrupted, Partial, PartialError};
use serde_json::Value;

use crate::failure::{Failure, say};

/// A run of a measuring command, which can be interrupted and later resumed from its file.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The signal that asked it to end, if any.
    pub(crate) interrupt: Interrupt,
    /// The results so far.
    pub(crate) partial: Partial,
    /// Measurements of the complete run.
    all: u64,
}

/// Starts recording signals. Must be called before any other thread is created.
pub(crate) fn watch() -> Result<Interrupt, Failure> {
    Interrupt::watch().map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))
}

impl Attempt {
    /// Resumes from that file, or begins anew with a file in the current directory.
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

    /// The measurements and the time left, if all of them together take `time`: `24 measurements, about 1 min 10 s`.
    pub(crate) fn size(&self, time: Duration) -> String {
        let (all, done) = (self.all, self.partial.there());
        let left = all.saturating_sub(done);
        let time = length(time.as_secs_f64() * left as f64 / all.max(1) as f64);
        let s = if all == 1 { "" } else { "s" };
        match done {
            0 => format!("{all} measurement{s}, about {time}"),
            _ => format!("{all} measurement{s}, {left} left, about {time}"),
        }
    }

    /// The signal that interrupted the run, unless all measurements were done by then.
    pub(crate) fn unfinished(&self) -> Option<Interrupted> {
        self.interrupt.check().err().filter(|_| self.partial.done() < self.all)
    }

    /// The number of runs, for commands that know the duration only after the first run.
    pub(crate) fn runs(&self) -> String {
        let left = self.all.saturating_sub(self.partial.there());
        let all = if left < self.all { format!(" of {}", self.all) } else { String::new() };
        format!("{left}{all} runs; after the first of each experiment: how long they take")
    }

    /// Removes the file of results so far, once they are shown and written elsewhere.
    pub(crate) fn end(self) {
        self.partial.end();
    }

    /// Prints how far an interrupted run came and how to resume it. Returns the exit code of the signal.
    pub(crate) fn interrupted(&self, interrupted: Interrupted) -> Failure {
        self.interrupted_at(interrupted, &self.progress())
    }

    /// As [`Attempt::interrupted`], with a text of the caller's for how far it came.
    pub(crate) fn interrupted_at(&self, interrupted: Interrupted, progress: &str) -> Failure {
        say(&format!("interrupted: {progress}{}", self.resume_hint()));
        Failure::Exit(interrupted.exit_code())
    }

    fn progress(&self) -> String {
        format!("{} of {} measurements done", self.partial.done(), self.all)
    }

    /// Prints how to resume after a failure of the run, or of writing its results. Returns the failure.
    pub(crate) fn failed(&self, failure: Failure) -> Failure {
        if let Ok(Some(_)) = self.partial.kept() {
            say(&format!("{}{}", self.progress(), self.resume_hint()));
        }
        failure
    }

    fn resume_hint(&self) -> String {
        match self.partial.kept() {
            Ok(Some(path)) => format!("; go on with: {}", resume_command(Some(path))),
            Ok(None) => String::new(),
            Err(why) => format!("; they could not be kept: {why}"),
        }
    }
}

/// The world of the interrupted bench that left this file, if the file names it.
pub(crate) fn world_of(path: &Path, workload: &str) -> Option<String> {
    let mut line = String::new();
    // The first line of such a file is short: of a file without a line end no more is read.
    BufReader::new(File::open(path).ok()?.take(16 << 20)).read_line(&mut line).ok()?;
    let first: Value = serde_json::from_str(&line).ok()?;
    first["plan"][workload]["world"].as_str().map(str::to_owned)
}

/// The command line of this process with `--resume` and, if the command takes one, the file.
pub(crate) fn resume_command(path: Option<&Path>) -> String {
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
