//! Handling of files that a peer truncates while they are mapped here. The next access would raise SIGBUS and end
//! this process; instead the handler maps empty memory in place of the file's, and the access is repeated.
//!
//! Rings then read zeros, which makes them empty or [broken](super::ring::TakeResult::Broken), frames are empty, and
//! writes are lost. Only mappings that are [watched](Watched) here are replaced. Any other SIGBUS has the effect
//! that it would have without this file: the previous handler is called, with its signals blocked and on the stack
//! that it had requested; a SIGBUS sent by a process is ignored if it was ignored before; and otherwise the process
//! ends by this signal. The handler here stays installed: a previous handler that resets itself to the default
//! action (as that of Rust's runtime does for a SIGBUS that it does not handle) thereby resets only its own place
//! in the chain. A handler that is installed later and does not call this one disables it.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The most regions of a peer, as limited by `SET_MEM_TABLE`.
pub(super) const MAX_REGIONS: usize = 8;

/// The most devices with a peer at a time: as many as a server has.
const DEVICES: usize = 64;

/// The most watched mappings. A peer has its regions and the in-flight memory, each twice while it replaces them.
const MAX_MAPPINGS: usize = DEVICES * (2 * MAX_REGIONS + 2);

/// A watched mapping, as the signal handler finds it.
struct Mapping {
    /// Address; 0 if the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    truncated: AtomicBool,
}

static MAPPINGS: [Mapping; MAX_MAPPINGS] = [const {
    Mapping {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        truncated: AtomicBool::new(false),
    }
}; MAX_MAPPINGS];

/// Held while a mapping is added.
static ADDING: Mutex<()> = Mutex::new(());

/// The action for SIGBUS before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// The action, `SIG_DFL` or `SIG_IGN`, that the previous handler has set for itself since; or [`NOT_RESET`].
static RESET_TO: AtomicUsize = AtomicUsize::new(NOT_RESET);
const NOT_RESET: usize = usize::MAX;

/// Watches a mapping until dropped, which must be before the mapping is removed.
#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// Starts to watch a mapping.
    ///
    /// # Errors
    /// The signal cannot be caught, or [`MAX_MAPPINGS`] mappings are watched.
    pub(super) fn new(start: NonNull<u8>, len: usize) -> io::Result<Watched> {
        let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        install_once()?;
        let free = MAPPINGS.iter().position(|it| it.start.load(Relaxed) == 0);
        let place =
            free.ok_or_else(|| io::Error::other(format!("{MAX_MAPPINGS} regions are mapped")))?;
        let mapping = &MAPPINGS[place];
        mapping.truncated.store(false, Relaxed);
        // A reader that sees this length also sees that the entry's previous mapping is gone.
        mapping.len.store(len, Release);
        mapping.start.store(start.as_ptr().addr(), Release);
        Ok(Watched(place))
    }

    /// Whether its file was found truncated.
    pub(super) fn truncated(&self) -> bool {
        MAPPINGS[self.0].truncated.load(Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        MAPPINGS[self.0].start.store(0, Relaxed);
    }
}

/// Installs the handler, once per process.
fn install_once() -> io::Result<()> {
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    if CAUGHT.load(Relaxed) {
        return Ok(());
    }
    let now = action()?;
    // Stored first, since the handler needs it from the first signal on.
    install(BEFORE.get_or_init(|| now))?;
    CAUGHT.store(true, Relaxed);
    Ok(())
}

/// The current action for the signal.
fn action() -> io::Result<libc::sigaction> {
    // SAFETY: zeros are a valid action: the default one, with no flags.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: sets nothing, and there is room for the answer.
    match unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut now) } {
        0 => Ok(now),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Installs our handler in place of `before`. May be called from a signal handler.
fn install(before: &libc::sigaction) -> io::Result<()> {
    let mut action = *before;
    action.sa_sigaction = handler as *const () as usize;
    let inherited = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    action.sa_flags = libc::SA_SIGINFO
        | match before.sa_sigaction {
            // An ignored signal does not interrupt system calls.
            libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
            _ => before.sa_flags & inherited,
        };
    // SAFETY: the handler is async-signal-safe: it reads and writes atomics, and makes system calls.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps empty memory in place of the watched mapping that contains `at`. Returns whether that was done.
fn replace_with_empty(at: usize) -> bool {
    let mapping_at = |it: &'static Mapping| {
        let (start, len) = (it.start.load(Acquire), it.len.load(Acquire));
        // An entry that another thread is reusing may mix two mappings.
        let whole = start != 0 && it.start.load(Relaxed) == start;
        (whole && at.wrapping_sub(start) < len).then_some((it, start, len))
    };
    let Some((mapping, start, len)) = MAPPINGS.iter().find_map(mapping_at) else { return false };
    let start = start as *mut std::ffi::c_void;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // The whole mapping, since one of huge pages can only be replaced in whole pages.
    // SAFETY: the mapping exists, since an access to it has led here, and is only ever used as memory that any
    // process may change at any time.
    let mended = unsafe { mmap_anonymous(start, len, access, flags) };
    mapping.truncated.store(true, Relaxed);
    mended.is_ok()
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let about = unsafe { &*info };
    // Only an access has an address; for a sent signal the sender's id is in its place.
    let sent = about.si_code <= 0 || about.si_code == libc::BUS_MCEERR_AO;
    // SAFETY: for an access the kernel provides its address.
    if !sent && replace_with_empty(unsafe { about.si_addr() }.addr()) {
        return;
    }
    let (action, flags) = match (RESET_TO.load(Relaxed), BEFORE.get()) {
        (NOT_RESET, Some(before)) => (before.sa_sigaction, before.sa_flags),
        (NOT_RESET, None) => (libc::SIG_DFL, 0),
        (plain, _) => (plain, 0),
    };
    match action {
        libc::SIG_IGN if sent => return,
        // An access cannot be ignored.
        libc::SIG_DFL | libc::SIG_IGN => return end(signal, info),
        _ => {}
    }
    if flags & libc::SA_RESETHAND != 0 {
        RESET_TO.store(libc::SIG_DFL, Relaxed);
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Action = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: whoever installed it declared by its flag that it is such a function.
        let action = unsafe { std::mem::transmute::<usize, Action>(action) };
        action(signal, info, context);
    } else {
        // SAFETY: as above, for the other type of handler.
        let action = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action) };
        action(signal);
    }
    reinstall();
}

/// Reinstalls our handler if the previous one has set the default action, or none, which was meant for itself.
fn reinstall() {
    if let (Ok(now), Some(before)) = (action(), BEFORE.get())
        && matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
    {
        RESET_TO.store(now.sa_sigaction, Relaxed);
        let _ = install(before);
    }
}

/// Ends the process by the signal, with its siginfo, as soon as the handler returns.
fn end(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: the default action has no handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let process = rustix::process::getpid().as_raw_pid();
    let thread = rustix::thread::gettid().as_raw_pid();
    // If it cannot be sent, the repeated access ends the process as well.
    // SAFETY: the kernel reads the siginfo that it has written itself.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}

#[cfg(test)]
mod tests;
