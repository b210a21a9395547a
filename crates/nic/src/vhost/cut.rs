//! Files that a peer cuts short while they are mapped here. The next access would be a SIGBUS, and the end of this
//! process; instead the kernel is asked for empty memory in the place of the file's, and the access is made again.
//!
//! Rings then read zeros, which makes them empty or [broken](super::ring::Taken::Broken), frames are empty, and what is
//! written goes nowhere. Only mappings that are [watched](Watched) here are mended. Of any other SIGBUS comes what would
//! have come of it without this file: the handler that was there before is called, with the signals blocked and on the
//! stack that it had asked for; one that somebody sent is ignored where it was; and otherwise the process ends, by this
//! signal. While it lives the handler here stays: one of before that gives itself up (as that of Rust's runtime does for
//! a SIGBUS that is not its own) has the default action in its own place, and not in this one. Who sets another handler
//! later, and does not call this one from it, gives up what is done here.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The most regions of a peer, as in `SET_MEM_TABLE`.
pub(super) const MAX_REGIONS: usize = 8;

/// Devices that have a peer at a time: as many as a server has.
const DEVICES: usize = 64;

/// The most mappings that are watched. A peer has its regions and what is in flight, each twice while it gives others.
const MOST: usize = DEVICES * (2 * MAX_REGIONS + 2);

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

/// What the handler of before has put in its own place since, `SIG_DFL` or `SIG_IGN`; or [`STAYS`].
static GIVEN_UP: AtomicUsize = AtomicUsize::new(STAYS);
const STAYS: usize = usize::MAX;

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
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    if CAUGHT.load(Relaxed) {
        return Ok(());
    }
    let now = action()?;
    // The handler finds it with the first signal.
    install(BEFORE.get_or_init(|| now))?;
    CAUGHT.store(true, Relaxed);
    Ok(())
}

/// What is done about the signal now.
fn action() -> io::Result<libc::sigaction> {
    // SAFETY: zeros are an action: the default one, with no flags.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and there is room for the answer.
    match unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut now) } {
        0 => Ok(now),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts the handler here in the place of what was there before. A handler may do so.
fn install(before: &libc::sigaction) -> io::Result<()> {
    let mut ours = *before;
    ours.sa_sigaction = handler as *const () as usize;
    let theirs = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    ours.sa_flags = libc::SA_SIGINFO
        | match before.sa_sigaction {
            // What is ignored interrupts no system call.
            libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
            _ => before.sa_flags & theirs,
        };
    // SAFETY: the handler does what a handler may: it reads and writes atomics, and makes system calls.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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
    let about = unsafe { &*info };
    // Only an access is at an address; a process that sends the signal has its id in its place.
    let sent = about.si_code <= 0 || about.si_code == libc::BUS_MCEERR_AO;
    // SAFETY: of an access the kernel says at which address it was.
    if !sent && mend(unsafe { about.si_addr() }.addr()) {
        return;
    }
    let (action, flags) = match (GIVEN_UP.load(Relaxed), BEFORE.get()) {
        (STAYS, Some(before)) => (before.sa_sigaction, before.sa_flags),
        (STAYS, None) => (libc::SIG_DFL, 0),
        (plain, _) => (plain, 0),
    };
    match action {
        libc::SIG_IGN if sent => return,
        // An access is not ignored.
        libc::SIG_DFL | libc::SIG_IGN => return end(signal, info),
        _ => {}
    }
    if flags & libc::SA_RESETHAND != 0 {
        GIVEN_UP.store(libc::SIG_DFL, Relaxed);
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Action = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: whoever set it said by its flag that it is such a function.
        let action = unsafe { std::mem::transmute::<usize, Action>(action) };
        action(signal, info, context);
    } else {
        // SAFETY: as above, of the other kind.
        let action = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action) };
        action(signal);
    }
    stay();
}

/// Comes back where the handler of before has put the default action, or none, in what it takes for its own place.
fn stay() {
    if let (Ok(now), Some(before)) = (action(), BEFORE.get())
        && matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
    {
        GIVEN_UP.store(now.sa_sigaction, Relaxed);
        let _ = install(before);
    }
}

/// Ends the process by the signal, as soon as the handler returns, with what was said of it.
fn end(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: the default action has no handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let process = rustix::process::getpid().as_raw_pid();
    let thread = rustix::thread::gettid().as_raw_pid();
    // If it cannot be sent, an access is made again, and ends the process as well.
    // SAFETY: the kernel reads what it has written itself.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}

#[cfg(test)]
mod tests;
