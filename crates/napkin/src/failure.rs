//! Failures of commands, and printing. A closed pipe is not a failure, and control characters in names from outside
//! are escaped, so that they do not act on the terminal.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use napkin_policy::text::{escaped_json, escaped_lines};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense: exit code 2.
    Usage(String),
    /// The command could not be carried out: exit code 1.
    Failed(String),
    /// The reader of the output has closed it: exit code 0.
    Closed,
    /// Everything is printed already: this exit code.
    Exit(u8),
}

impl Failure {
    /// A [`Failure::Failed`] with the error's text.
    pub(crate) fn of(error: impl Display) -> Failure {
        Failure::Failed(error.to_string())
    }

    /// A failure with exit code 2, for commands whose exit code 1 is an answer.
    pub(crate) fn unanswered(error: impl Display) -> Failure {
        Failure::Usage(error.to_string())
    }

    /// The failure of a command that a signal ended early, if that is printed already: exit code 128 and the signal's
    /// number, as of a shell.
    pub(crate) fn by_signal(signal: i32) -> Failure {
        Failure::Exit(u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128)))
    }

    /// Whether the result is a failure other than a closed output, after which files are still to be written.
    pub(crate) fn is_failure(result: &Result<(), Failure>) -> bool {
        !matches!(result, Ok(()) | Err(Failure::Closed))
    }

    /// Prints the failure by `tell`. Returns the exit code, as a failure.
    pub(crate) fn print_by(self, print: impl FnOnce(&str)) -> Failure {
        let (text, code) = match self {
            Failure::Usage(text) => (text, 2),
            Failure::Failed(text) => (text, 1),
            Failure::Closed | Failure::Exit(_) => return self,
        };
        print(&format!("error: {text}"));
        Failure::Exit(code)
    }

    /// Prints the failure to standard error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self.print_by(say) {
            Failure::Exit(code) => ExitCode::from(code),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Prints a failure that a more important result follows. A closed output does not hide that result.
pub(crate) fn print_failure(result: Result<(), Failure>) {
    if let Err(Failure::Usage(why) | Failure::Failed(why)) = result {
        say(&format!("error: {why}"));
    }
}

/// The result of a command whose exit code, if not 0, states a finding, which has just been printed with the result
/// `printed`. A closed output does not change the exit code.
pub(crate) fn exit_with(code: u8, printed: Result<(), Failure>) -> Result<(), Failure> {
    match (printed, code) {
        (Ok(()) | Err(Failure::Closed), 1..) => Err(Failure::Exit(code)),
        (printed, _) => printed,
    }
}

/// As [`exit_with`], where exit code 1 is an answer: if the answer cannot be printed, the exit code is 2.
pub(crate) fn exit_with_answer(code: u8, printed: Result<(), Failure>) -> Result<(), Failure> {
    let printed = printed.map_err(|failure| match failure {
        Failure::Failed(why) => Failure::unanswered(why),
        failure => failure,
    });
    exit_with(code, printed)
}

/// Prints to standard output, with control characters escaped.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    put(&escaped_lines(text))
}

fn put(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::Closed),
        Err(error) => Err(Failure::Failed(format!("cannot write: {error}"))),
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    put(&escaped_json(&format!("{value:#}\n")))
}

/// Prints a line to standard error. Errors are ignored: the reader may be gone.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped_lines(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again_and_its_exit_code_stays() {
        let mut lines = Vec::new();
        let left = Failure::Usage("it".into()).print_by(|line| lines.push(line.to_owned()));
        assert_eq!(lines, ["error: it"]);
        assert!(matches!(left.print_by(|_| panic!("again")), Failure::Exit(2)));
    }

    #[test]
    fn a_reader_that_has_gone_does_not_change_what_was_found() {
        for printed in [Ok(()), Err(Failure::Closed)] {
            assert!(matches!(exit_with(1, printed), Err(Failure::Exit(1))));
        }
        assert!(matches!(exit_with(0, Ok(())), Ok(())));
        assert!(matches!(exit_with(0, Err(Failure::Closed)), Err(Failure::Closed)));
        let full = || Err(Failure::Failed("no space".into()));
        for code in [0, 2] {
            assert!(matches!(exit_with(code, full()), Err(Failure::Failed(_))), "{code}");
            assert!(matches!(exit_with_answer(code, full()), Err(Failure::Usage(_))), "{code}");
        }
    }
}
