//! What tells of a change: the kernel's notices, writes to the files in which other programs set the
//! same things, and writes to the directory of wishes.
//!
//! A write by a program to a file of procfs or sysfs is seen by inotify as one to any other file. What
//! the kernel itself changes in them is not; of that its notices tell. An entry of procfs that went and
//! came again is another file of the same name, so files are opened anew at each look; a watch that is
//! there already is found again by its number. Where no descriptor is left to open one anew, the watch
//! that there is stays, unless it is seen to be another file's by now: what else is to be opened counts for more.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use napkin_kernel::netlink::{NetlinkError, Notices, Taken};
use napkin_kernel::open_files::{has_room, is_shortage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Events that are read at once.
const BUFFER: usize = 8 << 10;

/// So many descriptors are left to devices, programs and their journals that come later.
const SPARE: u64 = 64;

/// How long the kernel may take from when a device is not listed any more until it says so.
const NOTICE: Duration = Duration::from_secs(1);

/// What woke who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Woken {
    /// A signal came.
    pub signal: bool,
    /// Something of the kernel's may have changed.
    pub kernel: bool,
    /// The kernel has told of that itself: it was not only somebody's write to a file.
    pub notice: bool,
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

/// What notices have said of a device of this number since it was last known to be here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    No,
    Deleted,
    Moved,
    /// Some were lost.
    Unknown,
}

/// A file that is watched. It has to stay open: else its entry in procfs may be dropped from memory, and a
/// later writer gets another one that nobody watches.
#[derive(Debug)]
struct Followed {
    file: OwnedFd,
    path: PathBuf,
}

impl Followed {
    /// Whether its path does not lead to another file by now. Of one that has gone others tell.
    fn is_current(&self) -> bool {
        match (rustix::fs::stat(self.path.as_path()), rustix::fs::fstat(&self.file)) {
            (Ok(there), Ok(own)) => {
                // A number is used again; when it was made, or changed last, then tells two apart.
                (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
                    && (there.st_ctime, there.st_ctime_nsec) == (own.st_ctime, own.st_ctime_nsec)
            }
            (Err(Errno::NOENT), _) => true,
            _ => false,
        }
    }
}

/// Everything that is listened to.
#[derive(Debug)]
pub struct Watch {
    notices: Notices,
    /// Whether one came that nobody has taken yet.
    heard: bool,
    /// Of the devices that are [expected](Watch::expect) to leave some time.
    left: BTreeMap<u32, Left>,
    /// Of files that others write.
    files: OwnedFd,
    /// Watches by number.
    followed: BTreeMap<i32, Followed>,
    spare: u64,
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
            heard: false,
            left: BTreeMap::new(),
            files,
            followed: BTreeMap::new(),
            spare: SPARE,
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
        if self.heard {
            return Ok(());
        }
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
        self.hear();
        let notice = std::mem::take(&mut self.heard);
        Ok(Woken { signal, kernel: notice | files, notice, wishes })
    }

    /// Takes the notices that have come, and says whether none was lost.
    fn hear(&mut self) -> bool {
        let Taken { came, left, lost } = self.notices.take();
        self.heard |= came;
        // The first tells of who was there; a later one may be of another device with its number.
        for (ifindex, deleted) in left.into_iter().filter(|_| !lost) {
            if let Some(it) = self.left.get_mut(&ifindex).filter(|it| **it == Left::No) {
                *it = if deleted { Left::Deleted } else { Left::Moved };
            }
        }
        if lost {
            let silent = self.left.values_mut().filter(|it| **it == Left::No);
            silent.for_each(|it| *it = Left::Unknown);
        }
        !lost
    }

    /// Begins to mind how a device of this number leaves this network namespace, unless that is done. Who
    /// sees after this that a device is here knows that the next notice of its leaving is its own.
    pub fn expect(&mut self, ifindex: u32) {
        if self.left.get(&ifindex) != Some(&Left::No) {
            let known = self.hear();
            self.left.insert(ifindex, if known { Left::No } else { Left::Unknown });
        }
    }

    /// Minds these devices, as far as they are [expected](Watch::expect) to leave, and no others.
    pub fn expect_only(&mut self, devices: &BTreeSet<u32>) {
        self.left.retain(|ifindex, _| devices.contains(ifindex));
    }

    /// Whether a device that is [expected](Watch::expect) to may have left since, as far as was heard.
    pub fn may_have_left(&self, ifindex: u32) -> bool {
        self.left.get(&ifindex).is_some_and(|it| *it != Left::No)
    }

    /// Of a device that was [expected](Watch::expect) to leave and has: whether a notice says that it was
    /// deleted. Of one that is in another network namespace none does, nor of one whose notice was lost. It is
    /// waited for, for a second at most: the kernel says that a device has gone after it has taken it from
    /// its list. The device is expected no more.
    pub fn was_deleted(&mut self, ifindex: u32) -> bool {
        let begun = Instant::now();
        while self.left.get(&ifindex) == Some(&Left::No) {
            self.hear();
            let rest = NOTICE.saturating_sub(begun.elapsed());
            let silent = self.left.get(&ifindex) == Some(&Left::No);
            if silent && (rest.is_zero() || wait(self.notices.descriptors(), Some(rest)).is_err()) {
                break;
            }
        }
        self.left.remove(&ifindex) == Some(Left::Deleted)
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

    /// Leaves so many descriptors to others from now on, however many there are.
    pub fn spare(&mut self, descriptors: u64) {
        self.spare = descriptors;
    }

    /// Follows these files and directories, and no others. Gives whether one is watched that was not
    /// before: it may have been written to meanwhile. What cannot be is [`unfollowed`](Watch::unfollowed).
    pub fn follow(&mut self, paths: &BTreeMap<PathBuf, Follow>) -> bool {
        if self.unfollowed_wishes.is_some() {
            self.directory();
        }
        self.unfollowed = None;
        let mut before = std::mem::take(&mut self.followed);
        // What is not followed any more gives its descriptors to what is to be.
        before.retain(|watch, it| {
            let stays = paths.contains_key(&it.path);
            if !stays {
                // It may have gone with its file.
                let _ = inotify::remove_watch(&self.files, *watch);
            }
            stays
        });
        let known: BTreeMap<PathBuf, i32> =
            before.iter().map(|(watch, it)| (it.path.clone(), *watch)).collect();
        let mut followed = BTreeMap::new();
        let mut new = false;
        // What was short for one is so for those behind it.
        let mut short: Option<Errno> = None;
        for (path, follow) in paths {
            let flags = match follow {
                Follow::Writes => WatchFlags::MODIFY,
                Follow::Made => WatchFlags::CREATE,
                Follow::Removed => WatchFlags::DELETE,
            };
            match short.map_or_else(|| watched(&self.files, path, flags, self.spare), Err) {
                Ok((watch, file)) => {
                    // Its old descriptor goes at once, or twice as many would be open here.
                    new |= before.remove(&watch).is_none() && !followed.contains_key(&watch);
                    followed.insert(watch, Followed { file, path: path.clone() });
                }
                // One that has gone is told of by others.
                Err(Errno::NOENT) => {}
                // As when others have all the watches that there are: what is in force stays so.
                Err(errno) => {
                    short = short.or(Some(errno).filter(|errno| is_shortage(*errno)));
                    let stays = |watch: &&i32| {
                        short.is_some() && before.get(*watch).is_some_and(Followed::is_current)
                    };
                    let known = known.get(path).filter(stays);
                    match known.and_then(|watch| before.remove_entry(watch)) {
                        Some((watch, it)) => {
                            followed.insert(watch, it);
                        }
                        None => {
                            self.unfollowed.get_or_insert_with(|| unfollowed(path, errno));
                        }
                    }
                }
            }
        }
        for watch in before.keys() {
            // It may have gone with its file.
            let _ = inotify::remove_watch(&self.files, *watch);
        }
        self.followed = followed;
        new
    }
}

/// Opens a file and watches it, if that leaves so many descriptors for what else is to be opened.
fn watched(
    inotify: &OwnedFd,
    path: &Path,
    flags: WatchFlags,
    spare: u64,
) -> Result<(i32, OwnedFd), Errno> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    has_room(u64::try_from(file.as_raw_fd()).unwrap_or(0).saturating_add(spare))?;
    // By the descriptor, so that it is the file that is kept open.
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((inotify::add_watch(inotify, same, flags)?, file))
}

/// That a file is not watched. Others are not for the same reason, as a rule.
fn unfollowed(path: &Path, errno: Errno) -> String {
    let advice = match errno {
        Errno::NOSPC => " (sysctl fs.inotify.max_user_watches)",
        Errno::MFILE => " (ulimit -n, LimitNOFILE= of the service)",
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

/// Whether this is readable now.
pub(crate) fn readable(descriptor: BorrowedFd<'_>) -> bool {
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
