//! Points at which a debug build can be made to crash, to test that a crash at any moment is harmless.
//!
//! `NAPKIN_FAULT=n` ends the process with `SIGKILL` at the n-th point that it reaches. There is one before and
//! after each line of a journal, each change, and each removal of a journal. Release builds have none.

#[inline]
pub(crate) fn point() {
    #[cfg(debug_assertions)]
    armed::point();
}

/// Fails if a test has simulated a full disk.
#[inline]
pub(crate) fn space() -> std::io::Result<()> {
    #[cfg(test)]
    disk::space()?;
    Ok(())
}

/// Fails if a test has simulated that no file can be created.
#[inline]
pub(crate) fn inode() -> std::io::Result<()> {
    #[cfg(test)]
    disk::inode()?;
    Ok(())
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    static REACHED: AtomicU64 = AtomicU64::new(0);
    static FATAL: OnceLock<Option<u64>> = OnceLock::new();

    pub(super) fn point() {
        #[cfg(test)]
        super::crash::point();
        let fatal = FATAL.get_or_init(|| std::env::var("NAPKIN_FAULT").ok()?.parse().ok());
        let Some(fatal) = *fatal else { return };
        if REACHED.fetch_add(1, Ordering::Relaxed).saturating_add(1) == fatal {
            // Cannot fail for the own process; otherwise the test that asked for it would notice.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

/// The same for unit tests: the calling thread panics, which the test counts as a crash.
#[cfg(test)]
pub(crate) mod crash {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// The panic payload: not a message, so that nothing is printed.
    struct Crash;

    pub(super) fn point() {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                resume_unwind(Box::new(Crash));
            }
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
    }

    /// Runs `run`, which crashes at the point that follows `after` others; `None` if it crashed.
    pub(crate) fn at<T>(after: Option<u64>, run: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(after);
        let result = catch_unwind(AssertUnwindSafe(run));
        LEFT.set(None);
        match result {
            Ok(value) => Some(value),
            Err(thrown) if thrown.is::<Crash>() => None,
            Err(thrown) => resume_unwind(thrown),
        }
    }
}

/// A simulated full disk, for unit tests.
#[cfg(test)]
pub(crate) mod disk {
    use std::cell::Cell;
    use std::io::{self, ErrorKind};

    thread_local! {
        static FULL: Cell<bool> = const { Cell::new(false) };
        static NO_INODE: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn space() -> io::Result<()> {
        if FULL.get() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    pub(super) fn inode() -> io::Result<()> {
        if NO_INODE.get() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Sets whether creating a lock file fails in this thread.
    pub(crate) fn no_inode(none: bool) {
        NO_INODE.set(none);
    }

    /// Sets whether writing fails in this thread.
    pub(crate) fn fill(full: bool) {
        FULL.set(full);
    }
}
