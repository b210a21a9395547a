//! A temporary directory for one test.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory for one test, removed with its contents when this is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates an empty directory in the temporary directory; `name` identifies the test if it is left over.
    pub fn new(name: &str) -> Folder {
        let folder = Folder::below(&std::env::temp_dir(), name);
        fs::create_dir(&folder).expect("a directory");
        folder
    }

    /// Reserves the name of a directory that does not exist yet, in `/dev/shm` if there is one.
    pub fn absent(name: &str) -> Folder {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            Folder::below(memory, name)
        } else {
            Folder::below(&std::env::temp_dir(), name)
        }
    }

    fn below(base: &Path, name: &str) -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("napkin-{name}-{}-{number}", std::process::id()));
        // Left by a killed process that had the same id.
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_one_name_are_two_and_nothing_is_left_of_them() {
        let (one, other) = (Folder::new("folder"), Folder::new("folder"));
        fs::write(one.join("file"), "text").expect("written");
        assert_eq!(fs::read_dir(&other).expect("there").count(), 0);
        let path = one.to_path_buf();
        drop(one);
        assert!(!path.exists() && other.is_dir());
        assert!(!Folder::absent("folder").exists());
    }
}
