//! Writes a report to a file so that a reader sees the old one or the new one, never half of one; but for a file that
//! is a mount of its own, or whose folder takes no other one, which is written in place. `-` is standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::json::Report;
use super::round;

/// A report could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the report to {}: {source}", path.display())]
pub struct WriteError {
    /// The file asked for.
    pub path: PathBuf,
    /// The operating system's answer.
    #[source]
    pub source: io::Error,
}

/// Whether this is standard output: `-`. (A file of that name is `./-`.)
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether what is written there is read as it comes: standard output, a pipe, a device. Tables and
/// other words then do not belong on standard output.
pub fn is_stream(path: &Path) -> bool {
    is_stdout(path) || fs::metadata(path).is_ok_and(|it| !it.is_file())
}

/// Finds out whether several reports could be written: each to its path, and no two of them to standard output, or to
/// one file by whatever links.
///
/// # Errors
/// The first that could not.
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

/// The file that would be replaced, by a name that does not depend on links; `None` of a stream, which takes one report
/// after the other.
fn target(path: &Path) -> Option<PathBuf> {
    if is_stream(path) {
        return None;
    }
    fs::canonicalize(path).ok().or_else(|| {
        // It is not there yet.
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    })
}

/// Finds out whether a report could be written there, and leaves everything as it is.
///
/// # Errors
/// If not, as far as can be told before there is anything to write.
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
        // Not opened: a pipe would wait for its reader.
        Ok(_) => return Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let neighbour = neighbour(&target)?;
    match create(&neighbour) {
        Ok(_) => fs::remove_file(&neighbour),
        Err(error) => instead(&target, error).map(drop),
    }
}

impl Report {
    /// Writes the report, indented, with a newline at its end. A regular file is replaced by renaming
    /// a finished one over it; what is no regular file (`-`, a pipe) is written to directly.
    ///
    /// # Errors
    /// If the file, or its neighbour while it grows, cannot be written; the error names the path.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        self.try_write(path).map_err(|source| WriteError { path: path.to_owned(), source })
    }

    fn try_write(&self, path: &Path) -> io::Result<()> {
        put(path, round::json(self)?.as_bytes())
    }
}

/// Writes the text of any other report (a page, another JSON form) in the same way.
///
/// # Errors
/// If the file, or its neighbour while it grows, cannot be written; the error names the path.
pub fn write(path: &Path, text: &str) -> Result<(), WriteError> {
    put(path, text.as_bytes()).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    if is_stdout(path) {
        let mut out = io::stdout().lock();
        return match out.write_all(text).and_then(|()| out.flush()) {
            // Whoever reads has had enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        };
    }
    match fs::metadata(path) {
        Ok(old) if old.is_file() => {
            // Through a symbolic link, to what it names: renaming would replace the link itself.
            replace(&fs::canonicalize(path)?, text, Some(old.permissions()))
        }
        Ok(_) => OpenOptions::new().write(true).open(path)?.write_all(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(path, text, None),
        Err(error) => Err(error),
    }
}

/// Writes a neighbour of the file and renames it over the file. Where there can be none the file is written in place.
fn replace(path: &Path, text: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let neighbour = neighbour(path)?;
    let mut file = match create(&neighbour) {
        Ok(file) => file,
        Err(error) => return overwrite(instead(path, error)?, text),
    };
    let grown = (|| {
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        file.write_all(text)?;
        // The name must not become durable before the bytes.
        file.sync_all()
    })();
    if let Err(error) = grown {
        // Nothing half-written stays; if it cannot be removed either, the first error says more.
        let _ = fs::remove_file(&neighbour);
        return Err(error);
    }
    match fs::rename(&neighbour, path) {
        Err(error) if is_mounted(&error) => in_place(path, &neighbour, text),
        Err(error) => {
            let _ = fs::remove_file(&neighbour);
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Whether a file cannot be renamed over for it is a mount of its own, as one that a container was given.
fn is_mounted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

/// Writes over a file that nothing can be renamed over. Its neighbour has all of it already, and stays if this fails:
/// what was there is gone then.
fn in_place(path: &Path, neighbour: &Path, text: &[u8]) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).open(path);
    match opened.and_then(|file| overwrite(file, text)) {
        Ok(()) => {
            let _ = fs::remove_file(neighbour);
            Ok(())
        }
        Err(error) => {
            let why = format!("{error}; all of it is in {}", neighbour.display());
            Err(io::Error::new(error.kind(), why))
        }
    }
}

/// The file itself, unchanged and open for writing, where its neighbour cannot be made as its folder takes no other
/// file: one that a container was given as a mount is often in such a folder.
///
/// # Errors
/// Why the neighbour could not be made, if it is not that, or the file cannot be written either.
fn instead(path: &Path, refused: io::Error) -> io::Result<File> {
    let closed = matches!(
        refused.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    );
    // What is missing is not made in its place: it cannot be.
    let file = closed.then(|| OpenOptions::new().write(true).open(path));
    file.and_then(Result::ok).ok_or(refused)
}

fn overwrite(mut file: File, text: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Where the file grows: hidden, beside it, and this process's own.
fn neighbour(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(hidden))
}

/// Makes the neighbour, always a new file: its name can be guessed, and what is there already was left by a process
/// that was killed, or is a link to a file of ours that somebody else has put there.
fn create(neighbour: &Path) -> io::Result<File> {
    let _ = fs::remove_file(neighbour);
    File::create_new(neighbour)
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
        let link = || std::os::unix::fs::symlink(&victim, neighbour(&path).unwrap()).unwrap();
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
        let (path, neighbour) = (folder.join("run.html"), folder.join(".run.html.tmp"));
        let grow = || fs::write(&neighbour, "<p>").unwrap();
        fs::write(&path, "an old and longer page").unwrap();
        grow();
        in_place(&path, &neighbour, b"<p>").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<p>");
        assert!(!neighbour.exists());
        grow();
        let error = in_place(&folder, &neighbour, b"<p>").unwrap_err().to_string();
        assert!(error.contains(".run.html.tmp"), "{error}");
        assert_eq!(fs::read_to_string(&neighbour).unwrap(), "<p>");
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
            // Without its rights root is refused as everybody else.
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
