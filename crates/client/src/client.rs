//! The handle of a client: starts it, measures in windows, stops it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_os::sched::pin;
use napkin_stack::EPHEMERAL_PORTS;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

use super::backlog;
use super::config::Config;
use super::embedded::{EmbeddedWorker, Host};
use super::error::ClientError;
use super::figures::ClientFigures;
use super::generator::Streams;
use super::session::Common;
use super::worker::{Command, Worker};
use napkin_os::clock;

/// Interval at which `stopped` is polled while threads connect.
const LOOK: Duration = Duration::from_millis(50);
/// Descriptors of a thread other than its connections.
const OF_A_THREAD: u64 = 3;
/// Descriptors reserved for the rest of the process.
const OF_OTHERS: u64 = 64;

/// A running client. Dropping it stops it.
#[derive(Debug)]
pub struct Client {
    common: Arc<Common>,
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    /// `None` once the thread was joined.
    thread: Option<JoinHandle<Result<(), ClientError>>>,
}

impl Client {
    /// Connects, and starts to send once all connections are established. The store should have been filled
    /// ([`populate()`](super::populate())) from the same [`Config`].
    ///
    /// # Errors
    /// An invalid value, a CPU that cannot be pinned to, a failed connection, too few descriptors.
    pub fn start(config: &Config) -> Result<Client, ClientError> {
        config.check()?;
        check_descriptors(config)?;
        let mut client = Client::new(config);
        let mut streams: Vec<Vec<_>> = vec![Vec::new(); config.threads];
        for (number, stream) in Streams::of(config.seed, config.connections).into_iter().enumerate()
        {
            streams[number % config.threads].push((number, stream));
        }
        let (ready, connected) = channel();
        for (number, streams) in streams.into_iter().enumerate() {
            client.spawn(number, ready.clone(), move |common, commands, wake| {
                let worker = Worker::connect(common, streams, commands, wake)?;
                Ok(move || worker.run())
            })?;
        }
        drop(ready);
        client.start_threads(&connected, &mut || false)
    }

    /// Starts a client on a network of its own instead of the operating system's sockets. It has one thread.
    ///
    /// # Errors
    /// As [`Client::start`]; also for more than one thread, and for more connections than there are
    /// [ports](EPHEMERAL_PORTS).
    pub fn embedded(config: &Config, host: Host) -> Result<Client, ClientError> {
        Client::embedded_unless(config, host, &mut || false)
    }

    /// As [`Client::embedded`], but gives up while it resolves the server's address or connects once `stopped`
    /// returns true; it is polled every 50 ms.
    ///
    /// # Errors
    /// As [`Client::embedded`]; [`ClientError::Ended`] if it was given up.
    pub fn embedded_unless(
        config: &Config,
        host: Host,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Client, ClientError> {
        config.check()?;
        if config.connections > EPHEMERAL_PORTS {
            return Err(ClientError::Config(format!(
                "connections of a client on a queue of its own: 1 to {EPHEMERAL_PORTS}, not {}",
                config.connections
            )));
        }
        if config.threads != 1 {
            return Err(ClientError::Config(format!(
                "a client on a queue of its own has one thread, not {}",
                config.threads
            )));
        }
        let mut client = Client::new(config);
        let streams = Streams::of(config.seed, config.connections);
        let (ready, connected) = channel();
        client.spawn(0, ready, move |common, commands, wake| {
            let worker = EmbeddedWorker::connect(host, common, streams, commands, wake)?;
            Ok(move || worker.run())
        })?;
        client.start_threads(&connected, stopped)
    }

    fn new(config: &Config) -> Client {
        let common = Arc::new(Common::new(config.clone()));
        Client { common, threads: Vec::with_capacity(config.threads) }
    }

    /// Starts the threads once all are connected, unless `stopped` ends it before.
    fn start_threads(
        mut self,
        connected: &Receiver<bool>,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Client, ClientError> {
        let mut results = Vec::with_capacity(self.threads.len());
        // Waits for all threads, so that none is left half connected when the first error is returned.
        loop {
            match connected.recv_timeout(LOOK) {
                Ok(went_well) => results.push(went_well),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if stopped() => return Err(ClientError::Ended),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        if results.len() != self.threads.len() || results.contains(&false) {
            return Err(self.end().err().unwrap_or(ClientError::Panicked));
        }
        let start = clock::now();
        self.send_to_all(|| Command::Start(start));
        Ok(self)
    }

    /// Spawns a thread that connects, reports whether that succeeded, and runs.
    fn spawn<R: FnOnce() -> Result<(), ClientError>>(
        &mut self,
        number: usize,
        ready: Sender<bool>,
        connect: impl FnOnce(Arc<Common>, Receiver<Command>, Arc<OwnedFd>) -> Result<R, ClientError>
        + Send
        + 'static,
    ) -> Result<(), ClientError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(ClientError::os("eventfd"))?;
        let wake = Arc::new(wake);
        let (commands, receiver) = channel();
        let (common, wakes) = (Arc::clone(&self.common), Arc::clone(&wake));
        let run = move || {
            let cpus = &common.config.cpus.0;
            let cpu = cpus.get(number % cpus.len().max(1)).copied();
            let connected = pin(None, cpu.as_slice())
                .map_err(ClientError::from)
                .and_then(|()| connect(common, receiver, wakes));
            // A send error means that the caller has given up and dropped the receiver, and the commands.
            let _ = ready.send(connected.is_ok());
            drop(ready);
            connected?()
        };
        let thread = std::thread::Builder::new()
            .name(format!("client/{number}"))
            .spawn(run)
            .map_err(|source| ClientError::Os { what: "starting a thread", source })?;
        self.threads.push(Thread { commands, wake, thread: Some(thread) });
        Ok(())
    }

    /// Whether every thread is running. If not, the next call returns the reason.
    pub fn is_running(&self) -> bool {
        let runs = |thread: &Thread| thread.thread.as_ref().is_some_and(|it| !it.is_finished());
        self.threads.iter().all(runs)
    }

    /// Begins a window: clears all counts.
    ///
    /// # Errors
    /// The error that ended a thread, most often a dead server. The client has ended then.
    pub fn begin_window(&mut self) -> Result<(), ClientError> {
        self.ask_all(Command::Begin).map(drop)
    }

    /// The counts since the window began; the first window begins with the client. Counting goes on until the next
    /// window begins.
    ///
    /// # Errors
    /// The error that ended a thread, most often a dead server. The client has ended then.
    pub fn end_window(&mut self) -> Result<ClientFigures, ClientError> {
        let tallies = self.ask_all(Command::End)?;
        let config = &self.common.config;
        Ok(ClientFigures::of(&tallies, config, backlog::bound(config.connections)))
    }

    /// Closes all connections.
    ///
    /// # Errors
    /// The error that ended a thread before.
    pub fn stop(mut self) -> Result<(), ClientError> {
        self.end()
    }

    fn send_to_all(&self, command: impl Fn() -> Command) {
        for thread in &self.threads {
            thread.send_command(command());
        }
    }

    /// Sends the command to all threads before it waits for any answer, so that their windows begin and end
    /// together.
    fn ask_all<T>(&mut self, command: fn(Sender<T>) -> Command) -> Result<Vec<T>, ClientError> {
        let ask = |thread: &Thread| -> Receiver<T> {
            let (reply, answer) = channel();
            thread.send_command(command(reply));
            answer
        };
        let answers: Vec<_> = self.threads.iter().map(ask).collect();
        let answers: Option<Vec<T>> = answers.iter().map(|answer| answer.recv().ok()).collect();
        // A thread that did not answer has ended.
        answers.ok_or_else(|| self.end().err().unwrap_or(ClientError::Ended))
    }

    /// Ends all threads. The first error is returned, by the first call only.
    fn end(&mut self) -> Result<(), ClientError> {
        self.send_to_all(|| Command::Stop);
        let mut ended = Ok(());
        for thread in &mut self.threads {
            let Some(handle) = thread.thread.take() else { continue };
            let result = handle.join().unwrap_or(Err(ClientError::Panicked));
            ended = ended.and(result);
        }
        ended
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // There is no caller left to report an error to.
        let _ = self.end();
    }
}

impl Thread {
    fn send_command(&self, command: Command) {
        // Fails if the thread has ended, which the reply channel shows.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

fn check_descriptors(config: &Config) -> Result<(), ClientError> {
    let (connections, threads) = (config.connections as u64, config.threads as u64);
    let needed = connections + threads * OF_A_THREAD + OF_OTHERS;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(ClientError::Descriptors { needed, limit }),
        _ => Ok(()),
    }
}
