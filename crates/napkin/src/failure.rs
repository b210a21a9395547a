//! How a command fails, and how text is printed: so that a closed pipe is no failure, and nothing that
//! somebody else has named acts on the terminal.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use napkin_policy::text::{escaped_json, escaped_lines};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It makes no sense.
    Usage(String),
    /// It could not be done.
    Failed(String),
    /// Whoever read the output has had enough.
    Closed,
    /// Everything has been said; only the exit code is left.
    Exit(u8),
}

impl Failure {
    /// Something that could not be done.
    pub(crate) fn of(error: impl Display) -> Failure {
        Failure::Failed(error.to_string())
    }

    /// What keeps an answer from being had, where 1 would be an answer.
    pub(crate) fn unanswered(error: impl Display) -> Failure {
        Failure::Usage(error.to_string())
    }

    /// A signal ended it before it was done, of which everything has been said: the exit code is a shell's.
    pub(crate) fn by_signal(signal: i32) -> Failure {
        Failure::Exit(u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128)))
    }

    /// Whether that is a failure, and not only a reader that has gone: who has had enough has asked for the files
    /// all the same.
    pub(crate) fn is_of(told: &Result<(), Failure>) -> bool {
        !matches!(told, Ok(()) | Err(Failure::Closed))
    }

    /// Says it by a rule of the caller's own; what is left is the exit code.
    pub(crate) fn told(self, tell: impl FnOnce(&str)) -> Failure {
        let (text, code) = match self {
            Failure::Usage(text) => (text, 2),
            Failure::Failed(text) => (text, 1),
            Failure::Closed | Failure::Exit(_) => return self,
        };
        tell(&format!("error: {text}"));
        Failure::Exit(code)
    }

    /// Says it and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self.told(say) {
            Failure::Exit(code) => ExitCode::from(code),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// What is told before something more important: a reader that has gone does not hide that.
pub(crate) fn told_first(result: Result<(), Failure>) {
    if let Err(Failure::Usage(why) | Failure::Failed(why)) = result {
        say(&format!("error: {why}"));
    }
}

/// What a command ends with whose exit code, if it is not 0, says what it has found and just told: a reader that has
/// gone does not change what was found.
pub(crate) fn found(code: u8, told: Result<(), Failure>) -> Result<(), Failure> {
    match (told, code) {
        (Ok(()) | Err(Failure::Closed), 1..) => Err(Failure::Exit(code)),
        (told, _) => told,
    }
}

/// The same, where the exit code 1 is an answer: one that cannot be told ends with another.
pub(crate) fn answered(code: u8, told: Result<(), Failure>) -> Result<(), Failure> {
    let told = told.map_err(|failure| match failure {
        Failure::Failed(why) => Failure::unanswered(why),
        failure => failure,
    });
    found(code, told)
}

/// Prints to standard output.
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

/// Prints a line to standard error, where there may be nobody any more to read it.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped_lines(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again_and_its_exit_code_stays() {
        let mut said = Vec::new();
        let left = Failure::Usage("it".into()).told(|line| said.push(line.to_owned()));
        assert_eq!(said, ["error: it"]);
        assert!(matches!(left.told(|_| panic!("again")), Failure::Exit(2)));
    }

    #[test]
    fn a_reader_that_has_gone_does_not_change_what_was_found() {
        for told in [Ok(()), Err(Failure::Closed)] {
            assert!(matches!(found(1, told), Err(Failure::Exit(1))));
        }
        assert!(matches!(found(0, Ok(())), Ok(())));
        assert!(matches!(found(0, Err(Failure::Closed)), Err(Failure::Closed)));
        let full = || Err(Failure::Failed("no space".into()));
        for code in [0, 2] {
            assert!(matches!(found(code, full()), Err(Failure::Failed(_))), "{code}");
            assert!(matches!(answered(code, full()), Err(Failure::Usage(_))), "{code}");
        }
    }
}
