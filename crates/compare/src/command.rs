//! The user's own commands: one that measures and one that guards. Each is a process group of its own and is killed
//! as a whole.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use napkin_os::signals::Signals;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Most bytes of output that are kept; more cannot be a number.
const MOST_OUTPUT: usize = 4_096;

/// Most reads from a command's pipe per call, of [`MOST_OUTPUT`] bytes each.
const PARTS: usize = 256;

/// A command that prints a number, which replaces the server's own latency.
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// The command for `sh -c`; `NAPKIN_POLICY` and `NAPKIN_ROUND` are set in its environment.
    pub command: String,
    /// Whether a greater number is better.
    pub higher: bool,
    /// Time limit of the command.
    pub limit: Duration,
}

/// A running command. Dropping it kills its process group.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: Option<ChildStdout>,
    output: Vec<u8>,
    began: Instant,
    limit: Duration,
    /// Whether it was reaped; its pid may have been reused since.
    waited: bool,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The command ended by itself; with its output.
    Ended { status: ExitStatus, output: String },
    /// The command exceeded its time limit.
    Hung,
}

impl Running {
    /// Starts `sh -c COMMAND`. Its stdin is empty, and its stderr is inherited.
    pub(crate) fn start(
        command: &str,
        policy: &str,
        round: usize,
        limit: Duration,
        signals: &Signals,
    ) -> io::Result<Running> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped());
        shell.env("NAPKIN_POLICY", policy).env("NAPKIN_ROUND", (round + 1).to_string());
        shell.process_group(0);
        signals.restore_in(&mut shell);
        let mut child = shell.spawn()?;
        let stdout = child.stdout.take();
        let (output, began) = (Vec::new(), Instant::now());
        let running = Running { child, stdout, output, began, limit, waited: false };
        if let Some(pipe) = &running.stdout {
            // Non-blocking: a descendant may hold the write end open for ever.
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        Ok(running)
    }

    /// Returns the outcome if the command has ended or exceeded its limit.
    pub(crate) fn look(&mut self) -> io::Result<Option<Outcome>> {
        let id = WaitId::Pid(Pid::from_child(&self.child));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(id, options)?.is_some() {
            let status = self.end()?;
            self.take()?;
            let output = String::from_utf8_lossy(&self.output).into_owned();
            return Ok(Some(Outcome::Ended { status, output }));
        }
        self.take()?;
        Ok((self.began.elapsed() > self.limit).then_some(Outcome::Hung))
    }
}

impl Running {
    /// Drains the pipe so that the command never blocks on it. A pipe that descendants hold open never reaches its
    /// end; what has been read by then is the output.
    fn take(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.stdout else { return Ok(()) };
        let mut part = [0; MOST_OUTPUT];
        for _ in 0..PARTS {
            match pipe.read(&mut part) {
                Ok(0) => break,
                Ok(read) => {
                    let room = MOST_OUTPUT.saturating_sub(self.output.len());
                    self.output.extend(part.iter().take(read.min(room)));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Kills the process group and reaps the command, in this order: after it was reaped, its pid may be another's.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if !self.waited {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            self.waited = true;
        }
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Parses the number that a command printed.
///
/// # Errors
/// What the command did instead, as part of a sentence.
pub(crate) fn number(outcome: &Outcome, limit: Duration) -> Result<f64, String> {
    let (status, output) = match outcome {
        Outcome::Hung => return Err(format!("did not end within {} s", limit.as_secs_f64())),
        Outcome::Ended { status, output } => (status, output.trim()),
    };
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    match output.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        Ok(number) => {
            Err(format!("printed {number}, which has no ratio to another: print one above 0"))
        }
        Err(_) if output.is_empty() => Err("printed nothing: print one number".into()),
        Err(_) => {
            let shown: String = output.chars().take(60).collect();
            Err(format!("printed {shown:?}, which is no number: print one alone"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(command: &str) -> (bool, String) {
        let signals = Signals::block_termination().expect("they can be blocked");
        let limit = Duration::from_secs(60);
        let mut running = Running::start(command, "base", 0, limit, &signals).expect("it starts");
        loop {
            match running.look().expect("it can be looked at") {
                Some(Outcome::Ended { status, output }) => return (status.success(), output),
                Some(Outcome::Hung) => panic!("it hangs"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn a_command_that_prints_more_than_a_pipe_holds_ends_all_the_same() {
        let (well, output) = ended("yes | head -c 3000000");
        assert!(well && output.len() == MOST_OUTPUT, "{} bytes", output.len());
        assert_eq!(ended("echo 12"), (true, "12\n".into()));
    }
}
