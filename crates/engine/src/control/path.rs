//! Where control sockets are, and which of them have an engine behind them.
//!
//! Others may write to `/tmp`, and may have put there what looks like this user's directory. So a
//! directory is believed only if it is this user's alone, by whoever opens a socket and by whoever
//! looks for one.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::error::ControlError;
use super::listener::{Found, look};

/// The longest directory that is looked through.
const MAX_ENTRIES: usize = 1_024;

/// An engine that can be controlled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its control socket.
    pub path: PathBuf,
    /// Its process, if the operating system says which.
    pub pid: Option<i32>,
}

/// The directories in which sockets are looked for, the preferred one first.
pub(super) fn directories() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|it| it.is_absolute()).map(|it| it.join("napkin"));
    let system = (uid == 0).then(|| PathBuf::from("/run/napkin"));
    // The system's own temporary directory, not TMPDIR: both sides must come to the same.
    let temporary = PathBuf::from(format!("/tmp/napkin-{uid}"));
    runtime.into_iter().chain(system).chain([temporary]).collect()
}

/// The socket of an engine called `name`, in the first of `$XDG_RUNTIME_DIR/napkin`, `/run/napkin`
/// (root) and `/tmp/napkin-UID` that can be had; the directory is made if it is missing.
///
/// # Errors
/// If none of them can be made, or is safe.
pub fn default_path(name: &str) -> Result<PathBuf, ControlError> {
    let mut last = None;
    for directory in directories() {
        match prepare(&directory) {
            Ok(()) => return Ok(directory.join(format!("{name}.sock"))),
            Err(error) => last = Some(error),
        }
    }
    // There always is one.
    Err(last.unwrap_or_else(|| ControlError::system("find", Path::new("/tmp"), Errno::NOENT)))
}

/// Makes a directory that is this user's alone, or finds it so.
fn prepare(directory: &Path) -> Result<(), ControlError> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(ControlError::system("make the directory", directory, error)),
    }
    check(directory)
}

/// Refuses what is no directory of this user's alone.
fn check(directory: &Path) -> Result<(), ControlError> {
    // Not following a link, which somebody else may have put there.
    let metadata = fs::symlink_metadata(directory)
        .map_err(|error| ControlError::system("look at", directory, error))?;
    let us = rustix::process::geteuid().as_raw();
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if metadata.is_dir() && uid == us && mode & 0o077 == 0 {
        return Ok(());
    }
    let found = if metadata.is_dir() { "a directory" } else { "no directory" };
    let found = format!("{found}, of uid {uid}, with mode {mode:04o}");
    Err(ControlError::Unsafe { path: directory.to_owned(), found, us })
}

/// The engines that can be controlled from here and whose sockets are where they are by default;
/// and why a directory was passed over.
pub(super) fn running() -> (Vec<Running>, Vec<ControlError>) {
    let (mut running, mut refused) = (Vec::new(), Vec::new());
    for directory in directories() {
        match check(&directory) {
            Ok(()) => {}
            Err(error @ ControlError::Unsafe { .. }) => {
                refused.push(error);
                continue;
            }
            // There is none, or nothing of it can be seen.
            Err(_) => continue,
        }
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let paths = entries.take(MAX_ENTRIES).filter_map(|entry| Some(entry.ok()?.path()));
        for path in paths.filter(|path| path.extension().is_some_and(|it| it == "sock")) {
            if let Ok(Found::Live(pid)) = look(&path) {
                running.push(Running { path, pid });
            }
        }
    }
    running.sort_by(|a, b| a.path.cmp(&b.path));
    (running, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_must_be_ours_alone() {
        let directory = std::env::temp_dir().join(format!("napkin-dir-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        prepare(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        prepare(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let error = prepare(&directory).unwrap_err().to_string();
        let uid = rustix::process::geteuid().as_raw();
        let found = format!("it is a directory, of uid {uid}, with mode 0777");
        assert!(error.contains(&found), "{error}");
        assert_eq!(check(&directory).unwrap_err().to_string(), error, "looking as well");
        fs::remove_dir(&directory).unwrap();
        // A link to a directory of ours is not a directory of ours.
        std::os::unix::fs::symlink("/tmp", &directory).unwrap();
        assert!(matches!(prepare(&directory), Err(ControlError::Unsafe { .. })));
        fs::remove_file(&directory).unwrap();
    }
}
