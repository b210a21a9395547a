//! Files that a peer cuts short while they are mapped here. The next access would be a SIGBUS, and the end of this
//! process; instead the kernel is asked for empty memory in the place of the file's, and the access is made again.
//!
//! Rings then read zeros, which makes them empty or [broken](super::ring::Taken::Broken), frames are empty, and what is
//! written goes nowhere. Only mappings that are [watched](Watched) here are mended; any other SIGBUS is left to
//! whoever had asked for it before, or ends the process as ever.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The most mappings that are watched: a peer has at most 8.
const MOST: usize = 512;

/// A mapping, for a signal handler to find.
struct Mapping {
    /// 0 while there is none.
    start: AtomicUsize,
    len: AtomicUsize,
    cut: AtomicBool,
}

static MAPPINGS: [Mapping; MOST] = [const {
    Mapping { start: AtomicUsize::new(0), len: AtomicUsize::new(0), cut: AtomicBool::new(false) }
}; MOST];

/// Whoever adds a mapping has it.
static ADDING: Mutex<()> = Mutex::new(());

/// What was done about a SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Watches a mapping until it is dropped, which has to be before the mapping is undone.
#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// Begins.
    ///
    /// # Errors
    /// If the signal cannot be caught, or [`MOST`] are watched.
    pub(super) fn new(start: NonNull<u8>, len: usize) -> io::Result<Watched> {
        let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        catch()?;
        let free = MAPPINGS.iter().position(|it| it.start.load(Relaxed) == 0);
        let place = free.ok_or_else(|| io::Error::other(format!("{MOST} regions are mapped")))?;
        let mapping = &MAPPINGS[place];
        mapping.cut.store(false, Relaxed);
        // Who sees the length sees that the last mapping has gone from here.
        mapping.len.store(len, Release);
        mapping.start.store(start.as_ptr().addr(), Release);
        Ok(Watched(place))
    }

    /// Whether its file was found cut short.
    pub(super) fn cut(&self) -> bool {
        MAPPINGS[self.0].cut.load(Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        MAPPINGS[self.0].start.store(0, Relaxed);
    }
}

/// Has the signal come here, once for all.
fn catch() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: zeros are an action: the default one, with no flags.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does what a handler may: it reads and writes atomics, and makes system calls.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let _ = BEFORE.set(before);
    Ok(())
}

/// Puts empty memory where the file was. Whether it was one of ours.
fn mend(at: usize) -> bool {
    let ours = |it: &'static Mapping| {
        let (start, len) = (it.start.load(Acquire), it.len.load(Acquire));
        // A place that another thread gives to another mapping meanwhile has parts of both.
        let whole = start != 0 && it.start.load(Relaxed) == start;
        (whole && at.wrapping_sub(start) < len).then_some((it, start, len))
    };
    let Some((mapping, start, len)) = MAPPINGS.iter().find_map(ours) else { return false };
    let start = start as *mut std::ffi::c_void;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // All of it: a mapping of huge pages can only be replaced by whole ones.
    // SAFETY: the mapping is there, as an access to it has led here, and is only ever used as memory that anybody may
    // change at any time.
    let mended = unsafe { mmap_anonymous(start, len, access, flags) };
    mapping.cut.store(true, Relaxed);
    mended.is_ok()
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler that asks for it what the signal is about.
    let info_of_it = unsafe { &*info };
    // SAFETY: of this signal the kernel says at which address it was.
    let at = unsafe { info_of_it.si_addr() };
    if mend(at.addr()) {
        return;
    }
    let before = BEFORE.get().map_or((libc::SIG_DFL, 0), |it| (it.sa_sigaction, it.sa_flags));
    match before {
        (libc::SIG_DFL | libc::SIG_IGN, _) => {
            // The access is made again, and ends the process.
            // SAFETY: the default action has no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        (action, flags) if flags & libc::SA_SIGINFO != 0 => {
            type Action = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: whoever set it said by its flag that it is such a function.
            let action = unsafe { std::mem::transmute::<usize, Action>(action) };
            action(signal, info, context);
        }
        (action, _) => {
            // SAFETY: as above, of the other kind.
            let action = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action) };
            action(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::mmap;

    use super::*;

    const PAGE: usize = 4096;

    /// A page of a file that has since been cut short, for ever.
    fn cut() -> NonNull<u8> {
        let file = memfd_create("napkin-test", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, PAGE as u64).expect("it grows");
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe {
            mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        };
        ftruncate(&file, 0).expect("it shrinks");
        NonNull::new(at.expect("a mapping").cast()).expect("not at 0")
    }

    fn read(at: NonNull<u8>) -> u8 {
        // SAFETY: it was mapped; whether there is something is what is tried.
        unsafe { at.read_volatile() }
    }

    #[test]
    fn only_what_is_watched_is_mended_and_any_other_ends_the_process_as_ever() {
        const CHILD: &str = "NAPKIN_TEST_SIGBUS";
        let (ours, theirs) = (cut(), cut());
        if std::env::var_os(CHILD).is_some() {
            let watched = Watched::new(ours, PAGE).expect("there is a place");
            assert_eq!((read(ours), watched.cut()), (0, true));
            read(theirs);
            return;
        }
        let name = "vhost::cut::tests::only_what_is_watched_is_mended_and_any_other_ends_the_process_as_ever";
        let this = std::env::current_exe().expect("a path");
        let child =
            std::process::Command::new(this).args(["--exact", name]).env(CHILD, "").output();
        let child = child.expect("it starts");
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}
