//! Being asked to end in the middle of a run.
//!
//! The first SIGINT, SIGTERM or SIGHUP is only noted: whoever measures waits here and not in a sleep, and
//! so gives up what is under way and puts everything back. Another that comes a second later, or more, ends
//! the process at once, and its programs with it; before that it is the same wish twice, as from a terminal
//! that is closed. A signal that was ignored when the process began (`nohup`, the background of a script)
//! stays so.
//!
//! A thread waits for the signals, which all others block: no handler runs, and no thread that is measured
//! is interrupted.

use std::io;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use napkin_kernel::process::Process;
use napkin_os::{signals::Signals, signals::die_by};
use rustix::process::{Pid, Signal, getpid, kill_process};
use thiserror::Error;

/// From the first signal to one that is meant to end what hangs.
const AGAIN: Duration = Duration::from_secs(1);

/// A run was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Interrupted {
    /// The signal that asked.
    pub signal: i32,
}

impl Interrupted {
    /// The exit code of a process that ends for it, as a shell gives it: 130 after Ctrl-C.
    pub fn exit_code(self) -> u8 {
        u8::try_from(self.signal).map_or(1, |signal| signal.saturating_add(128))
    }
}

/// Whether a run was asked to end. Clones are the same; the default is never asked.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    came: Arc<(Mutex<Option<Interrupted>>, Condvar)>,
    signals: Option<Arc<Signals>>,
}

impl Interrupt {
    /// Has the signals that end a command noted, from now on and until the process ends. They are blocked
    /// in the calling thread and in those that it makes, so this comes before any other thread.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn watch() -> io::Result<Interrupt> {
        let signals = Arc::new(Signals::block_ends()?);
        let interrupt = Interrupt { signals: Some(Arc::clone(&signals)), ..Interrupt::default() };
        let noted = interrupt.clone();
        let watch = move || {
            let mut first = None;
            loop {
                let Some(came) = signals.wait(Duration::from_secs(3_600)) else { continue };
                noted.note(came.signal);
                if first.get_or_insert_with(Instant::now).elapsed() >= AGAIN {
                    kill_children();
                    die_by(came.signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch)?;
        Ok(interrupt)
    }

    /// Notes that a signal asked; whether it is the first.
    pub fn note(&self, signal: i32) -> bool {
        let mut came = self.came();
        let first = came.is_none();
        came.get_or_insert(Interrupted { signal });
        self.came.1.notify_all();
        first
    }

    fn came(&self) -> MutexGuard<'_, Option<Interrupted>> {
        self.came.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks.
    ///
    /// # Errors
    /// [`Interrupted`] if the run was asked to end.
    pub fn check(&self) -> Result<(), Interrupted> {
        self.came().map_or(Ok(()), Err)
    }

    /// Sleeps for that long.
    ///
    /// # Errors
    /// [`Interrupted`], at once, if the run was or is asked to end.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let woken = self.came.1.wait_timeout_while(self.came(), time, |came| came.is_none());
        let (came, _) = woken.unwrap_or_else(PoisonError::into_inner);
        came.map_or(Ok(()), Err)
    }

    /// Has a program start with the signals as they were: what is blocked here is not blocked there.
    pub(crate) fn restore_in(&self, command: &mut Command) {
        if let Some(signals) = &self.signals {
            signals.restore_in(command);
        }
    }
}

/// Ends the programs of this process, which would outlive it.
fn kill_children() {
    let own = Process::open(getpid().as_raw_pid());
    let children = own.and_then(|own| own.children()).unwrap_or_default();
    for child in children.into_iter().filter_map(Pid::from_raw) {
        // It may have ended already.
        let _ = kill_process(child, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_is_woken_and_nobody_sleeps_afterwards() {
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.sleep(Duration::ZERO), Ok(()));
        let asked = interrupt.clone();
        let began = Instant::now();
        let sleeper = std::thread::spawn(move || asked.sleep(Duration::from_secs(600)));
        assert!(interrupt.note(15), "the first");
        assert!(!interrupt.note(2), "not the first");
        let interrupted = Interrupted { signal: 15 };
        assert_eq!(sleeper.join().unwrap(), Err(interrupted));
        assert_eq!(interrupt.sleep(Duration::from_secs(600)), Err(interrupted));
        assert_eq!(interrupt.check(), Err(interrupted));
        assert!(began.elapsed() < Duration::from_secs(600));
        assert_eq!((interrupted.exit_code(), Interrupted { signal: 2 }.exit_code()), (143, 130));
    }
}
