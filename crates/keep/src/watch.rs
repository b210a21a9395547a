//! Watches for changes: the kernel's notices, writes to the files in which other programs change the same
//! settings, and writes to the directory of wishes.
//!
//! inotify reports a program's write to a file of procfs or sysfs like one to any other file. It does not report what
//! the kernel itself changes there; its netlink notices do. A procfs entry that was removed and recreated is another
//! file of the same name, so files are opened anew at each look; inotify returns the same number for a watch that
//! exists already. If no descriptor is left to open a file, its old watch stays, unless the path is seen to lead to
//! another file by now: descriptors are needed more for devices, programs and journals.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use napkin_kernel::netlink::{NetlinkError, NoticeBatch, Notices};
use napkin_kernel::open_files::{has_room, is_shortage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The size of the event buffer in bytes.
const BUFFER: usize = 8 << 10;

/// The number of descriptors left free for devices, programs and their journals.
const SPARE: u64 = 64;

/// How long the kernel may take to notify after it has removed a device from its list.
const NOTICE: Duration = Duration::from_secs(1);

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Woken {
    /// A signal came.
    pub signal: bool,
    /// Settings in the kernel may have changed.
    pub kernel: bool,
    /// Whether the kernel's own notices said so, and not only a write to a file.
    pub notice: bool,
    /// Files of wishes may have changed.
    pub wishes: bool,
}

/// The events to follow at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follow {
    /// Writes to a file.
    Writes,
    /// Entries created in a directory.
    Made,
    /// Entries removed from a directory.
    Removed,
}

/// What notices have said about a device since it was last known to be here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Departure {
    No,
    Deleted,
    Moved,
    /// Notices were lost.
    Unknown,
}

/// A watched file. It has to stay open: otherwise the kernel may drop its procfs entry from memory, and a
/// later writer gets a new inode that is not watched.
#[derive(Debug)]
struct Followed {
    file: OwnedFd,
    path: PathBuf,
}

impl Followed {
    /// Whether its path still leads to the same file, or to none: other events report a file that has gone.
    fn is_current(&self) -> bool {
        match (rustix::fs::stat(self.path.as_path()), rustix::fs::fstat(&self.file)) {
            (Ok(on_path), Ok(own)) => {
                // Inode numbers are reused; the times of the last change tell two files apart.
                (on_path.st_dev, on_path.st_ino) == (own.st_dev, own.st_ino)
                    && (on_path.st_ctime, on_path.st_ctime_nsec)
                        == (own.st_ctime, own.st_ctime_nsec)
            }
            (Err(Errno::NOENT), _) => true,
            _ => false,
        }
    }
}

/// All sources of change events.
#[derive(Debug)]
pub struct Watch {
    notices: Notices,
    /// Whether a notice has arrived that was not taken yet.
    notice_pending: bool,
    /// Departures of [tracked](Watch::track) devices, by ifindex.
    departures: BTreeMap<u32, Departure>,
    /// The inotify instance for files that others write.
    files: OwnedFd,
    /// Files by watch number.
    followed: BTreeMap<i32, Followed>,
    spare: u64,
    /// The inotify instance for the directory of wishes.
    wishes: OwnedFd,
    directory: PathBuf,
    /// The first file that could not be followed, and why.
    unfollowed: Option<String>,
    /// Why the directory of wishes is not watched.
    unfollowed_wishes: Option<String>,
    /// Whether that directory is watched again after a time in which it could not be.
    rewatched: bool,
}

impl Watch {
    /// Starts to listen in this thread's network namespace.
    ///
    /// # Errors
    /// If the kernel's notices or inotify are unavailable; the same for the other functions.
    pub fn open(directory: &Path) -> Result<Watch, WatchError> {
        let notices = Notices::open()?;
        let new = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let (files, wishes) = (new()?, new()?);
        let directory = directory.to_owned();
        let mut watch = Watch {
            notices,
            notice_pending: false,
            departures: BTreeMap::new(),
            files,
            followed: BTreeMap::new(),
            spare: SPARE,
            wishes,
            directory,
            unfollowed: None,
            unfollowed_wishes: None,
            rewatched: false,
        };
        watch.directory();
        Ok(watch)
    }

    /// Kinds of notices that this kernel does not send.
    pub fn missing(&self) -> &[String] {
        self.notices.missing()
    }

    /// Describes what is not watched, so that changes there are noticed only at another look; a sentence for each.
    pub fn unfollowed(&self) -> impl Iterator<Item = &String> {
        self.unfollowed_wishes.iter().chain(&self.unfollowed)
    }

    /// Whether the directory of wishes is watched again after it could not be, since the last call. It has to
    /// be read then, as no event reports what was written meanwhile.
    pub fn take_rewatched(&mut self) -> bool {
        std::mem::take(&mut self.rewatched)
    }

    /// Watches the directory of wishes or, while it does not exist, its parent.
    fn directory(&mut self) {
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut failed = None;
        // The parent first: whatever is created between the two calls is then seen by one of them.
        if !self.directory.is_dir() {
            let parent = self.directory.parent().unwrap_or(Path::new("/"));
            let made = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
            failed = inotify::add_watch(&self.wishes, parent, made).err();
        }
        let own = inotify::add_watch(&self.wishes, &self.directory, changes).err();
        let failed = failed.or(own.filter(|errno| *errno != Errno::NOENT));
        self.rewatched |= self.unfollowed_wishes.is_some() && failed.is_none();
        self.unfollowed_wishes = failed.map(|errno| unfollowed(&self.directory, errno));
    }

    /// Waits until an event arrives, for at most `limit`. Earlier events are not lost.
    pub fn wait(&self, signals: BorrowedFd<'_>, limit: Option<Duration>) -> Result<(), WatchError> {
        if self.notice_pending {
            return Ok(());
        }
        let all = [signals, self.files.as_fd(), self.wishes.as_fd()];
        wait(all.into_iter().chain(self.notices.descriptors()), limit)
    }

    /// Takes all events that have arrived.
    pub fn take(&mut self, signals: BorrowedFd<'_>) -> Result<Woken, WatchError> {
        let signal = readable(signals);
        let wishes = drain(&self.wishes, |event| !self.is_partial_write(event))?;
        if wishes {
            self.directory();
        }
        let files = drain(&self.files, |_| true)?;
        self.read_notices();
        let notice = std::mem::take(&mut self.notice_pending);
        Ok(Woken { signal, kernel: notice | files, notice, wishes })
    }

    /// Takes the notices that have arrived, and returns whether none was lost.
    fn read_notices(&mut self) -> bool {
        let NoticeBatch { came: any_notice, left, lost } = self.notices.take();
        self.notice_pending |= any_notice;
        // Only the first notice is about the known device; a later one may be about another with its ifindex.
        for (ifindex, deleted) in left.into_iter().filter(|_| !lost) {
            if let Some(it) = self.departures.get_mut(&ifindex).filter(|it| **it == Departure::No) {
                *it = if deleted { Departure::Deleted } else { Departure::Moved };
            }
        }
        if lost {
            let silent = self.departures.values_mut().filter(|it| **it == Departure::No);
            silent.for_each(|it| *it = Departure::Unknown);
        }
        !lost
    }

    /// Starts to track whether the device with this ifindex leaves this network namespace, unless it is tracked. A
    /// caller that then finds the device here knows that the next notice of a departure is about this device.
    pub fn track(&mut self, ifindex: u32) {
        if self.departures.get(&ifindex) != Some(&Departure::No) {
            let known = self.read_notices();
            self.departures.insert(ifindex, if known { Departure::No } else { Departure::Unknown });
        }
    }

    /// Stops tracking all devices but these.
    pub fn track_only(&mut self, devices: &BTreeSet<u32>) {
        self.departures.retain(|ifindex, _| devices.contains(ifindex));
    }

    /// Whether a [tracked](Watch::track) device may have left, according to the notices so far.
    pub fn may_have_left(&self, ifindex: u32) -> bool {
        self.departures.get(&ifindex).is_some_and(|it| *it != Departure::No)
    }

    /// Whether a notice says that a [tracked](Watch::track) device which has left was deleted. There is none for a
    /// device that moved to another network namespace, or if notices were lost. Waits for the notice for at most a
    /// second, as the kernel sends it after it has removed the device from its list. Stops tracking the device.
    pub fn was_deleted(&mut self, ifindex: u32) -> bool {
        let begun = Instant::now();
        while self.departures.get(&ifindex) == Some(&Departure::No) {
            self.read_notices();
            let rest = NOTICE.saturating_sub(begun.elapsed());
            let silent = self.departures.get(&ifindex) == Some(&Departure::No);
            if silent && (rest.is_zero() || wait(self.notices.descriptors(), Some(rest)).is_err()) {
                break;
            }
        }
        self.departures.remove(&ifindex) == Some(Departure::Deleted)
    }

    /// Whether a file was only created and is still being written: closing it is reported as well. For a
    /// link, its creation is the only event.
    fn is_partial_write(&self, event: &inotify::Event<'_>) -> bool {
        let made = event.file_name().filter(|_| event.events() == ReadFlags::CREATE);
        made.is_some_and(|name| {
            let file = self.directory.join(OsStr::from_bytes(name.to_bytes()));
            std::fs::symlink_metadata(file).is_ok_and(|it| it.is_file() && it.nlink() == 1)
        })
    }

    /// Sets the number of descriptors to leave free.
    pub fn spare(&mut self, descriptors: u64) {
        self.spare = descriptors;
    }

    /// Follows exactly these files and directories. Returns whether a new watch was added: its file may have
    /// been written before. What cannot be watched is [`unfollowed`](Watch::unfollowed).
    pub fn follow(&mut self, paths: &BTreeMap<PathBuf, Follow>) -> bool {
        if self.unfollowed_wishes.is_some() {
            self.directory();
        }
        self.unfollowed = None;
        let mut before = std::mem::take(&mut self.followed);
        // Close what is no longer followed first, to free descriptors.
        before.retain(|watch, it| {
            let stays = paths.contains_key(&it.path);
            if !stays {
                // The watch may have gone with its file.
                let _ = inotify::remove_watch(&self.files, *watch);
            }
            stays
        });
        let known: BTreeMap<PathBuf, i32> =
            before.iter().map(|(watch, it)| (it.path.clone(), *watch)).collect();
        let mut followed = BTreeMap::new();
        let mut new = false;
        // A shortage for one path also affects those after it.
        let mut short: Option<Errno> = None;
        for (path, follow) in paths {
            let flags = match follow {
                Follow::Writes => WatchFlags::MODIFY,
                Follow::Made => WatchFlags::CREATE,
                Follow::Removed => WatchFlags::DELETE,
            };
            match short.map_or_else(|| watched(&self.files, path, flags, self.spare), Err) {
                Ok((watch, file)) => {
                    // Close its old descriptor at once; otherwise twice as many would be open here.
                    new |= before.remove(&watch).is_none() && !followed.contains_key(&watch);
                    followed.insert(watch, Followed { file, path: path.clone() });
                }
                // Other events report a file that has gone.
                Err(Errno::NOENT) => {}
                // If all watches of the user are in use, for example, existing ones are kept.
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
            // The watch may have gone with its file.
            let _ = inotify::remove_watch(&self.files, *watch);
        }
        self.followed = followed;
        new
    }
}

/// Opens a file and watches it, if that leaves `spare` descriptors free.
fn watched(
    inotify: &OwnedFd,
    path: &Path,
    flags: WatchFlags,
    spare: u64,
) -> Result<(i32, OwnedFd), Errno> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    has_room(u64::try_from(file.as_raw_fd()).unwrap_or(0).saturating_add(spare))?;
    // By the descriptor, so that exactly the opened file is watched.
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((inotify::add_watch(inotify, same, flags)?, file))
}

/// The message that a path is not watched. The same reason usually affects others.
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

/// Waits until one of these descriptors is readable.
pub(crate) fn wait<'a>(
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    limit: Option<Duration>,
) -> Result<(), WatchError> {
    let mut all: Vec<PollFd<'_>> =
        descriptors.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)).collect();
    // A limit too large for the kernel is infinite.
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut all, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether this descriptor is readable now.
pub(crate) fn readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut one = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut one, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Reads all events, and returns whether one counts. Events of removed watches do not.
fn drain(
    inotify: &OwnedFd,
    counts: impl Fn(&inotify::Event<'_>) -> bool,
) -> Result<bool, WatchError> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut any = false;
    loop {
        match reader.next() {
            // `IGNORED`: a watch was removed.
            Ok(event) => any |= event.events() != ReadFlags::IGNORED && counts(&event),
            Err(Errno::AGAIN) => return Ok(any),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Why changes cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("changes cannot be listened for: {0}")]
pub enum WatchError {
    /// Netlink notices failed.
    Netlink(#[from] NetlinkError),
    /// inotify or `poll` failed.
    Io(#[from] io::Error),
}

impl From<Errno> for WatchError {
    fn from(errno: Errno) -> WatchError {
        WatchError::Io(errno.into())
    }
}
