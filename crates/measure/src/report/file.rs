//! Writes reports to files atomically, so that a reader sees the old one or the new one. The exceptions are files
//! that are mount points, or whose directory cannot be written to: these are written in place. `-` is standard
//! output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::json::Report;
use super::round;

/// An error of writing a report.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the report to {}: {source}", path.display())]
pub struct WriteError {
    /// The file as given.
    pub path: PathBuf,
    /// The operating system's error.
    #[source]
    pub source: io::Error,
}

/// Whether the path is standard output: `-`. (A file of that name is `./-`.)
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether output is read while it is written: standard output, a pipe, a device. Tables and other text must then
/// not go to standard output.
pub fn is_stream(path: &Path) -> bool {
    is_stdout(path) || fs::metadata(path).is_ok_and(|it| !it.is_file())
}

/// Checks that several reports can be written: each to its path, at most one to standard output, and no two to the
/// same file, also through links.
///
/// # Errors
/// That of the first report that cannot be written.
pub fn check_all<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), WriteError> {
    let (mut streams, mut targets) = (0, Vec::new());
    let another = || io::Error::other("another one goes there; name a file for one of them");
    for path in paths {
        check(path)?;
        streams += usize::from(is_stdout(path));
        if streams > 1 {
            return Err(WriteError { path: "standard output".into(), source: another() });
        }
        let Some(target) = target(path) else { continue };
        if targets.contains(&target) {
            return Err(WriteError { path: path.to_owned(), source: another() });
        }
        targets.push(target);
    }
    Ok(())
}

/// The file to be replaced, with links resolved; `None` for a stream, which accepts several reports in sequence.
fn target(path: &Path) -> Option<PathBuf> {
    if is_stream(path) {
        return None;
    }
    fs::canonicalize(path).ok().or_else(|| {
        // The file does not exist yet.
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    })
}

/// Checks that a report can be written, without changing anything.
///
/// # Errors
/// If it cannot, as far as that is known before there is anything to write.
pub fn check(path: &Path) -> Result<(), WriteError> {
    try_check(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn try_check(path: &Path) -> io::Result<()> {
    if is_stdout(path) {
        return Ok(());
    }
    let target = match fs::metadata(path) {
        Ok(old) if old.is_file() => fs::canonicalize(path)?,
        Ok(old) if old.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // Not opened, because opening a pipe waits for a reader.
        Ok(_) => return Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let temporary = temporary_path(&target)?;
    match create(&temporary) {
        Ok(_) => fs::remove_file(&temporary),
        Err(error) => open_in_place(&target, error).map(drop),
    }
}

impl Report {
    /// Writes the report, indented and with a final newline. A regular file is replaced by renaming a complete
    /// temporary file over it; anything else (`-`, a pipe) is written to directly.
    ///
    /// # Errors
    /// If the file or its temporary file cannot be written; the error names the path.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        self.try_write(path).map_err(|source| WriteError { path: path.to_owned(), source })
    }

    fn try_write(&self, path: &Path) -> io::Result<()> {
        write_bytes(path, round::json(self)?.as_bytes())
    }
}

/// Writes any other report (a page, another JSON format) in the same way.
///
/// # Errors
/// If the file or its temporary file cannot be written; the error names the path.
pub fn write(path: &Path, text: &str) -> Result<(), WriteError> {
    write_bytes(path, text.as_bytes())
        .map_err(|source| WriteError { path: path.to_owned(), source })
}

fn write_bytes(path: &Path, text: &[u8]) -> io::Result<()> {
    if is_stdout(path) {
        let mut out = io::stdout().lock();
        return match out.write_all(text).and_then(|()| out.flush()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        };
    }
    match fs::metadata(path) {
        Ok(old) if old.is_file() => {
            // Follow a symbolic link, because renaming would replace the link itself.
            replace(&fs::canonicalize(path)?, text, Some(old.permissions()))
        }
        Ok(_) => OpenOptions::new().write(true).open(path)?.write_all(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(path, text, None),
        Err(error) => Err(error),
    }
}

/// Writes a temporary file next to the file and renames it over the file, or writes in place if neither is
/// possible.
fn replace(path: &Path, text: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let temporary = temporary_path(path)?;
    let mut file = match create(&temporary) {
        Ok(file) => file,
        Err(error) => return overwrite(open_in_place(path, error)?, text),
    };
    let grown = (|| {
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        file.write_all(text)?;
        // The data must be durable before the rename.
        file.sync_all()
    })();
    if let Err(error) = grown {
        // Leave no incomplete file; if it cannot be removed, the first error is more informative.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    match fs::rename(&temporary, path) {
        Err(error) if is_mounted(&error) => in_place(path, &temporary, text),
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Whether renaming fails because the file is a mount point, for example a bind mount in a container.
fn is_mounted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

/// Overwrites a file that cannot be replaced by renaming. The old content is lost on failure, so the complete
/// temporary file is kept then.
fn in_place(path: &Path, temporary: &Path, text: &[u8]) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).open(path);
    match opened.and_then(|file| overwrite(file, text)) {
        Ok(()) => {
            let _ = fs::remove_file(temporary);
            Ok(())
        }
        Err(error) => {
            let why = format!("{error}; all of it is in {}", temporary.display());
            Err(io::Error::new(error.kind(), why))
        }
    }
}

/// Opens the file itself, unchanged, for writing if the temporary file was refused because the directory is not
/// writable: a file that is bind-mounted into a container is often in such a directory.
///
/// # Errors
/// The original error, if it was another one, or if the file cannot be written either.
fn open_in_place(path: &Path, refused: io::Error) -> io::Result<File> {
    let closed = matches!(
        refused.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    );
    // Never creates the file, which is not possible in such a directory.
    let file = closed.then(|| OpenOptions::new().write(true).open(path));
    file.and_then(Result::ok).ok_or(refused)
}

fn overwrite(mut file: File, text: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Path of the temporary file: hidden, in the same directory, and specific to this process.
fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(hidden))
}

/// Creates the temporary file, always anew: its name can be guessed, and an existing file is left over from a
/// killed process, or is a link that another user has planted.
fn create(temporary: &Path) -> io::Result<File> {
    let _ = fs::remove_file(temporary);
    File::create_new(temporary)
}

#[cfg(test)]
mod tests {
    use napkin_testing::Folder;

    use super::*;
    use crate::Host;

    fn report(workload: &str) -> Report {
        Report {
            workload: workload.into(),
            world: "engine".into(),
            host: Host::default(),
            conclusion: None,
            rows: Vec::new(),
            notes: Vec::new(),
            extra: serde_json::Map::new(),
        }
    }

    #[test]
    fn the_second_report_replaces_the_first_and_nothing_else_is_left() {
        let folder = Folder::new("report-replace");
        let path = folder.join("run.json");
        report("echo").write(&path).unwrap();
        report("sink").write(&path).unwrap();
        let read: Report = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, report("sink"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let folder = Folder::new("report-link");
        let (file, link) = (folder.join("file"), folder.join("link"));
        report("echo").write(&file).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        report("sink").write(&link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&file).unwrap().contains("sink"));
    }

    #[test]
    fn a_link_in_the_neighbour_s_place_is_not_followed() {
        let folder = Folder::new("report-neighbour");
        let (path, victim) = (folder.join("run.json"), folder.join("victim"));
        fs::write(&victim, "another's").unwrap();
        let link = || std::os::unix::fs::symlink(&victim, temporary_path(&path).unwrap()).unwrap();
        link();
        check(&path).unwrap();
        link();
        write(&path, "<p>").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "another's");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        report("echo").write(Path::new("/dev/null")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_dash_is_standard_output_for_one_report() {
        let [dash, null] = ["-", "/dev/null"].map(Path::new);
        assert!(is_stream(dash) && is_stream(null) && !is_stdout(null));
        assert!(!is_stdout(Path::new("./-")) && !is_stream(Path::new("./-")));
        assert!(check_all([dash, null]).is_ok());
        let error = check_all([dash, dash]).unwrap_err().to_string();
        assert!(error.contains("standard output: another one goes there"), "{error}");
    }

    #[test]
    fn two_reports_do_not_go_into_one_file_by_whatever_names() {
        let folder = Folder::new("report-same");
        let (new, other) = (folder.join("run"), folder.join("other"));
        let around = folder.join("../").join(folder.file_name().unwrap()).join("run");
        let null = Path::new("/dev/null");
        assert!(check_all([&*new, &*other, null, null]).is_ok());
        let refused = |one: &Path, two: &Path| {
            let error = check_all([one, two]).unwrap_err().to_string();
            assert!(error.contains("another one goes there"), "{error}");
        };
        refused(&new, &new);
        refused(&new, &around);
        fs::write(&new, "old").unwrap();
        std::os::unix::fs::symlink(&new, &other).unwrap();
        refused(&new, &other);
        refused(&around, &other);
    }

    #[test]
    fn a_check_finds_what_a_write_would_and_changes_nothing() {
        let folder = Folder::new("report-check");
        let path = folder.join("run.json");
        check(&path).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
        fs::write(&path, "old").unwrap();
        check(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        check(Path::new("/dev/null")).unwrap();
        for wrong in [folder.to_path_buf(), folder.join("no/such/run.json"), PathBuf::from("/")] {
            assert!(check(&wrong).is_err(), "{}", wrong.display());
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn the_text_of_a_page_replaces_the_old_one_whole() {
        let folder = Folder::new("report-page");
        let path = folder.join("run.html");
        fs::write(&path, "an old and longer page").unwrap();
        write(&path, "<p>").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<p>");
        assert!(write(&folder, "<p>").is_err(), "a folder is no file");
    }

    #[test]
    fn what_nothing_can_be_renamed_over_is_written_in_place_and_nothing_is_lost_if_it_cannot_be() {
        use rustix::io::Errno;
        for (errno, mounted) in [(Errno::BUSY, true), (Errno::XDEV, true), (Errno::IO, false)] {
            assert_eq!(is_mounted(&io::Error::from(errno)), mounted, "{errno:?}");
        }
        let folder = Folder::new("report-in-place");
        let (path, temporary) = (folder.join("run.html"), folder.join(".run.html.tmp"));
        let grow = || fs::write(&temporary, "<p>").unwrap();
        fs::write(&path, "an old and longer page").unwrap();
        grow();
        in_place(&path, &temporary, b"<p>").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<p>");
        assert!(!temporary.exists());
        grow();
        let error = in_place(&folder, &temporary, b"<p>").unwrap_err().to_string();
        assert!(error.contains(".run.html.tmp"), "{error}");
        assert_eq!(fs::read_to_string(&temporary).unwrap(), "<p>");
    }

    #[test]
    fn a_file_whose_folder_takes_no_other_is_written_in_place() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("report-closed");
        let path = folder.join("run.html");
        let old = "an old and longer page";
        fs::write(&path, old).unwrap();
        let allow = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        allow(0o555);
        let (file, missing) = (path.clone(), folder.join("other.html"));
        let written = std::thread::spawn(move || {
            // Without its capabilities, root is refused like any other user.
            napkin_os::rights::keep_only(&[]).unwrap();
            assert!(check(&missing).is_err() && write(&missing, "<p>").is_err());
            check(&file).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), old);
            write(&file, "<p>").unwrap();
        });
        let written = written.join();
        allow(0o755);
        written.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<p>");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn the_error_names_the_path() {
        let folder = Folder::new("report-error");
        let missing = folder.join("no/such/folder/run.json");
        let error = report("echo").write(&missing).unwrap_err().to_string();
        assert!(error.contains("no/such/folder/run.json"), "{error}");
        assert!(report("echo").write(&folder).is_err(), "a folder is no file");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }
}
