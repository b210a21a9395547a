//! Where a page comes from: when it was made, by which version of what, and by which command.
//!
//! It stands on pages only. Text and JSON of the machine are the same bytes for the same seed, and a date
//! would end that.

use std::time::SystemTime;

/// When and how a page was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// The date and time, in UTC.
    pub date: String,
    /// The version, with the commit where it is known.
    pub version: String,
    /// The command, as a shell would take it.
    pub command: String,
}

impl Provenance {
    /// Now, by this process's arguments. `commit` is that of the program's source, where it was built in a
    /// checkout.
    pub fn now(commit: Option<&str>) -> Provenance {
        let arguments = std::env::args_os().skip(1);
        Provenance {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: version(commit),
            command: command(arguments.map(|it| it.to_string_lossy().into_owned())),
        }
    }

    /// What a page says of it.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("date", self.date.clone()),
            ("version", self.version.clone()),
            ("command", self.command.clone()),
        ]
    }
}

/// The version, with the commit if it is known.
pub fn version(commit: Option<&str>) -> String {
    let commit = commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
    format!("napkin {}{commit}", env!("CARGO_PKG_VERSION"))
}

/// The command with these arguments, as a shell takes it.
pub fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let arguments = arguments.into_iter().map(|argument| quoted(&argument));
    ["napkin".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

/// An argument as a shell takes it.
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
