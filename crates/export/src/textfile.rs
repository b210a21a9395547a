//! Metrics as a file that is replaced as a whole, for node_exporter's textfile collector.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use napkin_os::clock;
use napkin_os::signals::{ReceivedSignal, Signals};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::exporter::Exporter;
use crate::format::Format;

/// How often a lock file that was removed under us is opened again.
const TRIES: u32 = 16;

/// A file that is written again and again, by nobody else meanwhile, and goes with this.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    beside: PathBuf,
    /// The file whose lock says that the other one has its writer.
    lock: PathBuf,
    /// That lock, once it is held: by the open file, and so no longer than this process lives.
    held: Option<File>,
}

impl TextFile {
    /// One at a path, which the collector takes if it ends in `.prom`. Nothing is written yet.
    ///
    /// # Errors
    /// If the path has no file name, or no such ending.
    pub fn new(path: &Path) -> io::Result<TextFile> {
        let refused = |why: &str| {
            let path = path.display();
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("'{path}' {why}")))
        };
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return refused("names no file");
        };
        if !name.ends_with(".prom") {
            return refused("does not end in .prom, and the collector takes no other");
        }
        // Hidden, and without that ending: it is not taken before it is whole.
        let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let lock = path.with_file_name(format!(".{name}.lock"));
        Ok(TextFile { path: path.to_owned(), beside, lock, held: None })
    }

    /// Makes sure that nobody else writes it as long as this lives: the first of two that ended would take the
    /// other's away. [`replace`](TextFile::replace) does so as well. On a file system without locks it is not made
    /// sure.
    ///
    /// # Errors
    /// If somebody else does, or the lock beside it cannot be made.
    pub fn hold(&mut self) -> io::Result<()> {
        let busy = || {
            let path = self.path.display();
            let why =
                format!("{path} is written by another process: end that, or name another file");
            io::Error::new(ErrorKind::ResourceBusy, why)
        };
        let failed = |errno: Errno| {
            let (path, lock) = (self.path.display(), self.lock.display());
            let error = io::Error::from(errno);
            // One that another user has left, which nobody but that user may open.
            let left = errno == Errno::ACCESS && fs::symlink_metadata(&self.lock).is_ok();
            let fix =
                if left { "; if nothing writes there any more, remove that lock file" } else { "" };
            let why = format!("cannot write {path}: its lock {lock}: {error}{fix}");
            io::Error::new(error.kind(), why)
        };
        if self.held.is_some() {
            return Ok(());
        }
        // Nobody else's, so that no reader can keep a writer out; and no link that the directory's owner has put there.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let file = open(self.lock.as_path(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Where there are no locks it goes without, as if it had one.
                Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS) => {}
                Err(Errno::WOULDBLOCK) => return Err(busy()),
                Err(errno) => return Err(failed(errno)),
            }
            // Its last holder may have removed it between our opening and our locking it.
            let file = File::from(file);
            let (ours, there) = (file.metadata()?, fs::symlink_metadata(&self.lock));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                self.held = Some(file);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its directory is another user's.
    pub fn is_elsewhere(&self) -> bool {
        let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        let owner = fs::metadata(directory.unwrap_or(Path::new("."))).map(|it| it.uid());
        owner.is_ok_and(|owner| owner != rustix::process::geteuid().as_raw())
    }

    /// Replaces what is there, so that a reader sees either the old text or the new one.
    ///
    /// # Errors
    /// If somebody else writes it, or the operating system refuses.
    pub fn replace(&mut self, text: &str) -> io::Result<()> {
        self.hold()?;
        // Left by one that was killed, or a link that the directory's owner has put there.
        let _ = fs::remove_file(&self.beside);
        let new = OpenOptions::new().write(true).create_new(true).open(&self.beside);
        let written = new.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // The collector is another user.
            file.set_permissions(Permissions::from_mode(0o644))?;
            fs::rename(&self.beside, &self.path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&self.beside);
        }
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display()))
        })
    }

    /// Writes what `exporter` has every so often, until one of `signals` comes. While what is watched
    /// has gone there is no file.
    ///
    /// # Errors
    /// If somebody else writes it, or it cannot be written.
    pub fn keep(
        &mut self,
        exporter: &mut Exporter,
        every: Duration,
        signals: &Signals,
    ) -> io::Result<ReceivedSignal> {
        loop {
            match exporter.text(Format::Prometheus, clock::now()) {
                Ok(text) => self.replace(&text)?,
                Err(_) => self.remove(),
            }
            if let Some(came) = signals.wait(every) {
                return Ok(came);
            }
        }
    }

    /// Takes the file away, if it is this one's to write: what nobody writes any more would be collected for ever.
    pub fn remove(&self) {
        if self.held.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        self.remove();
        if self.held.is_some() {
            // Locked still, so that nobody else's is removed.
            let _ = fs::remove_file(&self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_readable_for_all_and_goes() {
        let name = format!("napkin-export-{}.prom", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = TextFile::new(&path).unwrap();
        file.replace("one\n").unwrap();
        file.replace("two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!file.beside.exists());
        let lock = file.lock.clone();
        drop(file);
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn a_second_writer_is_refused_and_takes_nothing_away() {
        let name = format!("napkin-export-two-{}.prom", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut first = TextFile::new(&path).unwrap();
        first.replace("first\n").unwrap();
        let mut second = TextFile::new(&path).unwrap();
        let error = second.replace("second\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("is written by another process"), "{error}");
        drop(second);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\n");
        // As a process that is killed leaves both: its lock ends with it.
        let lock = first.lock.clone();
        drop(first);
        fs::write(&path, "left\n").unwrap();
        fs::write(&lock, "").unwrap();
        let mut next = TextFile::new(&path).unwrap();
        next.replace("next\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
        drop(next);
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("napkin-export-link-{}.prom", std::process::id()));
        let victim = directory.join(format!("napkin-export-victim-{}", std::process::id()));
        fs::write(&victim, "another's").unwrap();
        let mut file = TextFile::new(&path).unwrap();
        std::os::unix::fs::symlink(&victim, &file.beside).unwrap();
        file.replace("one\n").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "another's");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        fs::remove_file(&victim).unwrap();
    }

    #[test]
    fn a_name_that_is_not_collected_is_refused() {
        let error = TextFile::new(Path::new("/tmp/napkin.txt")).unwrap_err().to_string();
        assert!(error.contains("'/tmp/napkin.txt'") && error.contains(".prom"), "{error}");
        assert!(TextFile::new(Path::new("/")).is_err());
    }

    #[test]
    fn a_directory_that_is_not_there_is_said() {
        let mut file = TextFile::new(Path::new("/nonexistent/napkin.prom")).unwrap();
        let error = file.replace("").unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nonexistent/napkin.prom: "), "{error}");
    }
}
