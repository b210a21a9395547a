//! Provenance of a page: the date, the program's version, and the command.
//!
//! Only pages have it. Text and JSON of the machine are byte-identical for the same seed, which a date would break.

use std::time::SystemTime;

/// Date, version and command of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// Date and time, in UTC.
    pub date: String,
    /// Version, with the commit if known.
    pub version: String,
    /// Command line in shell syntax.
    pub command: String,
}

impl Provenance {
    /// The provenance of this process, now. `commit` is that of the program's source, if it was built in a
    /// checkout.
    pub fn now(commit: Option<&str>) -> Provenance {
        let arguments = std::env::args_os().skip(1);
        Provenance {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: version(commit),
            command: command(arguments.map(|it| it.to_string_lossy().into_owned())),
        }
    }

    /// The facts that a page shows.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("date", self.date.clone()),
            ("version", self.version.clone()),
            ("command", self.command.clone()),
        ]
    }
}

/// The version, with the commit if known.
pub fn version(commit: Option<&str>) -> String {
    let commit = commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
    format!("napkin {}{commit}", env!("CARGO_PKG_VERSION"))
}

/// The command line with these arguments, in shell syntax.
pub fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let arguments = arguments.into_iter().map(|argument| quoted(&argument));
    ["napkin".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Quotes an argument for a shell if necessary.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_given_to_a_shell_again() {
        assert_eq!(quoted("--policy=suspend20,hold=50us"), "--policy=suspend20,hold=50us");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn the_version_names_the_commit_where_it_is_known() {
        let Provenance { date, version, command } = Provenance::now(Some("0123abc"));
        assert!(version.ends_with(", commit 0123abc"), "{version}");
        assert!(!Provenance::now(None).version.contains("commit"));
        assert!(date.ends_with('Z') && date.len() == 20, "{date}");
        assert!(command.starts_with("napkin"), "{command}");
    }
}
