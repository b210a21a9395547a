//! The paths of control sockets, and the engines that listen there.
//!
//! Other users may write to `/tmp`, and may have put there what looks like this user's directory. So a directory is
//! trusted only if it is this user's alone, both to open a socket there and to look for one.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::error::ControlError;
use super::listener::{Found, look};

/// The most entries of a directory that are read.
const MAX_ENTRIES: usize = 1_024;

/// An engine that can be controlled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its control socket.
    pub path: PathBuf,
    /// Its process id, if the operating system reports it.
    pub pid: Option<i32>,
}

/// The directories that are searched for sockets, the preferred one first.
pub(super) fn directories() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|it| it.is_absolute()).map(|it| it.join("napkin"));
    let system = (uid == 0).then(|| PathBuf::from("/run/napkin"));
    // `/tmp`, not TMPDIR: the server and the client must use the same.
    let temporary = PathBuf::from(format!("/tmp/napkin-{uid}"));
    runtime.into_iter().chain(system).chain([temporary]).collect()
}

/// The socket of an engine called `name`, in the first of `$XDG_RUNTIME_DIR/napkin`, `/run/napkin` (root) and
/// `/tmp/napkin-UID` that is usable; the directory is created if it is missing.
///
/// # Errors
/// If none of them can be created, or is safe.
pub fn default_path(name: &str) -> Result<PathBuf, ControlError> {
    let mut last = None;
    for directory in directories() {
        match prepare(&directory) {
            Ok(()) => return Ok(directory.join(format!("{name}.sock"))),
            Err(error) => last = Some(error),
        }
    }
    // `directories` is never empty.
    Err(last.unwrap_or_else(|| ControlError::system("find", Path::new("/tmp"), Errno::NOENT)))
}

/// Creates a directory that is this user's alone, or checks that an existing one is.
fn prepare(directory: &Path) -> Result<(), ControlError> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(ControlError::system("make the directory", directory, error)),
    }
    check(directory)
}

/// Refuses anything but a directory of this user's alone.
fn check(directory: &Path) -> Result<(), ControlError> {
    // Does not follow a link, which another user may have put there.
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

/// The engines that can be controlled from here and whose sockets are in the default directories; and the
/// directories that were not trusted.
pub(super) fn running() -> (Vec<Running>, Vec<ControlError>) {
    let (mut running, mut refused) = (Vec::new(), Vec::new());
    for directory in directories() {
        match check(&directory) {
            Ok(()) => {}
            Err(error @ ControlError::Unsafe { .. }) => {
                refused.push(error);
                continue;
            }
            // The directory does not exist, or cannot be read.
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
