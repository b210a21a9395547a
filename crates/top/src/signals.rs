//! Being told to end, to stop for a while, or that the terminal has another size.
//!
//! The signals are blocked and read from a descriptor, so that one `poll` waits for them, for keys
//! and for the next sample alike, and no handler ever runs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To end.
    End,
    /// To stop until told to go on.
    Stop,
    /// To draw again.
    Draw,
}

/// The signals, blocked in this thread and all that it makes for as long as this lives.
#[derive(Debug)]
pub(crate) struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

const SIGNALS: [(libc::c_int, Asked); 7] = [
    (libc::SIGINT, Asked::End),
    (libc::SIGTERM, Asked::End),
    (libc::SIGHUP, Asked::End),
    (libc::SIGQUIT, Asked::End),
    (libc::SIGTSTP, Asked::Stop),
    (libc::SIGCONT, Asked::Draw),
    (libc::SIGWINCH, Asked::Draw),
];

impl Signals {
    pub(crate) fn open() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the pointer is to memory of a `sigset_t`, which the call fills.
        check(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
        // SAFETY: `sigemptyset` has initialised it.
        let mut set: libc::sigset_t = unsafe { set.assume_init() };
        for (signal, _) in SIGNALS {
            // SAFETY: the pointer is to a live, initialised set, and the signal exists.
            check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        }
        // SAFETY: the pointer is to a live, initialised set; -1 asks for a new descriptor.
        let raw =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut before = MaybeUninit::uninit();
        // SAFETY: the first pointer is to a live set; the second to memory that the call fills.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: the call has initialised it.
        let before = unsafe { before.assume_init() };
        Ok(Signals { descriptor, before })
    }

    /// What the signals that have come ask for, the most urgent of it.
    pub(crate) fn asked(&self) -> Option<Asked> {
        // Of each, the kernel writes 128 bytes that begin with its number.
        let (mut bytes, mut asked) = ([0_u8; 128 * 8], Vec::new());
        while let Ok(read @ 1..) = rustix::io::read(&self.descriptor, &mut bytes) {
            for info in bytes[..read].chunks_exact(128) {
                let number = [info[0], info[1], info[2], info[3]];
                let number = i32::from_ne_bytes(number);
                asked.extend(SIGNALS.iter().find(|(it, _)| *it == number).map(|(_, asked)| *asked));
            }
        }
        [Asked::End, Asked::Stop, Asked::Draw].into_iter().find(|it| asked.contains(it))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the first pointer is to the set that the kernel gave; the second may be null. It
        // fails only for an operation that does not exist.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_and_does_not_kill() {
        // In a thread of its own: blocked signals are a thread's, and these are sent to it alone.
        std::thread::spawn(|| {
            let signals = Signals::open().expect("a descriptor");
            assert_eq!(signals.asked(), None);
            let send = |signal| {
                // SAFETY: the calling thread exists, and the signal is blocked in it.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
            };
            send(libc::SIGWINCH);
            assert_eq!(signals.asked(), Some(Asked::Draw));
            send(libc::SIGWINCH);
            send(libc::SIGTERM);
            assert_eq!(signals.asked(), Some(Asked::End), "the most urgent");
            assert_eq!(signals.asked(), None);
        })
        .join()
        .expect("it did not panic");
    }
}
