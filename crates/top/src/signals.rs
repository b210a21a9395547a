//! Signals that ask to end, to stop for a while, or to redraw for another terminal size.
//!
//! The signals are blocked and read one by one, so that one `poll` waits for them, for keys and for the next
//! sample, and no handler ever runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    End,
    /// Stop until continued.
    Stop,
    /// Take the terminal again: while this process was stopped, another one set its own modes.
    Resumed,
    /// Redraw.
    Draw,
}

/// The signals, blocked in this thread and its later threads while this lives.
#[derive(Debug)]
pub(crate) struct Signals {
    signals: napkin_os::signals::Signals,
    readable: OwnedFd,
}

const SIGNALS: [(libc::c_int, Request); 7] = [
    (libc::SIGINT, Request::End),
    (libc::SIGTERM, Request::End),
    (libc::SIGHUP, Request::End),
    (libc::SIGQUIT, Request::End),
    (libc::SIGTSTP, Request::Stop),
    (libc::SIGCONT, Request::Resumed),
    (libc::SIGWINCH, Request::Draw),
];

impl Signals {
    pub(crate) fn open() -> io::Result<Signals> {
        let signals = napkin_os::signals::Signals::block(&SIGNALS.map(|(signal, _)| signal))?;
        let readable = signals.readable()?;
        Ok(Signals { signals, readable })
    }

    /// Stops this process and its group, like a job of a shell, and returns once it is continued. Returns at
    /// once if no process is left to continue it (in an orphaned group the kernel ignores the signal), or if
    /// the parent has set the signal to be ignored.
    pub(crate) fn stop(&self) -> io::Result<()> {
        rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
        self.signals.deliver(libc::SIGTSTP)
    }

    /// Returns the most urgent request of the pending signals.
    pub(crate) fn take_request(&self) -> Option<Request> {
        let mut asked = Vec::new();
        while let Some(received) = self.signals.wait(Duration::ZERO) {
            asked.extend(
                SIGNALS.iter().find(|(it, _)| *it == received.signal).map(|(_, asked)| *asked),
            );
        }
        [Request::End, Request::Stop, Request::Resumed, Request::Draw]
            .into_iter()
            .find(|it| asked.contains(it))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_and_does_not_kill() {
        // In a separate thread: the signal mask belongs to the thread, and these signals are sent to it alone.
        std::thread::spawn(|| {
            let signals = Signals::open().expect("a descriptor");
            let readable = || {
                let mut fds = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
                let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                rustix::event::poll(&mut fds, Some(&now)).expect("it is polled") == 1
            };
            assert_eq!((readable(), signals.take_request()), (false, None));
            let send = |signal| {
                // SAFETY: `raise` sends the signal to the calling thread, in which it is blocked.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
            };
            send(libc::SIGWINCH);
            assert_eq!((readable(), signals.take_request()), (true, Some(Request::Draw)));
            send(libc::SIGWINCH);
            send(libc::SIGCONT);
            assert_eq!(signals.take_request(), Some(Request::Resumed), "which draws as well");
            send(libc::SIGWINCH);
            send(libc::SIGTERM);
            assert_eq!(signals.take_request(), Some(Request::End), "the most urgent");
            assert_eq!((readable(), signals.take_request()), (false, None));
        })
        .join()
        .expect("it did not panic");
    }
}
