//! Debian's unpatched memcached as a server under test: starting it, waiting until it listens, and applying a
//! policy from outside.

use std::io::{self, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use napkin_linux::attach::{Attachment, EventKind, Plan};
use napkin_linux::{process_change::ProcessChange, process_change::Recorder};
use napkin_os::procfs::ThreadStat;
use napkin_os::sched;
use napkin_policy::Policy;

use crate::embedded::PORT;
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::linux::failed;
use crate::linux::pair::SERVER;
use crate::os_server::EXTRA_CONNECTIONS;

/// The longest time that memcached may take to listen.
const START: Duration = Duration::from_secs(5);

/// A recorder that records nothing: the changes are inside a program of this run, and end with it.
#[derive(Debug)]
pub(super) struct NoRecorder;

impl Recorder for NoRecorder {
    fn before(&mut self, _: &ProcessChange) -> io::Result<()> {
        Ok(())
    }

    fn finished(&mut self, _: i32, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The memcached process of a run.
#[derive(Debug)]
pub(super) struct Program(Child);

impl Program {
    /// Starts memcached in the calling thread's network namespace, on these CPUs, with so many workers.
    pub(super) fn start(
        cpus: &[usize],
        workers: u16,
        connections: usize,
        interrupt: &Interrupt,
    ) -> Result<Program, BenchError> {
        // A child inherits its parent's affinity. This thread ends after the start, so its own affinity does not
        // matter.
        sched::pin(None, cpus)?;
        let mut command = Command::new("memcached");
        command.args(["-l", &SERVER.to_string(), "-p", &PORT.to_string(), "-U", "0"]);
        // The client's connections, and some for filling the store and for the check whether memcached listens.
        let most = (connections + EXTRA_CONNECTIONS).to_string();
        command.args(["-t", &workers.to_string(), "-m", "256", "-c", &most]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        interrupt.restore_in(&mut command);
        let child = command.spawn().map_err(|error| {
            BenchError::Linux(format!(
                "memcached cannot be run: {error}; install it (Debian: memcached), or model it: \
                 --world machine"
            ))
        })?;
        Ok(Program(child))
    }

    /// Waits until memcached listens. Must run in the client's namespace.
    pub(super) fn wait_until_listening(&mut self, interrupt: &Interrupt) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            match TcpStream::connect((SERVER, PORT)) {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > START => {
                    return Err(BenchError::Linux(format!(
                        "memcached does not answer within {} s: {error}",
                        START.as_secs()
                    )));
                }
                Err(_) => self.check_running()?,
            }
            interrupt.sleep(Duration::from_millis(5))?;
        }
    }

    /// Its process ID.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Applies the policy's epoll and socket parts from outside, as `napkin run` does. memcached creates its epoll
    /// descriptors before it listens.
    pub(super) fn attach(&self, policy: &Policy) -> Result<Attachment<NoRecorder>, BenchError> {
        let plan = Plan::of(policy).map_err(|error| BenchError::Unsupported(error.to_string()))?;
        let mut attachment = Attachment::new(plan, NoRecorder);
        let pid = i32::try_from(self.id()).map_err(failed)?;
        attachment.add(pid).map_err(failed)?;
        let events = attachment.scan().events;
        let failure = events.into_iter().find(|it| matches!(it.kind, EventKind::Failed { .. }));
        match failure {
            None => Ok(attachment),
            Some(event) => Err(failed(event)),
        }
    }

    /// Returns its user time so far, which the kernel counts in ticks of 10 ms.
    pub(super) fn user_ns(&self) -> Option<u64> {
        let pid = i32::try_from(self.id()).ok()?;
        ThreadStat::of_process(pid).map(|it| it.user_ns)
    }

    /// Returns an error with memcached's messages if it has exited.
    pub(super) fn check_running(&mut self) -> Result<(), BenchError> {
        match self.0.try_wait().map_err(failed)? {
            None => Ok(()),
            Some(status) => {
                let mut words = String::new();
                if let Some(pipe) = self.0.stderr.take() {
                    // If its messages cannot be read, nothing is quoted.
                    let _ = pipe.take(1_000).read_to_string(&mut words);
                }
                Err(BenchError::Linux(format!("memcached ended ({status}): {}", words.trim())))
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
