//! A client that floods: the operating system's `ping -f`.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::error::BenchError;
use crate::live::Trial;

/// Bytes after the ICMP header: the default of ping.
pub(crate) const PAYLOAD: usize = 56;

/// The operating system's ping, flooding.
#[derive(Debug)]
pub(crate) struct Ping(Option<Child>);

impl Ping {
    /// Floods an address from a CPU for as long as a run with these options takes, in the calling thread's network
    /// namespace.
    pub(crate) fn start(trial: Trial<'_>, cpu: usize, address: IpAddr) -> Result<Ping, BenchError> {
        let options = trial.options;
        // A deadline of its own ends ping even if this process dies.
        let seconds = (options.warm_up + options.window + Duration::from_secs(2)).as_secs() + 1;
        let mut command = Command::new("ping");
        command
            .args(["-f", "-q", "-s", &PAYLOAD.to_string(), "-w", &seconds.to_string()])
            .arg(address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        trial.interrupt.restore_in(&mut command);
        let child = command.spawn().map_err(|error| {
            BenchError::Ping(format!(
                "the real ping cannot be run: {error}; install it (Debian: iputils-ping), or \
                 flood without it, in the engine: --wire synthetic"
            ))
        })?;
        let ping = Ping(Some(child));
        if let Some(child) = &ping.0 {
            napkin_os::sched::pin(Some(child.id() as i32), &[cpu])?;
        }
        Ok(ping)
    }

    /// The process id; 0 after it was stopped.
    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Stops ping. If ping ended early, this is an error that quotes its standard error.
    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        let Some(mut child) = self.0.take() else { return Ok(()) };
        let proc = |error: std::io::Error| BenchError::Ping(format!("ping: {error}"));
        if child.try_wait().map_err(proc)?.is_some() {
            let output = child.wait_with_output().map_err(proc)?;
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(BenchError::Ping(format!("ping ended early: {words}")));
        }
        child.kill().map_err(proc)?;
        child.wait().map_err(proc)?;
        Ok(())
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
