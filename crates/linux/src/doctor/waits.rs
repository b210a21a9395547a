//! Counts a process's calls of `epoll_wait`: each with its `maxevents` and timeout, from the kernel's trace points.
//!
//! Sampling sleeping threads (`process::wait`) shows the waits that sleep. Those with a zero timeout never
//! do, so they can only be counted at the call. This uses perf events, which end with their descriptors, so
//! nothing is ever left behind. A missing privilege or tracefs is reported, and is no reason to fail.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::facts::Wait;
use napkin_os::rights::Right;

/// The maximum number of watched threads; a program with more is watched in part.
const MOST_THREADS: usize = 64;

/// Pages of records for each thread (a power of 2). When they are full, further calls are not recorded, and
/// cost next to nothing.
const PAGES: usize = 16;

/// The system calls that wait on an epoll.
const CALLS: [&str; 3] = ["epoll_wait", "epoll_pwait", "epoll_pwait2"];

/// Threads under observation.
#[derive(Debug)]
pub struct Watch {
    threads: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    ring: Ring,
    /// The events that write into the ring, of which the first is the ring's own.
    _events: Vec<OwnedFd>,
}

impl Watch {
    /// Starts to watch threads.
    ///
    /// # Errors
    /// If a privilege or tracefs is missing: the text names it.
    pub fn start(tids: impl IntoIterator<Item = i32>) -> Result<Watch, String> {
        let tracefs = tracefs()?;
        let ids: Vec<u64> = CALLS.iter().filter_map(|call| id(tracefs.as_fd(), call)).collect();
        if ids.is_empty() {
            return Err("tracefs has no trace points of epoll_wait, or only for root".into());
        }
        let mut threads = Vec::new();
        let mut failed = None;
        for tid in tids.into_iter().take(MOST_THREADS) {
            match Watched::start(tid, &ids) {
                Ok(watched) => threads.push(watched),
                // The thread has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if threads.is_empty() => Err(match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    format!("counting its calls takes {}", Right::Perfmon)
                }
                _ => format!("its calls cannot be counted: {error}"),
            }),
            _ => Ok(Watch { threads }),
        }
    }

    /// Stops, and returns the calls since the start.
    pub fn finish(self) -> Vec<Wait> {
        let mut waits = BTreeMap::new();
        for thread in &self.threads {
            read(&thread.ring.bytes(), &mut waits);
        }
        let wait = |((tid, epoll, maxevents, timeout), times)| Wait {
            tid,
            epoll,
            maxevents,
            timeout,
            times,
        };
        waits.into_iter().map(wait).collect()
    }
}

impl Watched {
    fn start(tid: i32, ids: &[u64]) -> io::Result<Watched> {
        let mut events = Vec::new();
        for id in ids {
            events.push(open(tid, *id)?);
        }
        let first = events.first().ok_or(io::ErrorKind::NotFound)?;
        let ring = Ring::map(first.as_fd())?;
        for event in &events {
            if event.as_raw_fd() != first.as_raw_fd() {
                set_output(event.as_fd(), first.as_fd())?;
            }
        }
        for event in &events {
            enable(event.as_fd())?;
        }
        Ok(Watched { ring, _events: events })
    }
}

/// Opens tracefs: where it is mounted, else as a detached mount that ends with its descriptor (in a namespace
/// with its own `/sys`, nothing is mounted there).
fn tracefs() -> Result<OwnedFd, String> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    for path in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) else { continue };
        if openat(&directory, "events", flags, Mode::empty()).is_ok() {
            return Ok(directory);
        }
    }
    mount().map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => {
            format!("counting its calls takes {} and a mounted tracefs", Right::Perfmon)
        }
        errno => format!("tracefs cannot be had: {errno}"),
    })
}

/// Creates a detached mount of tracefs.
fn mount() -> Result<OwnedFd, Errno> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Takes ownership of a descriptor that a system call has returned.
fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel created it for this call, and nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the ID of a trace point.
fn id(tracefs: BorrowedFd<'_>, call: &str) -> Option<u64> {
    let path = format!("events/syscalls/sys_enter_{call}/id");
    let file = openat(tracefs, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 32];
    let length = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
}

/// The used part of `perf_event_attr`, up to `PERF_ATTR_SIZE_VER1`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
}

/// Opens an event at a trace point for one thread, disabled.
fn open(tid: i32, id: u64) -> io::Result<OwnedFd> {
    const TRACEPOINT: u32 = 2;
    const SAMPLE_TID: u64 = 1 << 1;
    const SAMPLE_RAW: u64 = 1 << 10;
    const DISABLED: u64 = 1;
    const FD_CLOEXEC: libc::c_long = 1 << 3;
    let attributes = Attributes {
        kind: TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: id,
        sample_period: 1,
        sample_type: SAMPLE_TID | SAMPLE_RAW,
        flags: DISABLED,
        ..Attributes::default()
    };
    let (any_cpu, no_group) = (-1_i64, -1_i64);
    // SAFETY: the call reads `size` bytes at the pointer, which is to a live struct of that size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            libc::c_long::from(tid),
            any_cpu,
            no_group,
            FD_CLOEXEC,
        )
    };
    owned(fd)
}

const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    control(event, IOC_ENABLE, 0)
}

fn set_output(event: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    control(event, IOC_SET_OUTPUT, to.as_raw_fd())
}

fn control(event: BorrowedFd<'_>, command: libc::c_ulong, value: i32) -> io::Result<()> {
    // SAFETY: both commands take a number, and no pointer.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), command as _, libc::c_long::from(value)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The mapped buffer of an event: a control page, and the pages with records.
#[derive(Debug)]
struct Ring {
    start: NonNull<u8>,
    page: usize,
}

impl Ring {
    fn map(event: BorrowedFd<'_>) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let length = (PAGES + 1) * page;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of this process.
        let start = unsafe {
            libc::mmap(nowhere, length, protection, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { start, page })
    }

    /// The records. Nothing is ever consumed, so they begin at the start, and recording stops when the buffer
    /// is full.
    fn bytes(&self) -> Vec<u8> {
        /// The offset of `data_head` in `perf_event_mmap_page`.
        const HEAD: usize = 1_024;
        // SAFETY: the offset is within the first page of the mapping.
        let head = unsafe { self.start.add(HEAD) }.cast::<AtomicU64>();
        // SAFETY: the kernel keeps an aligned 64-bit number there, and writes it as one.
        let head = unsafe { head.as_ref() }.load(Ordering::Acquire);
        let length = usize::try_from(head).unwrap_or(usize::MAX).min(PAGES * self.page);
        // SAFETY: the records begin at the second page of the mapping.
        let data = unsafe { self.start.add(self.page) };
        let mut bytes = vec![0_u8; length];
        // SAFETY: `length` bytes are mapped there, and the kernel writes behind `head` only.
        unsafe { data.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let length = (PAGES + 1) * self.page;
        // SAFETY: this is the mapping that `map` made, and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), length) };
    }
}

/// Thread ID, epoll descriptor, `maxevents`, timeout in nanoseconds.
type Call = (i32, i32, u32, Option<u64>);

/// Counts the calls in records of `PERF_SAMPLE_TID | PERF_SAMPLE_RAW`.
fn read(mut bytes: &[u8], calls: &mut BTreeMap<Call, u64>) {
    const SAMPLE: u32 = 9;
    while let (Some(kind), Some(size)) = (u32_at(bytes, 0), u16_at(bytes, 6)) {
        let size = usize::from(size);
        let Some(record) = bytes.get(8..size) else { return };
        if kind == SAMPLE
            && let Some(call) = call(record)
        {
            *calls.entry(call).or_default() += 1;
        }
        let Some(rest) = bytes.get(size..) else { return };
        bytes = rest;
    }
}

/// Parses a record's call: pid, tid, size, and the fields of `events/syscalls/sys_enter_epoll_wait/format`.
fn call(record: &[u8]) -> Option<Call> {
    let tid = u32_at(record, 4)?.cast_signed();
    let raw = record.get(12..)?;
    let number = u32_at(raw, 8)?;
    let epoll = u32_at(raw, 16)?.cast_signed();
    let maxevents = u32_at(raw, 32)?;
    let timeout = if libc::c_long::from(number) == libc::SYS_epoll_pwait2 {
        // A pointer to a `timespec`, which would have to be read at the call; a null pointer is infinite.
        if u64_at(raw, 40)? != 0 {
            return None;
        }
        None
    } else {
        let milliseconds = u32_at(raw, 40)?.cast_signed();
        u64::try_from(milliseconds).ok().map(|it| it.saturating_mul(1_000_000))
    };
    Some((tid, epoll, maxevents, timeout))
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    bytes.get(place..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    bytes.get(place..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    bytes.get(place..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_record_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            read(&bytes, &mut BTreeMap::new());
            let mut sample = 9_u32.to_ne_bytes().to_vec();
            sample.extend([0, 0, bytes.len() as u8, 0]);
            sample.extend(&bytes);
            read(&sample, &mut BTreeMap::new());
        }
    }
}
