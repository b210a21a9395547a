//! Signals that are waited for instead of handled.
//!
//! They are blocked and taken one by one with a timeout, which is the clock of the looks at the same
//! time. A program that is started gets the mask from before.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The signal's number, as in `signal(7)`.
    pub signal: i32,
    /// How it was sent: `si_code` of sigaction(2).
    pub code: i32,
    /// Who sent it; 0 if it was the kernel, or a process of a namespace that is not seen from here.
    pub sender: i32,
}

/// Signals that are blocked in this thread for as long as this lives.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Those that ask a command to end.
    const ENDS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

    /// The one by which a terminal stops a program (Ctrl-Z).
    pub const STOP: i32 = libc::SIGTSTP;

    /// Those that are passed on to a program, and the one that tells of its end.
    pub const PASSED: [i32; 10] = [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGWINCH,
        libc::SIGCONT,
        libc::SIGTSTP,
        libc::SIGCHLD,
    ];

    /// Blocks those that ask a command to end: SIGINT, SIGTERM and SIGHUP. One that whoever started
    /// this has had ignored stays so, as under `nohup`, or in the background of a script.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block_ends() -> io::Result<Signals> {
        let ends: Vec<i32> = Signals::ENDS.into_iter().filter(|it| !ignored(*it)).collect();
        Signals::block(&ends)
    }

    /// The same for as long as something is in force that this program alone watches and puts back: SIGQUIT
    /// (Ctrl-\) asks it to end, too, and [`Signals::STOP`] comes to whoever waits and stops nothing.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block_ends_and_stop() -> io::Result<Signals> {
        let all = Signals::ENDS.into_iter().chain([libc::SIGQUIT, Signals::STOP]);
        let all: Vec<i32> = all.filter(|it| !ignored(*it)).collect();
        Signals::block(&all)
    }

    /// Blocks signals in the calling thread, and in all that it makes from now on. They come even if
    /// they were ignored.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block(signals: &[i32]) -> io::Result<Signals> {
        let mut set = empty()?;
        for signal in signals {
            // SAFETY: the pointer is to a live, initialised set.
            check(unsafe { libc::sigaddset(&raw mut set, *signal) })?;
        }
        if signals.contains(&libc::SIGCHLD) {
            // Whoever started this may have had it ignored, and then no child's end can be known.
            // SAFETY: the default action is no function of this program's.
            let _ = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
        Signals::block_set(set)
    }

    /// Blocks all that can be, while a thread is made that is to take none: one that leaves some open
    /// takes those that its maker blocks later.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block_all() -> io::Result<Signals> {
        let mut set = empty()?;
        // SAFETY: the pointer is to a live, initialised set.
        check(unsafe { libc::sigfillset(&raw mut set) })?;
        Signals::block_set(set)
    }

    fn block_set(set: libc::sigset_t) -> io::Result<Signals> {
        let mut before = empty()?;
        // SAFETY: both pointers are to live, initialised sets; the second is filled.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(Signals { set, before })
    }

    /// Has a command's program start with the signals that were blocked before this, and no others.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        let unblock = move || {
            // SAFETY: the pointer is to a live set; the one for the old set may be null.
            let error = unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            };
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
        };
        // SAFETY: between fork and exec it makes one system call, which is safe there, and no
        // allocation.
        unsafe { command.pre_exec(unblock) };
    }

    /// Takes those that came meanwhile: they would end the program once they are not blocked any more, before anybody has
    /// heard what it did.
    pub fn forget(&self) {
        while self.wait(Duration::ZERO).is_some() {}
    }

    /// Waits for one of them, at most `timeout`; another signal's handler may end the wait early.
    pub fn wait(&self, timeout: Duration) -> Option<ReceivedSignal> {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the pointers are to live values; the call reads the first and the last, and fills
        // the second.
        let signal = unsafe {
            libc::sigtimedwait(&raw const self.set, info.as_mut_ptr(), &raw const timeout)
        };
        if signal <= 0 {
            return None;
        }
        // SAFETY: it was zeroed above, which is a valid value of plain numbers, and filled since.
        let info = unsafe { info.assume_init() };
        // SAFETY: the kernel fills it for what a process or a terminal sent; of all else a plain
        // number is read.
        let sender = unsafe { info.si_pid() };
        Some(ReceivedSignal { signal, code: info.si_code, sender })
    }
}

impl Signals {
    /// Lets one of them that has come and was not [waited](Signals::wait) for act as on a program that blocks none.
    /// A stop is over when this returns; the signal is blocked again then.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn act(&self, signal: i32) -> io::Result<()> {
        let mut set = empty()?;
        // SAFETY: the pointer is to a live, initialised set.
        check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        for how in [libc::SIG_UNBLOCK, libc::SIG_BLOCK] {
            // SAFETY: the pointer is to a live set; the one for the old set may be null.
            let error = unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
        }
        Ok(())
    }

    /// A descriptor that is readable while one of them has come and was not [waited](Signals::wait) for
    /// yet, for whoever polls for other things, too. It is not to be read.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the pointer is to a live, initialised set; -1 asks for a new descriptor.
        let raw = unsafe { libc::signalfd(-1, &raw const self.set, flags) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a live set; the one for the old set may be null.
        let _ = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

/// Ends this process by a signal, as the program did that it stood for. Comes back only if the
/// signal does not end a process.
pub fn die_by(signal: i32) {
    // The program's core is the one to look at.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    // SAFETY: the default action is no function of this program's.
    let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
    if let Ok(mut set) = empty() {
        // SAFETY: the pointer is to a live, initialised set.
        let _ = unsafe { libc::sigaddset(&raw mut set, signal) };
        // SAFETY: the pointer is to a live set; the one for the old set may be null.
        let _ = unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut())
        };
    }
    // SAFETY: the call takes a number.
    let _ = unsafe { libc::raise(signal) };
}

fn ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing is changed; the last pointer is to memory of a
    // `sigaction`, which the call fills.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it was zeroed above, which is a valid value of plain numbers, and filled since.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn empty() -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is to memory of a `sigset_t`, which the call fills.
    check(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
    // SAFETY: `sigemptyset` has initialised it.
    Ok(unsafe { set.assume_init() })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_waited_for_and_told() {
        // In a thread of its own: blocked signals are a thread's, and this one is sent to it alone.
        std::thread::spawn(|| {
            let signals = Signals::block_ends().unwrap();
            assert_eq!(signals.wait(Duration::ZERO), None);
            // SAFETY: the calling thread exists, and the signal is blocked in it.
            let sent = unsafe { libc::raise(libc::SIGTERM) };
            assert_eq!(sent, 0);
            let sender = std::process::id().cast_signed();
            let came = signals.wait(Duration::from_secs(10)).expect("it was sent");
            assert_eq!((came.signal, came.sender), (libc::SIGTERM, sender));
            assert_eq!(signals.wait(Duration::ZERO), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_is_in_force_is_stopped_by_nothing_and_a_signal_acts_when_it_is_let() {
        std::thread::spawn(|| {
            for signal in [libc::SIGQUIT, Signals::STOP] {
                // A script has them ignored for what runs in its background.
                // SAFETY: the default action is no function of this program's, and no other test has to do with
                // these signals.
                let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            let signals = Signals::block_ends_and_stop().unwrap();
            let raise = |signal: i32| {
                // SAFETY: the calling thread exists, and the signal is blocked in it.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
            };
            for signal in [libc::SIGQUIT, Signals::STOP] {
                raise(signal);
                assert_eq!(signals.wait(Duration::ZERO).map(|came| came.signal), Some(signal));
            }
            drop(signals);
            // Whose default is to do nothing.
            let signals = Signals::block(&[libc::SIGURG]).unwrap();
            for acts in [false, true] {
                raise(libc::SIGURG);
                if acts {
                    signals.act(libc::SIGURG).unwrap();
                }
                assert_eq!(signals.wait(Duration::ZERO).is_none(), acts);
            }
            raise(libc::SIGURG);
            assert!(signals.wait(Duration::ZERO).is_some(), "it is blocked again");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_signal_that_was_ignored_from_the_start_asks_for_nothing() {
        std::thread::spawn(|| {
            // SAFETY: ignoring is no function of this program's, and no other test has to do with
            // this signal.
            let _ = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
            let comes = |signals: io::Result<Signals>| {
                let signals = signals.unwrap();
                // SAFETY: the calling thread exists, and the signal is ignored.
                assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
                signals.wait(Duration::ZERO).is_some()
            };
            assert!(!comes(Signals::block_ends()));
            assert!(comes(Signals::block(&Signals::ENDS)), "unless it is asked for");
        })
        .join()
        .unwrap();
    }
}
