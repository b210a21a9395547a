//! Debian's memcached, unpatched, as a server to be measured: started, asked whether it listens, put
//! under a policy from outside.

use std::io::{self, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use napkin_linux::attach::{Attachment, EventKind, Plan};
use napkin_linux::{process_change::ProcessChange, process_change::Recorder};
use napkin_os::procfs::ThreadStat;
use napkin_os::sched;
use napkin_policy::Policy;

use crate::beside::OTHERS;
use crate::embedded::PORT;
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::linux::failed;
use crate::linux::pair::SERVER;

/// Longest that memcached may take to listen.
const START: Duration = Duration::from_secs(5);

/// Nothing is written down: what is changed is in a program of this run, and ends with it.
#[derive(Debug)]
pub(super) struct Ours;

impl Recorder for Ours {
    fn before(&mut self, _: &ProcessChange) -> io::Result<()> {
        Ok(())
    }

    fn finished(&mut self, _: i32, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A memcached of this run.
#[derive(Debug)]
pub(super) struct Program(Child);

impl Program {
    /// Starts it in the calling thread's network namespace on some CPUs, with so many workers.
    pub(super) fn start(
        cpus: &[usize],
        workers: u16,
        connections: usize,
        interrupt: &Interrupt,
    ) -> Result<Program, BenchError> {
        // A child runs where its parent did; this thread ends here.
        sched::pin(None, cpus)?;
        let mut command = Command::new("memcached");
        command.args(["-l", &SERVER.to_string(), "-p", &PORT.to_string(), "-U", "0"]);
        // The client's, with room for its filling of the store and its look whether we listen.
        let most = (connections + OTHERS).to_string();
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

    /// Waits until it listens; from the client's namespace.
    pub(super) fn listening(&mut self, interrupt: &Interrupt) -> Result<(), BenchError> {
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
                Err(_) => self.still_there()?,
            }
            interrupt.sleep(Duration::from_millis(5))?;
        }
    }

    /// Its process.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Puts it under the policy's epoll and socket part, as `napkin run` does. Its epoll descriptors
    /// are there before it listens.
    pub(super) fn attach(&self, policy: &Policy) -> Result<Attachment<Ours>, BenchError> {
        let plan = Plan::of(policy).map_err(|error| BenchError::Unsupported(error.to_string()))?;
        let mut attachment = Attachment::new(plan, Ours);
        let pid = i32::try_from(self.id()).map_err(failed)?;
        attachment.add(pid).map_err(failed)?;
        let events = attachment.look().events;
        let failure = events.into_iter().find(|it| matches!(it.kind, EventKind::Failed { .. }));
        match failure {
            None => Ok(attachment),
            Some(event) => Err(failed(event)),
        }
    }

    /// Its user time by now, in ticks of 10 ms.
    pub(super) fn user_ns(&self) -> Option<u64> {
        let pid = i32::try_from(self.id()).ok()?;
        ThreadStat::of_process(pid).map(|it| it.user_ns)
    }

    /// An early end of its own is an error, with its words.
    pub(super) fn still_there(&mut self) -> Result<(), BenchError> {
        match self.0.try_wait().map_err(failed)? {
            None => Ok(()),
            Some(status) => {
                let mut words = String::new();
                if let Some(pipe) = self.0.stderr.take() {
                    // Whatever it said; if nothing can be read, nothing is quoted.
                    let _ = pipe.take(1_000).read_to_string(&mut words);
                }
                Err(BenchError::Linux(format!("memcached ended ({status}): {}", words.trim())))
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
