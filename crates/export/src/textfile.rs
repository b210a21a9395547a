//! Writes metrics to a file, atomically, for node_exporter's textfile collector.

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

/// How often to retry if another process removes the lock file in between.
const TRIES: u32 = 16;

/// A file that is written repeatedly under a lock, and removed when this is dropped.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    temporary: PathBuf,
    /// The path of the lock file.
    lock: PathBuf,
    /// The locked file, once the lock is held: the lock ends with it, and so with this process.
    held: Option<File>,
}

impl TextFile {
    /// Creates the state for a path, which has to end in `.prom` for the collector. Writes nothing yet.
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
        // Hidden and without that extension, so that the collector does not read an incomplete file.
        let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let lock = path.with_file_name(format!(".{name}.lock"));
        Ok(TextFile { path: path.to_owned(), temporary, lock, held: None })
    }

    /// Takes the lock, so that no other process writes the file meanwhile: otherwise the first of two writers
    /// to end would remove the other's file. [`replace`](TextFile::replace) takes it as well. A file system
    /// without locks gives no such guarantee.
    ///
    /// # Errors
    /// If another process holds the lock, or the lock file cannot be created.
    pub fn lock(&mut self) -> io::Result<()> {
        let busy = || {
            let path = self.path.display();
            let why =
                format!("{path} is written by another process: end that, or name another file");
            io::Error::new(ErrorKind::ResourceBusy, why)
        };
        let failed = |errno: Errno| {
            let (path, lock) = (self.path.display(), self.lock.display());
            let error = io::Error::from(errno);
            // Left by another user, who alone may open it.
            let left = errno == Errno::ACCESS && fs::symlink_metadata(&self.lock).is_ok();
            let fix =
                if left { "; if nothing writes there any more, remove that lock file" } else { "" };
            let why = format!("cannot write {path}: its lock {lock}: {error}{fix}");
            io::Error::new(error.kind(), why)
        };
        if self.held.is_some() {
            return Ok(());
        }
        // Accessible to its owner only, so that no reader can block a writer by locking it; and no symbolic
        // link that the directory's owner has placed there.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let file = open(self.lock.as_path(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // A file system without locks: go on without one.
                Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS) => {}
                Err(Errno::WOULDBLOCK) => return Err(busy()),
                Err(errno) => return Err(failed(errno)),
            }
            // Its previous holder may have removed the file between our open and our lock.
            let file = File::from(file);
            let (own, on_disk) = (file.metadata()?, fs::symlink_metadata(&self.lock));
            if on_disk.is_ok_and(|on_disk| (on_disk.dev(), on_disk.ino()) == (own.dev(), own.ino()))
            {
                self.held = Some(file);
                return Ok(());
            }
        }
        Err(busy())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its directory belongs to another user.
    pub fn is_elsewhere(&self) -> bool {
        let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        let owner = fs::metadata(directory.unwrap_or(Path::new("."))).map(|it| it.uid());
        owner.is_ok_and(|owner| owner != rustix::process::geteuid().as_raw())
    }

    /// Replaces the file atomically: a reader sees either the old text or the new one.
    ///
    /// # Errors
    /// If another process writes it, or the operating system refuses.
    pub fn replace(&mut self, text: &str) -> io::Result<()> {
        self.lock()?;
        // Left by a killed process, or a link that the directory's owner has placed there.
        let _ = fs::remove_file(&self.temporary);
        let new = OpenOptions::new().write(true).create_new(true).open(&self.temporary);
        let written = new.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // The collector runs as another user.
            file.set_permissions(Permissions::from_mode(0o644))?;
            fs::rename(&self.temporary, &self.path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&self.temporary);
        }
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display()))
        })
    }

    /// Writes the exporter's metrics at an interval, until one of `signals` arrives. While the source is
    /// gone, there is no file.
    ///
    /// # Errors
    /// If another process writes it, or it cannot be written.
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
            if let Some(received) = signals.wait(every) {
                return Ok(received);
            }
        }
    }

    /// Removes the file if this process holds its lock: otherwise its last values would be collected for ever.
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
            // The lock is still held, so the file is not another process's.
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
        assert!(!file.temporary.exists());
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
        // A killed process leaves both files, but its lock ends with it.
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
        std::os::unix::fs::symlink(&victim, &file.temporary).unwrap();
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
