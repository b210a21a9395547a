//! Orderly termination of a run by a signal.
//!
//! The first SIGINT, SIGTERM or SIGHUP is only recorded. A measurement sleeps on this condition variable, so it
//! wakes, abandons the current step and restores the system. Another signal a second or more later ends the process
//! and its children at once. An earlier one counts as the same request: a closing terminal sends several. A signal
//! that was ignored when the process began (`nohup`, a background job of a script) stays ignored.
//!
//! One thread waits for the signals, which all other threads block. So no signal handler runs, and no measured
//! thread is interrupted.

use std::io;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use napkin_kernel::process::Process;
use napkin_os::{signals::Signals, signals::end_by_signal};
use rustix::process::{Pid, Signal, getpid, kill_process};
use thiserror::Error;

/// Time after the first signal from which another signal ends the process at once.
const KILL_AFTER: Duration = Duration::from_secs(1);

/// The run was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Interrupted {
    /// The signal that requested it.
    pub signal: i32,
}

impl Interrupted {
    /// Returns the exit code of a process that this signal ended, in the shell's convention: 130 after Ctrl-C.
    pub fn exit_code(self) -> u8 {
        u8::try_from(self.signal).map_or(1, |signal| signal.saturating_add(128))
    }
}

/// The flag that asks a run to end. Clones share it; a default one is set only by [`Interrupt::note`].
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    received: Arc<(Mutex<Option<Interrupted>>, Condvar)>,
    signals: Option<Arc<Signals>>,
}

impl Interrupt {
    /// Records the signals that end a command, from now until the process ends. They are blocked in the calling
    /// thread and in the threads it creates, so this must precede the creation of any other thread.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn watch() -> io::Result<Interrupt> {
        let signals = Arc::new(Signals::block_termination()?);
        let interrupt = Interrupt { signals: Some(Arc::clone(&signals)), ..Interrupt::default() };
        let recorder = interrupt.clone();
        let watch = move || {
            let mut first = None;
            loop {
                let Some(received) = signals.wait(Duration::from_secs(3_600)) else { continue };
                recorder.note(received.signal);
                if first.get_or_insert_with(Instant::now).elapsed() >= KILL_AFTER {
                    kill_children();
                    end_by_signal(received.signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch)?;
        Ok(interrupt)
    }

    /// Records a signal, and returns whether it is the first.
    pub fn note(&self, signal: i32) -> bool {
        let mut received = self.received();
        let first = received.is_none();
        received.get_or_insert(Interrupted { signal });
        self.received.1.notify_all();
        first
    }

    fn received(&self) -> MutexGuard<'_, Option<Interrupted>> {
        self.received.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the flag.
    ///
    /// # Errors
    /// [`Interrupted`] if the run was asked to end.
    pub fn check(&self) -> Result<(), Interrupted> {
        self.received().map_or(Ok(()), Err)
    }

    /// Sleeps for that time.
    ///
    /// # Errors
    /// [`Interrupted`], without delay, when the run was or is asked to end.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let woken = self
            .received
            .1
            .wait_timeout_while(self.received(), time, |received| received.is_none());
        let (received, _) = woken.unwrap_or_else(PoisonError::into_inner);
        received.map_or(Ok(()), Err)
    }

    /// Makes a program start with the original signal mask instead of the blocked signals of this process.
    pub(crate) fn restore_in(&self, command: &mut Command) {
        if let Some(signals) = &self.signals {
            signals.restore_in(command);
        }
    }
}

/// Kills the child processes, which would otherwise outlive this one.
fn kill_children() {
    let own = Process::open(getpid().as_raw_pid());
    let children = own.and_then(|own| own.children()).unwrap_or_default();
    for child in children.into_iter().filter_map(Pid::from_raw) {
        // It may have exited already.
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
