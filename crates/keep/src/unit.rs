//! Finds the processes of a systemd unit: those in its control group (v2), which is a directory.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

use napkin_os::procfs::read_text;

/// Mount points of the control groups: alone, or beside those of version 1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The maximum size of a group's process list, in bytes.
const LONGEST: usize = 1 << 20;

/// The maximum number of groups of a unit that are read.
const GROUPS: usize = 1_024;

/// A unit by its name, `memcached.service` in `system.slice`, or by its group's path,
/// `/work.slice/memcached.service`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(String);

impl Unit {
    /// Parses a unit; `None` if the text is neither a name nor a path.
    pub fn read(text: &str) -> Option<Unit> {
        let path = Path::new(text.strip_prefix('/').unwrap_or(text));
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let named = text.starts_with('/') || !text.contains('/');
        let right =
            plain && named && !text.contains(char::is_control) && path.file_name().is_some();
        right.then(|| Unit(text.to_owned()))
    }

    /// Whether both have the same processes: a name equals its path.
    pub(crate) fn is_same(&self, other: &Unit) -> bool {
        self.path() == other.path()
    }

    /// The message that its programs already belong to the wish with this name.
    pub(crate) fn of_another(&self, wish: &str) -> String {
        format!("the programs of {self} are those of the wish {wish}; one wish names a unit")
    }

    /// The path of its group below the root.
    fn path(&self) -> PathBuf {
        match self.0.strip_prefix('/') {
            Some(path) => PathBuf::from(path),
            None => Path::new("system.slice").join(&self.0),
        }
    }

    /// The directory of its group, whether it exists or not; `None` without control groups.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let root =
            ROOTS.into_iter().map(Path::new).find(|root| root.join("cgroup.procs").exists())?;
        Some(root.join(self.path()))
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The processes of a group and of all its subgroups; empty if it does not exist.
pub(crate) fn processes(group: &Path) -> Vec<i32> {
    let mut processes = Vec::new();
    let mut groups = vec![group.to_owned()];
    let mut looked = 0;
    while let Some(group) = groups.pop() {
        let text = read_text(group.join("cgroup.procs"), LONGEST).unwrap_or_default();
        // 0 is a process of another PID namespace.
        processes.extend(
            text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0),
        );
        looked += 1;
        if looked < GROUPS {
            let below = fs::read_dir(&group).into_iter().flatten().flatten();
            groups.extend(
                below.filter(|it| it.file_type().is_ok_and(|it| it.is_dir())).map(|it| it.path()),
            );
        }
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_name_or_a_path_below_the_root() {
        for right in ["memcached.service", "foo@1.service", "/work.slice/a.scope"] {
            assert_eq!(Unit::read(right).map(|it| it.to_string()).as_deref(), Some(right));
        }
        for wrong in ["", "/", "a/b.service", "/../etc", "/a/../../b", "..", "a\n"] {
            assert_eq!(Unit::read(wrong), None, "{wrong}");
        }
    }
}
