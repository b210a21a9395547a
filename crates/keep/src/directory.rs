//! The directory of wishes, `/etc/napkin`: validated when read, and written one file at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::parse::BadFile;
use crate::wish::Wish;

/// The directory, unless `$NAPKIN_ETC` names another.
const ETC: &str = "/etc/napkin";

/// The extension of the files.
const TOML: &str = "toml";

/// The maximum size of a file, in bytes.
const LARGEST: u64 = 64 << 10;

/// The maximum number of files.
const MOST: usize = 4_096;

/// A directory of wishes, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory(PathBuf);

/// The contents of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Wishes, in the order of their file names.
    pub wishes: Vec<Wish>,
    /// Invalid files, which do not keep the others from being held.
    pub bad: Vec<BadFile>,
}

/// Why wishes cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The operating system refused an operation.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, as part of the sentence.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// There is no such wish.
    #[error("there is no wish {name} in {}: {}", directory.display(), names(there))]
    NoWish {
        /// The name that was given.
        name: String,
        /// The directory.
        directory: PathBuf,
        /// The names of the existing wishes.
        there: Vec<String>,
    },
    /// The text to be written could not be parsed again.
    #[error("nothing was written, as it could not be read: {0}")]
    Wrong(BadFile),
    /// The name is not valid.
    #[error(
        "{name:?} cannot be a wish's name: letters, digits, ._-@, no dot first, at most 64 bytes"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
}

fn names(existing: &[String]) -> String {
    if existing.is_empty() {
        "it has none".into()
    } else {
        format!("there is {}", existing.join(", "))
    }
}

impl Found {
    /// Adds a wish that is not written yet, in place of what its file contains.
    pub fn with(mut self, wish: Wish) -> Found {
        self.wishes.retain(|it| it.file != wish.file);
        self.bad.retain(|it| it.file != wish.file);
        let place = self.wishes.partition_point(|it| it.file < wish.file);
        self.wishes.insert(place, wish);
        self
    }
}

impl DirectoryError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
        let path = path.to_owned();
        move |source| DirectoryError::Io { what, path, source }
    }
}

impl Directory {
    /// The directory `$NAPKIN_ETC`, else `/etc/napkin`.
    pub fn here() -> Directory {
        let named = std::env::var_os("NAPKIN_ETC").filter(|it| !it.is_empty());
        Directory(named.map_or_else(|| ETC.into(), PathBuf::from))
    }

    /// Another directory in place of `/etc/napkin`.
    pub fn at(path: impl Into<PathBuf>) -> Directory {
        Directory(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the file of a wish with this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{TOML}"))
    }

    /// Reads all files, in the order of their names. A missing directory is empty; of one with more than
    /// 4096 files none is read, and it is bad as a whole.
    ///
    /// # Errors
    /// If the directory exists and cannot be read.
    pub fn read(&self) -> Result<Found, DirectoryError> {
        let mut found = Found::default();
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(DirectoryError::io("read", &self.0)(error)),
        };
        if let Ok(metadata) = fs::metadata(&self.0)
            && let Some(why) = unsafe_by(metadata.uid(), metadata.mode(), "the directory")
        {
            found.bad.push(BadFile::whole(&self.0, format!("nothing in it is held: {why}")));
            return Ok(found);
        }
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|it| it == TOML))
            // Hidden files, such as those of an editor.
            .filter(|path| {
                !path.file_name().is_some_and(|it| it.as_encoded_bytes().starts_with(b"."))
            })
            // One more than is read, to see that there are more.
            .take(MOST + 1)
            .collect();
        if files.len() > MOST {
            let why = format!("nothing in it is held: there are more than {MOST} files");
            found.bad.push(BadFile::whole(&self.0, why));
            return Ok(found);
        }
        files.sort();
        Ok(Directory::read_files(&files))
    }

    /// Reads these files in this order.
    pub fn read_files(files: &[PathBuf]) -> Found {
        let mut found = Found::default();
        for file in files {
            match read(file) {
                Ok(wish) => found.wishes.push(wish),
                Err(bad) => found.bad.push(bad),
            }
        }
        found
    }

    /// Writes a wish to its file atomically, and returns once it is on the disk. Returns whether it replaced a file.
    ///
    /// # Errors
    /// If the name is not valid, if the text could not be parsed again, or if the operating system refuses.
    pub fn write(&self, wish: &Wish) -> Result<bool, DirectoryError> {
        if !Wish::is_name(&wish.name) {
            return Err(DirectoryError::Name { name: wish.name.clone() });
        }
        let file = self.file(&wish.name);
        let text = wish.to_text();
        Wish::parse(&file, &text).map_err(DirectoryError::Wrong)?;
        // Not writable by others, whatever the umask: a directory that others may write to is not read.
        match DirBuilder::new().mode(0o755).create(&self.0) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(DirectoryError::io("make", &self.0)(error));
            }
            _ => {}
        }
        let before = fs::symlink_metadata(&file).is_ok();
        let new = self.0.join(format!(".{}.{}.new", wish.name, std::process::id()));
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o644);
            let mut out = options.custom_flags(libc_nofollow()).open(&new)?;
            // Readable by everyone, whatever the umask.
            out.set_permissions(fs::Permissions::from_mode(0o644))?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &file)?;
            self.sync()
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&new);
            DirectoryError::io("write", &file)(error)
        })?;
        Ok(before)
    }

    /// Removes the file of a wish.
    ///
    /// # Errors
    /// If there is no wish of this name, or the operating system refuses.
    pub fn remove(&self, name: &str) -> Result<(), DirectoryError> {
        let file = self.file(name);
        if !Wish::is_name(name) || fs::symlink_metadata(&file).is_err() {
            let name = name.to_owned();
            let (directory, names) = (self.0.clone(), self.names());
            return Err(DirectoryError::NoWish { name, directory, there: names });
        }
        fs::remove_file(&file)
            .and_then(|()| self.sync())
            .map_err(DirectoryError::io("remove", &file))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect();
        names.sort();
        names
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

fn libc_nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// Reads one file, if only root or the reading user can have written it.
fn read(path: &Path) -> Result<Wish, BadFile> {
    let failed = |error: io::Error| BadFile::whole(path, format!("cannot be read: {error}"));
    let mut options = OpenOptions::new();
    // Non-blocking, as it may be a pipe.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = options.read(true).custom_flags(nonblock).open(path).map_err(failed)?;
    // The metadata of the opened file, not of another that may have replaced it by now.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(BadFile::whole(path, "it is no file"));
    }
    if let Some(why) = unsafe_by(metadata.uid(), metadata.mode(), "the file") {
        return Err(BadFile::whole(path, why));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(BadFile::whole(path, "it is larger than 64 KiB"));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Wish::parse(path, text),
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|it| **it == b'\n').count();
            let why = "it is not UTF-8".to_owned();
            let mistakes = vec![crate::parse::Mistake { line, why }];
            Err(BadFile { file: path.to_owned(), mistakes })
        }
    }
}

/// Returns why others could have written a file or directory.
fn unsafe_by(uid: u32, mode: u32, what: &str) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if uid != 0 && uid != own {
        return Some(format!("{what} is user {uid}'s, not root's: chown root it"));
    }
    let others = mode & 0o022 != 0;
    others.then(|| {
        format!("{what} is writable by others (mode {:04o}): chmod go-w it", mode & 0o7777)
    })
}

#[cfg(test)]
mod tests {
    use napkin_testing::Folder;

    use super::*;
    use crate::device_match::Match;

    fn wish(directory: &Directory, name: &str) -> Wish {
        Wish {
            name: name.into(),
            file: directory.file(name),
            policy: "defer20".parse().expect("a policy"),
            line: 2,
            device: Match { name: Some("va".into()), ..Match::default() },
            queues: None,
            cpus: vec![],
            rt: None,
            unit: None,
            pin: false,
        }
    }

    #[test]
    fn other_files_are_not_counted_and_too_many_wishes_are_refused_as_a_whole() {
        let place = Folder::new("keep-many");
        let directory = Directory::at(place.join("etc"));
        directory.write(&wish(&directory, "z")).expect("written");
        for number in 0..MOST {
            fs::write(directory.path().join(format!("{number}.txt")), "").expect("written");
        }
        assert_eq!(directory.read().expect("one").wishes, [wish(&directory, "z")]);
        for number in 0..MOST {
            fs::write(directory.path().join(format!("{number}.toml")), "").expect("written");
        }
        let found = directory.read().expect("none");
        assert!(found.wishes.is_empty(), "{:?}", found.wishes);
        assert!(found.bad[0].to_string().contains("more than 4096 files"), "{:?}", found.bad);
    }

    #[test]
    fn what_is_written_is_found_in_the_order_of_names_and_removed_by_name() {
        let place = Folder::new("keep-order");
        let directory = Directory::at(place.join("etc"));
        assert_eq!(directory.read().expect("none"), Found::default(), "it is not there");
        for name in ["b", "a"] {
            assert!(!directory.write(&wish(&directory, name)).expect("written"));
        }
        assert!(directory.write(&wish(&directory, "a")).expect("written"), "there was one");
        let found = directory.read().expect("two");
        assert_eq!(found.wishes, [wish(&directory, "a"), wish(&directory, "b")]);
        assert_eq!(found.bad, []);
        let names = fs::read_dir(directory.path()).expect("there").count();
        assert_eq!(names, 2, "nothing is left beside them");
        let message = directory.remove("c").expect_err("none").to_string();
        assert!(message.contains("there is a, b"), "{message}");
        assert!(directory.remove("../etc/a").is_err());
        directory.remove("a").expect("removed");
        assert_eq!(directory.read().expect("one").wishes, [wish(&directory, "b")]);
    }

    #[test]
    fn a_wish_that_is_not_written_yet_stands_where_it_would_be_read() {
        let directory = Directory::at("/etc/napkin");
        let named = |names: &[&str]| -> Vec<Wish> {
            names.iter().map(|name| wish(&directory, name)).collect()
        };
        let wrong = || BadFile::whole(&directory.file("b"), "it is wrong");
        let found = Found { wishes: named(&["a", "c"]), bad: vec![wrong()] };
        let then = found.with(wish(&directory, "b"));
        assert_eq!(then, Found { wishes: named(&["a", "b", "c"]), bad: vec![] });
        let other = Wish { rt: Some(5), ..wish(&directory, "b") };
        let then = then.with(other.clone());
        let [a, c] = ["a", "c"].map(|name| wish(&directory, name));
        assert_eq!(then.wishes, [a, other, c]);
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let place = Folder::new("keep-wrong");
        let directory = Directory::at(place.join("etc"));
        let good = wish(&directory, "a");
        directory.write(&good).expect("written");
        // Every second CPU, from the last: no two of them form a range.
        let far = Wish { cpus: (0..300).map(|at| 1_000 - 2 * at).collect(), ..good.clone() };
        let named = |name: &str| {
            let device = Match { name: Some(name.into()), ..Match::default() };
            Wish { device, ..good.clone() }
        };
        for (wrong, why) in [
            (far, "cpus is longer than"),
            (named("a/b"), "no device has the name"),
            (named(""), "no device has the name"),
        ] {
            let message = directory.write(&wrong).expect_err("wrong").to_string();
            assert!(message.contains(why), "{message}");
        }
        assert_eq!(directory.read().expect("read").wishes, [good]);
    }

    #[test]
    fn a_bad_file_is_named_and_keeps_no_other_from_being_read() {
        let place = Folder::new("keep-bad");
        let directory = Directory::at(place.to_path_buf());
        directory.write(&wish(&directory, "good")).expect("written");
        let text = wish(&directory, "x").to_text();
        let put = |name: &str, bytes: &[u8]| {
            fs::write(place.join(name), bytes).expect("written");
            let mode = fs::Permissions::from_mode(0o644);
            fs::set_permissions(place.join(name), mode).expect("its mode");
        };
        put("others.toml", text.as_bytes());
        let mode = fs::Permissions::from_mode(0o666);
        fs::set_permissions(place.join("others.toml"), mode).expect("its mode");
        put("latin.toml", b"policy = \"base\"\n# \xff\n");
        put("large.toml", &vec![b'#'; 70_000]);
        put("typo.toml", b"\n\npolcy = 1\n");
        put(".hidden.toml", b"x");
        put("note.txt", b"x");
        fs::create_dir(place.join("a-directory.toml")).expect("a directory");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.join("pipe.toml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a pipe");
        let found = directory.read().expect("read");
        assert_eq!(found.wishes, [wish(&directory, "good")]);
        let problems: Vec<String> = found.bad.iter().map(ToString::to_string).collect();
        let problems = problems.join("\n");
        for part in [
            "a-directory.toml: it is no file",
            "large.toml: it is larger",
            "latin.toml:2: it is not UTF-8",
            "others.toml: the file is writable by others (mode 0666)",
            "pipe.toml: it is no file",
            "typo.toml:3: unknown key",
        ] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        let mode = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&place, mode).expect("its mode");
        let found = directory.read().expect("read");
        assert!(found.wishes.is_empty() && found.bad.len() == 1, "{found:?}");
    }
}
