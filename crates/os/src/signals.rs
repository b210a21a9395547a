//! Synchronous signal handling: signals are blocked and waited for, without handlers.
//!
//! The wait has a timeout, which also paces the caller's periodic checks. A program that is started gets the signal
//! mask from before.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A signal that was taken with [`Signals::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The signal's number, as in `signal(7)`.
    pub signal: i32,
    /// The cause of the signal: `si_code` of sigaction(2).
    pub code: i32,
    /// The sender's process id; 0 if it was the kernel, or a process in a PID namespace that is not visible here.
    pub sender: i32,
}

/// Signals that are blocked in this thread until this value is dropped.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Signals that ask a command to end.
    const TERMINATION: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

    /// The signal by which a terminal stops a program (Ctrl-Z).
    pub const STOP: i32 = libc::SIGTSTP;

    /// Signals that are forwarded to a child program, and SIGCHLD, which reports its end.
    pub const FORWARDED: [i32; 10] = [
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

    /// Blocks SIGINT, SIGTERM and SIGHUP, which ask a command to end. A signal that this process inherited as
    /// ignored, as under `nohup` or in the background of a script, stays ignored.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block_termination() -> io::Result<Signals> {
        let ends: Vec<i32> = Signals::TERMINATION.into_iter().filter(|it| !ignored(*it)).collect();
        Signals::block(&ends)
    }

    /// Blocks the same signals and two more, while a policy is in force that this process has to put back: SIGQUIT
    /// (Ctrl-\) also asks it to end, and [`Signals::STOP`] reaches [`Signals::wait`] without stopping the process.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn block_termination_and_stop() -> io::Result<Signals> {
        let all = Signals::TERMINATION.into_iter().chain([libc::SIGQUIT, Signals::STOP]);
        let all: Vec<i32> = all.filter(|it| !ignored(*it)).collect();
        Signals::block(&all)
    }

    /// Blocks signals in the calling thread and in the threads that it creates from now on. The signals are
    /// received even if they were ignored.
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
            // The parent may have had SIGCHLD ignored; then the end of a child could not be observed.
            // SAFETY: SIG_DFL installs no handler function.
            let _ = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
        Signals::block_set(set)
    }

    /// Blocks all signals that can be blocked, while a thread is created that must not take any: a thread with an
    /// unblocked signal would take those that its creator blocks later.
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

    /// Makes a command's program start with the signal mask from before this value.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        let unblock = move || {
            // SAFETY: the pointer is to a live set; the one for the old set may be null.
            let error = unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            };
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
        };
        // SAFETY: between fork and exec, the closure makes one async-signal-safe system call and does not allocate.
        unsafe { command.pre_exec(unblock) };
    }

    /// Discards pending signals: once unblocked, they would end the program before its results have been reported.
    pub fn discard_pending(&self) {
        while self.wait(Duration::ZERO).is_some() {}
    }

    /// Waits for one of the signals, at most `timeout`; the handler of another signal may end the wait early.
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
        // SAFETY: all zeros are a valid `siginfo_t`, and `sigtimedwait` has filled it since.
        let info = unsafe { info.assume_init() };
        // SAFETY: the kernel sets the field for signals from a process or a terminal; for others, reading it yields
        // some plain number.
        let sender = unsafe { info.si_pid() };
        Some(ReceivedSignal { signal, code: info.si_code, sender })
    }
}

impl Signals {
    /// Lets a pending signal that was not [waited](Signals::wait) for act as if it were not blocked: unblocks it
    /// and blocks it again. If it stops the process, this returns when the process continues.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn deliver(&self, signal: i32) -> io::Result<()> {
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

    /// Returns a `signalfd` for use with poll(2): readable while one of the signals is pending, that is, until it
    /// is [waited](Signals::wait) for. It must not be read.
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
        // SAFETY: the descriptor is new and has no other owner.
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

/// Ends this process by the signal that ended the program it ran. Returns only if the signal's default action does
/// not end a process.
pub fn end_by_signal(signal: i32) {
    // No core dump of this process: the program's own is the useful one.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    // SAFETY: SIG_DFL installs no handler function.
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
    // SAFETY: a null new action changes nothing; the last pointer is to memory of a `sigaction`, which the call fills.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all zeros are a valid `sigaction`, and the call has filled it since.
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
        // In a separate thread: signal masks are per thread, and `raise` sends to this thread alone.
        std::thread::spawn(|| {
            let signals = Signals::block_termination().unwrap();
            assert_eq!(signals.wait(Duration::ZERO), None);
            // SAFETY: the calling thread exists, and the signal is blocked in it.
            let sent = unsafe { libc::raise(libc::SIGTERM) };
            assert_eq!(sent, 0);
            let sender = std::process::id().cast_signed();
            let received = signals.wait(Duration::from_secs(10)).expect("it was sent");
            assert_eq!((received.signal, received.sender), (libc::SIGTERM, sender));
            assert_eq!(signals.wait(Duration::ZERO), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_is_in_force_is_stopped_by_nothing_and_a_signal_acts_when_it_is_let() {
        std::thread::spawn(|| {
            for signal in [libc::SIGQUIT, Signals::STOP] {
                // A script's background jobs inherit them as ignored.
                // SAFETY: SIG_DFL installs no handler function, and no other test uses these signals.
                let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            let signals = Signals::block_termination_and_stop().unwrap();
            let raise = |signal: i32| {
                // SAFETY: the calling thread exists, and the signal is blocked in it.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
            };
            for signal in [libc::SIGQUIT, Signals::STOP] {
                raise(signal);
                assert_eq!(
                    signals.wait(Duration::ZERO).map(|received| received.signal),
                    Some(signal)
                );
            }
            drop(signals);
            // The default action of SIGURG is to do nothing.
            let signals = Signals::block(&[libc::SIGURG]).unwrap();
            for acts in [false, true] {
                raise(libc::SIGURG);
                if acts {
                    signals.deliver(libc::SIGURG).unwrap();
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
            // SAFETY: SIG_IGN installs no handler function, and no other test uses this signal.
            let _ = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
            let comes = |signals: io::Result<Signals>| {
                let signals = signals.unwrap();
                // SAFETY: the calling thread exists, and the signal is ignored.
                assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
                signals.wait(Duration::ZERO).is_some()
            };
            assert!(!comes(Signals::block_termination()));
            assert!(comes(Signals::block(&Signals::TERMINATION)), "unless it is asked for");
        })
        .join()
        .unwrap();
    }
}
