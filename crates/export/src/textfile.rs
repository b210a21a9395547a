//! Metrics as a file that is replaced as a whole, for node_exporter's textfile collector.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use napkin_os::clock;
use napkin_os::signals::{ReceivedSignal, Signals};

use crate::exporter::Exporter;
use crate::format::Format;

/// A file that is written again and again, and goes with this.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    beside: PathBuf,
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
        Ok(TextFile { path: path.to_owned(), beside })
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
    /// If the operating system refuses.
    pub fn replace(&self, text: &str) -> io::Result<()> {
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
    /// If it cannot be written.
    pub fn keep(
        &self,
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

    /// Takes the file away: what nobody writes any more would be collected for ever.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_readable_for_all_and_goes() {
        let name = format!("napkin-export-{}.prom", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = TextFile::new(&path).unwrap();
        file.replace("one\n").unwrap();
        file.replace("two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!file.beside.exists());
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("napkin-export-link-{}.prom", std::process::id()));
        let victim = directory.join(format!("napkin-export-victim-{}", std::process::id()));
        fs::write(&victim, "another's").unwrap();
        let file = TextFile::new(&path).unwrap();
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
        let file = TextFile::new(Path::new("/nonexistent/napkin.prom")).unwrap();
        let error = file.replace("").unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nonexistent/napkin.prom: "), "{error}");
    }
}
