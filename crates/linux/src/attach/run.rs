//! Runs a program under a policy from start to exit, and holds running processes under one for a given time.

use std::ffi::OsStr;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, pidfd_send_signal, set_child_subreaper,
    wait,
};
use thiserror::Error;

use super::attachment::Attachment;
use super::event::Event;
use super::forwarding::{Forwarding, Reached};
use crate::process_change::Recorder;
use napkin_os::signals::{ReceivedSignal, Signals};

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Why a program was not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// No program has this name.
    #[error("there is no program {program}, or not the interpreter that it names")]
    NotFound {
        /// The program as it was given.
        program: String,
    },
    /// The file exists and cannot be executed.
    #[error("{program} cannot be executed: {source}")]
    NotExecutable {
        /// The program as it was given.
        program: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Any other system call failed.
    #[error("{what} failed: {source}")]
    System {
        /// The operation that failed, as part of the sentence.
        what: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl RunError {
    /// The exit code that shells and `env` use for this error: 127, 126, or 125 if the program is not at
    /// fault.
    pub const fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound { .. } => 127,
            RunError::NotExecutable { .. } => 126,
            RunError::System { .. } => 125,
        }
    }
}

/// What [`run()`] reports while a program runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunEvent<'a> {
    /// Something happened to a process.
    Event(&'a Event),
    /// The program has ended, and this many processes that it started have not.
    Remaining(usize),
}

/// Why [`keep`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All processes have ended.
    Processes,
    /// The time limit has passed.
    Time,
    /// This signal asked for the end.
    Signal(i32),
}

/// Starts a program and keeps it and all its descendants under a policy until the last of them has ended.
/// Passes on signals that reached only this process, and returns how the program itself ended. Puts nothing
/// back: the settings ended with the processes.
///
/// `signals` are [`Signals::FORWARDED`]; block them before changing anything that has to be put back afterwards.
/// While the program runs, this process is a subreaper: a daemon whose parent ended becomes its child. It
/// must have no other children.
///
/// # Errors
/// If the program cannot be started.
pub fn run<R: Recorder>(
    command: &mut Command,
    attachment: &mut Attachment<R>,
    signals: &Signals,
    on_event: &mut dyn FnMut(RunEvent<'_>),
) -> Result<Exit, RunError> {
    set_child_subreaper(Pid::from_raw(1))
        .map_err(|errno| RunError::System { what: "becoming a subreaper", source: errno.into() })?;
    attachment.add_own_children();
    signals.restore_in(command);
    if let Some(files) = attachment.open_files() {
        files.restore_in(command);
    }
    let child = command.spawn().map_err(|source| unstartable(command.get_program(), source))?;
    let program = Pid::from_child(&child);
    // Started after the program, so that the program is this process's first child, and that a witness
    // inherits nothing that the program lacks.
    let mut forwarding = Forwarding::new(signals);
    attachment.exclude(forwarding.pids().collect());
    let mut exit = None;
    let mut reported_remaining = false;
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            let look = attachment.scan();
            look.events.iter().for_each(|event| on_event(RunEvent::Event(event)));
            next = Instant::now() + look.wait;
        }
        match reap(program, &mut exit) {
            Children::None => break,
            Children::Some if exit.is_some() && !reported_remaining => {
                reported_remaining = true;
                // Scan again, so that processes that have ended since are not counted.
                let look = attachment.scan();
                look.events.iter().for_each(|event| on_event(RunEvent::Event(event)));
                next = Instant::now() + look.wait;
                if attachment.processes() > 0 {
                    on_event(RunEvent::Remaining(attachment.processes()));
                }
            }
            Children::Some => {}
        }
        let until = forwarding.next().map_or(next, |decision| decision.min(next));
        let mut next_one = signals.wait(until.saturating_duration_since(Instant::now()));
        while let Some(received) = next_one {
            if received.signal != libc::SIGCHLD {
                forwarding.hold(received, Instant::now());
            }
            next_one = signals.wait(Duration::ZERO);
        }
        for (received, reached) in forwarding.decide(Instant::now()) {
            pass_on(received, reached, program, exit.is_some(), attachment);
        }
    }
    let look = attachment.scan();
    look.events.iter().for_each(|event| on_event(RunEvent::Event(event)));
    exit.ok_or_else(|| RunError::System {
        what: "waiting for the program",
        source: io::Error::other("its exit status was lost"),
    })
}

/// Keeps the added processes under a policy until they end, the time limit passes, or a signal asks for the
/// end. Puts nothing back. `signals` are those of [`Signals::block_termination_and_stop`]: a stop signal does not
/// end the run; `stopped` is called for the first one.
pub fn keep<R: Recorder>(
    attachment: &mut Attachment<R>,
    limit: Option<Duration>,
    signals: &Signals,
    on_event: &mut dyn FnMut(&Event),
    stopped: &mut dyn FnMut(),
) -> Ended {
    let mut reported_stop = false;
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let look = attachment.scan();
        look.events.iter().for_each(&mut *on_event);
        if attachment.processes() == 0 {
            return Ended::Processes;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ended::Time;
        }
        let wait = left.map_or(look.wait, |left| left.min(look.wait));
        match signals.wait(wait).map(|received| received.signal) {
            Some(Signals::STOP) if reported_stop => {}
            Some(Signals::STOP) => {
                reported_stop = true;
                stopped();
            }
            Some(signal) => return Ended::Signal(signal),
            None => {}
        }
    }
}

fn unstartable(program: &OsStr, source: io::Error) -> RunError {
    let program = program.to_string_lossy().into_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::NOENT) => RunError::NotFound { program },
        Some(
            Errno::ACCESS
            | Errno::PERM
            | Errno::NOEXEC
            | Errno::ISDIR
            | Errno::NOTDIR
            | Errno::TXTBSY
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::TOOBIG,
        ) => RunError::NotExecutable { program, source },
        _ => RunError::System { what: "starting the program", source },
    }
}

/// Whether there are children, ended or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Children {
    Some,
    None,
}

/// Reaps children, and records the exit of the program itself in `exit`.
fn reap(program: Pid, exit: &mut Option<Exit>) -> Children {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(None) => return Children::Some,
            Ok(Some((pid, status))) if pid == program => match ended(status) {
                Some(ended) => *exit = Some(ended),
                None => stop_with(status),
            },
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(_) => return Children::None,
        }
    }
}

fn ended(status: WaitStatus) -> Option<Exit> {
    let code = status.exit_status().map(Exit::Code);
    code.or_else(|| status.terminating_signal().map(Exit::Signal))
}

/// Stops this process if the terminal stopped the program, so that the shell gets the terminal back; the
/// shell's `fg` continues both.
fn stop_with(status: WaitStatus) {
    let terminal = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    if status.stopping_signal().is_some_and(|signal| terminal.contains(&signal)) {
        let _ = kill_process(rustix::process::getpid(), Signal::STOP);
    }
}

/// Passes a signal on to the program or, once it has ended, to the remaining processes. Skips those that the
/// signal has already reached.
fn pass_on<R: Recorder>(
    received: ReceivedSignal,
    reached: Reached,
    program: Pid,
    ended: bool,
    attachment: &Attachment<R>,
) {
    let Some(signal) = Signal::from_named_raw(received.signal) else { return };
    if !ended {
        // The program has not been reaped yet, so its process ID cannot have been reused.
        if !reached.has(program) {
            let _ = kill_process(program, signal);
        }
        return;
    }
    for process in attachment.attached() {
        if Pid::from_raw(process.pid()).is_some_and(|pid| !reached.has(pid)) {
            // Signal by pidfd: the process ID may have been reused.
            let _ = pidfd_send_signal(process.pidfd(), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_started_has_the_shell_s_code() {
        let code = |error| unstartable(OsStr::new("x"), io::Error::from(error)).exit_code();
        assert_eq!(code(Errno::NOENT), 127);
        assert_eq!(code(Errno::ACCESS), 126);
        assert_eq!(code(Errno::NOEXEC), 126);
        assert_eq!(code(Errno::NOMEM), 125);
    }
}
