//! What tells of a change: the kernel's notices, writes to the files in which other programs set the
//! same things, and writes to the directory of wishes.
//!
//! A write by a program to a file of procfs or sysfs is seen by inotify as one to any other file. What
//! the kernel itself changes in them is not; of that its notices tell. An entry of procfs that went and
//! came again is another file of the same name, so files are opened anew at each look; a watch that is
//! there already is found again by its number.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use napkin_kernel::netlink::{NetlinkError, Notices};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Events that are read at once.
const BUFFER: usize = 8 << 10;

/// What woke who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Woken {
    /// A signal came.
    pub signal: bool,
    /// Something of the kernel's may have changed.
    pub kernel: bool,
    /// Files of wishes may have changed.
    pub wishes: bool,
}

/// What is followed of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follow {
    /// Writes to it.
    Writes,
    /// What is made in it.
    Made,
    /// What is removed in it.
    Removed,
}

/// Everything that is listened to.
#[derive(Debug)]
pub struct Watch {
    notices: Notices,
    /// Of files that others write.
    files: OwnedFd,
    /// Watches by number, each with the file, which has to stay open: else its entry in procfs may be
    /// dropped from memory, and a later writer gets another one that nobody watches.
    followed: BTreeMap<i32, OwnedFd>,
    /// Of the directory of wishes.
    wishes: OwnedFd,
    directory: PathBuf,
    /// The first of the files that could not be followed, and why.
    unfollowed: Option<String>,
    /// The same of the directory of wishes.
    unfollowed_wishes: Option<String>,
    /// Whether that is watched again since a time in which it could not be.
    again: bool,
}

impl Watch {
    /// Begins to listen in this thread's network namespace.
    ///
    /// # Errors
    /// If the kernel cannot be listened to; the same for all that follow.
    pub fn open(directory: &Path) -> Result<Watch, WatchError> {
        let notices = Notices::open()?;
        let new = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let (files, wishes) = (new()?, new()?);
        let directory = directory.to_owned();
        let mut watch = Watch {
            notices,
            files,
            followed: BTreeMap::new(),
            wishes,
            directory,
            unfollowed: None,
            unfollowed_wishes: None,
            again: false,
        };
        watch.directory();
        Ok(watch)
    }

    /// Kinds of notices that this kernel does not give.
    pub fn missing(&self) -> &[String] {
        self.notices.missing()
    }

    /// Whose changes nobody notices until something else leads to a look, a sentence for each.
    pub fn unfollowed(&self) -> impl Iterator<Item = &String> {
        self.unfollowed_wishes.iter().chain(&self.unfollowed)
    }

    /// Whether the directory of wishes could not be watched and is so again, since this was asked last: it has to
    /// be read, as nothing tells of what was written meanwhile.
    pub fn wishes_again(&mut self) -> bool {
        std::mem::take(&mut self.again)
    }

    /// Watches the directory of wishes, or, while there is none, the one in which it is to be made.
    fn directory(&mut self) {
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut failed = None;
        // The parent first: what is made between the two is seen by one of them.
        if !self.directory.is_dir() {
            let parent = self.directory.parent().unwrap_or(Path::new("/"));
            let made = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
            failed = inotify::add_watch(&self.wishes, parent, made).err();
        }
        let own = inotify::add_watch(&self.wishes, &self.directory, changes).err();
        let failed = failed.or(own.filter(|errno| *errno != Errno::NOENT));
        self.again |= self.unfollowed_wishes.is_some() && failed.is_none();
        self.unfollowed_wishes = failed.map(|errno| unfollowed(&self.directory, errno));
    }

    /// Waits until something happens, at most for `limit`. Nothing that has come before is lost.
    pub fn wait(&self, signals: BorrowedFd<'_>, limit: Option<Duration>) -> Result<(), WatchError> {
        let all = [signals, self.files.as_fd(), self.wishes.as_fd()];
        wait(all.into_iter().chain(self.notices.descriptors()), limit)
    }

    /// Takes all that has come.
    pub fn take(&mut self, signals: BorrowedFd<'_>) -> Result<Woken, WatchError> {
        let signal = readable(signals);
        let wishes = drain(&self.wishes, |event| !self.is_begun(event))?;
        if wishes {
            self.directory();
        }
        let files = drain(&self.files, |_| true)?;
        Ok(Woken { signal, kernel: self.notices.take() | files, wishes })
    }

    /// Whether somebody has only begun to write a file: its end is told as well. Of a link there is no
    /// other event than that it was made.
    fn is_begun(&self, event: &inotify::Event<'_>) -> bool {
        let made = event.file_name().filter(|_| event.events() == ReadFlags::CREATE);
        made.is_some_and(|name| {
            let file = self.directory.join(OsStr::from_bytes(name.to_bytes()));
            std::fs::symlink_metadata(file).is_ok_and(|it| it.is_file() && it.nlink() == 1)
        })
    }

    /// Follows these files and directories, and no others. Gives whether one is watched that was not
    /// before: it may have been written to meanwhile. What cannot be is [`unfollowed`](Watch::unfollowed).
    pub fn follow(&mut self, paths: &BTreeMap<PathBuf, Follow>) -> bool {
        if self.unfollowed_wishes.is_some() {
            self.directory();
        }
        self.unfollowed = None;
        let mut followed = BTreeMap::new();
        let mut new = false;
        for (path, follow) in paths {
            let flags = match follow {
                Follow::Writes => WatchFlags::MODIFY,
                Follow::Made => WatchFlags::CREATE,
                Follow::Removed => WatchFlags::DELETE,
            };
            match watched(&self.files, path, flags) {
                Ok((watch, file)) => {
                    // Its old descriptor goes at once, or twice as many would be open here.
                    new |= self.followed.remove(&watch).is_none() && !followed.contains_key(&watch);
                    followed.insert(watch, file);
                }
                // One that has gone is told of by others.
                Err(Errno::NOENT) => {}
                // As when others have all the watches that there are: what is in force stays so.
                Err(errno) => {
                    self.unfollowed.get_or_insert_with(|| unfollowed(path, errno));
                }
            }
        }
        for watch in self.followed.keys() {
            // It may have gone with its file.
            let _ = inotify::remove_watch(&self.files, *watch);
        }
        self.followed = followed;
        new
    }
}

/// Opens a file and watches it.
fn watched(inotify: &OwnedFd, path: &Path, flags: WatchFlags) -> Result<(i32, OwnedFd), Errno> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // By the descriptor, so that it is the file that is kept open.
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((inotify::add_watch(inotify, same, flags)?, file))
}

/// That a file is not watched. Others are not for the same reason, as a rule.
fn unfollowed(path: &Path, errno: Errno) -> String {
    let advice = match errno {
        Errno::NOSPC => " (sysctl fs.inotify.max_user_watches)",
        Errno::MFILE => " (ulimit -n)",
        Errno::NFILE => " (sysctl fs.file-max)",
        _ => "",
    };
    format!(
        "{}, and perhaps others: changes are seen only when something else leads to a look, as it cannot be \
         watched: {}{advice}",
        path.display(),
        io::Error::from(errno)
    )
}

/// Waits until one of these is readable.
pub(crate) fn wait<'a>(
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    limit: Option<Duration>,
) -> Result<(), WatchError> {
    let mut all: Vec<PollFd<'_>> =
        descriptors.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)).collect();
    // What the kernel has no number for is for ever.
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut all, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut one = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut one, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Reads all events, and says whether there was one that counts and is not our own doing.
fn drain(
    inotify: &OwnedFd,
    counts: impl Fn(&inotify::Event<'_>) -> bool,
) -> Result<bool, WatchError> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut came = false;
    loop {
        match reader.next() {
            // A watch that was removed.
            Ok(event) => came |= event.events() != ReadFlags::IGNORED && counts(&event),
            Err(Errno::AGAIN) => return Ok(came),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Why nothing can be listened to.
#[derive(Debug, thiserror::Error)]
#[error("changes cannot be listened for: {0}")]
pub enum WatchError {
    /// The kernel's notices.
    Netlink(#[from] NetlinkError),
    /// inotify.
    Io(#[from] io::Error),
}

impl From<Errno> for WatchError {
    fn from(errno: Errno) -> WatchError {
        WatchError::Io(errno.into())
    }
}
