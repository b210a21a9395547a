//! Being told to end.
//!
//! The signals are blocked, in this thread and in all that it makes, and waited for with a timeout.
//! So no handler ever runs on a thread that polls, nothing has to be safe inside a handler, and the
//! wait is the status line's clock at the same time: a crate that installs handlers has no use here.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Interrupt, termination and the loss of the terminal, blocked for as long as this lives.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in the calling thread and in all that it makes from now on.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the pointer is to memory of a `sigset_t`, which the call fills.
        check(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
        // SAFETY: `sigemptyset` has initialised it.
        let mut set: libc::sigset_t = unsafe { set.assume_init() };
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the pointer is to a live, initialised set, and the signal exists.
            check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        }
        let signals = Signals { set };
        signals.mask(libc::SIG_BLOCK)?;
        Ok(signals)
    }

    /// Waits for one of them: whether it came within `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: both pointers are to live values that the call reads; the one for details of the
        // signal may be null.
        let signal = unsafe {
            libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const timeout)
        };
        // An error is the timeout, or another signal's handler (a debugger's stop): look again.
        signal > 0
    }

    fn mask(&self, how: libc::c_int) -> io::Result<()> {
        // SAFETY: the first pointer is to a live, initialised set; the second may be null.
        let error =
            unsafe { libc::pthread_sigmask(how, &raw const self.set, std::ptr::null_mut()) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // It fails only for a set or an operation that does not exist.
        let _ = self.mask(libc::SIG_UNBLOCK);
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_waited_for_and_does_not_kill() {
        // In a thread of its own: blocked signals are a thread's, and this one is sent to it alone.
        std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            assert!(!signals.wait(Duration::ZERO));
            // SAFETY: the calling thread exists, and the signal is blocked in it.
            let sent = unsafe { libc::raise(libc::SIGTERM) };
            assert_eq!(sent, 0);
            assert!(signals.wait(Duration::from_secs(10)));
            assert!(!signals.wait(Duration::ZERO));
        })
        .join()
        .unwrap();
    }
}
