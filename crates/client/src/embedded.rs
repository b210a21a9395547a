//! A client thread with its own network: a packet queue with a stack above it.
//!
//! There is no interrupt thread and no engine. The thread polls its queue itself: continuously if it has a CPU of
//! its own ([`ClientWait::Spin`]), or else it sleeps until the queue interrupts. Its cost falls on its own CPU and
//! not on the server's. A lost connection ends the client: a cable loses nothing.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use napkin_nic::{Frame, PacketQueue};
use napkin_os::clock;
use napkin_stack::{
    Addresses, ByteStream, Flow, Input, Stack, TcpApplication, TcpLimits, TcpWorker,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::config::{ClientWait, RequestKind};
use super::error::ClientError;
use super::figures::Trouble;
use super::generator::{Due, Generator, Streams};
use super::session::{Common, Phase};
use super::worker::Command;

/// Maximum number of frames per poll, and of segments per step.
const BATCH: usize = 64;
/// Maximum number of due requests between two polls.
const DUE_AT_ONCE: usize = 64;
/// Maximum number of handshakes in progress.
const HANDSHAKES: usize = 64;
/// Maximum number of bytes per read.
const READ: usize = 64 * 1_024;
/// Send buffer of a connection for large requests, in bytes.
const LARGE: usize = 256 * 1_024;
/// The NAPI id of the only queue.
const NAPI_ID: u32 = 1;

/// The network of an embedded client.
pub struct Host {
    /// A queue on the server's network, which carries all of the client's frames.
    pub queue: Box<dyn PacketQueue>,
    /// The client's addresses there, and its VLAN.
    pub addresses: Addresses,
    /// The local port of the first connection; `None` for the same ports in each run
    /// ([`TcpWorker::begin_ports_at`]).
    pub first_port: Option<u16>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The TCP application of the client's connections.
struct Application {
    generator: Generator,
    /// The index of each connection, by its local port.
    places: HashMap<u16, usize>,
    opened: usize,
    /// Why a connection was lost, if one was.
    lost: Option<Trouble>,
    /// Whether all connections are to be reset.
    closing: bool,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl TcpApplication for Application {
    type State = usize;

    fn opened(&mut self, flow: Flow) -> usize {
        self.opened += 1;
        // Every connection was opened from this side.
        self.places.get(&flow.local.port()).copied().unwrap_or(0)
    }

    fn ready(&mut self, place: &mut usize, stream: &mut impl ByteStream, _: u64) {
        if self.closing {
            return stream.abort();
        }
        self.input.clear();
        while stream.receive(&mut self.input, READ) > 0 {
            if let Err(trouble) = self.generator.read(*place, &self.input) {
                self.lost = Some(trouble);
            }
            self.input.clear();
        }
        if stream.ended() || stream.is_closed() {
            self.lost = Some(Trouble::Closed);
        }
        while self.generator.put(*place, &mut self.output) {
            let taken = stream.send(&self.output);
            if self.generator.sent(*place, taken, self.output.len()) {
                return;
            }
        }
    }
}

/// A thread's state.
pub(super) struct EmbeddedWorker {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    queue: Box<dyn PacketQueue>,
    input: Input,
    tcp: TcpWorker<usize>,
    application: Application,
    /// Each connection's flow, by its place.
    flows: Vec<Flow>,
    frames: Vec<Frame>,
}

impl EmbeddedWorker {
    /// Creates the worker with its own stack and establishes its connections.
    pub(super) fn connect(
        host: Host,
        common: Arc<Common>,
        streams: Vec<Streams>,
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> Result<EmbeddedWorker, ClientError> {
        let server = common.config.address;
        let Host { queue, addresses, first_port } = host;
        let connections = streams.len();
        let stack = Stack::new(addresses);
        let input = Input::new(Arc::clone(&stack), NAPI_ID, queue.transmitter());
        let buffers = match common.config.asks {
            // A large operation must not wait for the peer's window after every few segments.
            RequestKind::Disk(_) => TcpLimits {
                receive_buffer: u16::MAX.into(),
                send_buffer: LARGE,
                ..TcpLimits::DEFAULT
            },
            RequestKind::Records | RequestKind::Fill | RequestKind::Echo(_) => TcpLimits::DEFAULT,
        };
        let limits = TcpLimits { connections, half_open: connections, ..buffers };
        // Cannot be in use: a new stack has no other worker.
        let tcp = stack.open_tcp(None, limits).map_err(io::Error::other);
        let mut tcp = tcp.map_err(|source| ClientError::Os { what: "opening TCP", source })?;
        first_port.into_iter().for_each(|port| tcp.begin_ports_at(port));
        let output = Vec::with_capacity(common.records.longest_request());
        let application = Application {
            generator: Generator::new(common, streams),
            places: HashMap::with_capacity(connections),
            opened: 0,
            lost: None,
            closing: false,
            input: Vec::with_capacity(READ),
            output,
        };
        let frames = Vec::with_capacity(BATCH);
        let flows = Vec::with_capacity(connections);
        let mut worker =
            EmbeddedWorker { commands, wake, queue, input, tcp, application, flows, frames };
        let made =
            worker.resolve_server(&stack, server).and_then(|()| worker.open(connections, server));
        match made {
            Ok(()) => Ok(worker),
            Err(error) => {
                // Resets the connections that were established so far.
                worker.reset_all();
                Err(error)
            }
        }
    }

    /// Resolves the server's Ethernet address.
    fn resolve_server(&mut self, stack: &Stack, server: SocketAddr) -> Result<(), ClientError> {
        /// Interval between two requests, in nanoseconds.
        const AGAIN: u64 = 100_000_000;
        let (deadline, mut next_try) = (self.deadline(), 0);
        while stack.neighbour(server.ip()).is_none() {
            let now = clock::now();
            if now >= next_try {
                // A failure is ignored: the queue may take the next request.
                let _ = stack.resolve(server.ip(), now);
                next_try = now + AGAIN;
            }
            self.step(now);
            self.check_setup(deadline, 0)?;
            self.wait(next_try);
        }
        Ok(())
    }

    /// Opens the connections.
    fn open(&mut self, connections: usize, server: SocketAddr) -> Result<(), ClientError> {
        let deadline = self.deadline();
        while self.application.opened < connections {
            while self.flows.len() < connections && self.tcp.half_open() < HANDSHAKES {
                let number = self.flows.len() + 1;
                let flow = self.tcp.connect(server, NAPI_ID).map_err(io::Error::other);
                let flow = flow.map_err(|source| self.connect_error(number, source))?;
                self.application.places.insert(flow.local.port(), self.flows.len());
                self.flows.push(flow);
            }
            self.step(clock::now());
            if self.tcp.connections() < self.flows.len() {
                let number = self.application.opened + 1;
                return Err(self.connect_error(number, io::ErrorKind::ConnectionRefused.into()));
            }
            self.check_setup(deadline, self.application.opened)?;
            self.wait(deadline);
        }
        Ok(())
    }

    fn deadline(&self) -> u64 {
        clock::now().saturating_add(self.application.generator.common.config.answer_timeout_ns())
    }

    fn connect_error(&self, number: usize, source: io::Error) -> ClientError {
        ClientError::Connect {
            address: self.application.generator.common.config.address,
            number,
            source,
        }
    }

    /// Checks that the set-up may go on.
    ///
    /// # Errors
    /// If the deadline of the set-up has passed, or the caller has given up.
    fn check_setup(&self, deadline: u64, opened: usize) -> Result<(), ClientError> {
        match self.commands.try_recv() {
            Ok(_) | Err(TryRecvError::Disconnected) => Err(ClientError::Ended),
            Err(TryRecvError::Empty) if clock::now() < deadline => Ok(()),
            Err(TryRecvError::Empty) => {
                Err(self.connect_error(opened + 1, io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Polls, delivers, and processes segments and output. Returns whether there was anything.
    fn step(&mut self, now: u64) -> bool {
        self.queue.poll(BATCH as u16, now, &mut self.frames);
        let received = !self.frames.is_empty();
        self.input.deliver(&mut self.frames, now);
        self.tcp.step(now, BATCH, &mut self.application) > 0 || received
    }

    /// Waits for the start command, and runs until it is stopped. All connections are reset at the end, after an
    /// error too.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        let ran = self.ask();
        self.reset_all();
        ran
    }

    fn ask(&mut self) -> Result<(), ClientError> {
        let Some(start) = Command::wait_for_start(&self.commands) else { return Ok(()) };
        self.application.generator.begin(start);
        let asks = |place: &usize| self.application.generator.phase(*place) == Phase::Sending(0);
        (0..self.flows.len()).filter(asks).for_each(|place| self.tcp.wake(self.flows[place]));
        while self.handle_commands() {
            let now = clock::now();
            for _ in 0..DUE_AT_ONCE {
                match self.application.generator.take_due(now) {
                    Due::Nothing => break,
                    Due::Send(place) => self.tcp.wake(self.flows[place]),
                    Due::Late => {}
                }
            }
            let received = self.step(now);
            if let Some(trouble) = self.application.lost {
                let address = self.application.generator.common.config.address;
                return Err(ClientError::Unstable { address, times: 1, last: trouble.name() });
            }
            if !received {
                // Only when nothing came: answers may have waited while this thread did not run.
                self.application.generator.check_silence()?;
                self.wait(
                    self.application
                        .generator
                        .next_due()
                        .min(self.application.generator.silence_deadline()),
                );
            }
        }
        Ok(())
    }

    /// Resets the connections, so that the server does not keep them: a later client at this address would use the
    /// same ports.
    fn reset_all(&mut self) {
        self.application.closing = true;
        self.flows.iter().for_each(|flow| self.tcp.wake(*flow));
        for _ in 0..self.flows.len().div_ceil(BATCH) + 1 {
            self.step(clock::now());
        }
    }

    /// Sleeps until a frame, a deadline or a command; returns at once if the client spins.
    fn wait(&mut self, deadline: u64) {
        if self.application.generator.common.config.wait == ClientWait::Spin {
            return std::hint::spin_loop();
        }
        let now = clock::now();
        let deadline = deadline.min(self.tcp.next_deadline());
        if deadline <= now || self.queue.unmask(now) {
            return;
        }
        let timeout = clock::timespec(deadline - now);
        let interrupt = self.queue.interrupt();
        let mut watched =
            [PollFd::new(&interrupt, PollFlags::IN), PollFd::new(&*self.wake, PollFlags::IN)];
        // An error counts as an early wake-up.
        let _ = poll(&mut watched, Some(&timeout));
        let [interrupted, woken] = [0, 1].map(|it: usize| !watched[it].revents().is_empty());
        if interrupted {
            self.queue.acknowledge();
        }
        if woken {
            // Before the commands are read: an unread eventfd would wake the thread for ever.
            let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        }
        self.queue.mask();
    }

    /// Executes the commands of the handle; returns whether to go on.
    fn handle_commands(&mut self) -> bool {
        loop {
            let send = |place: usize| self.tcp.wake(self.flows[place]);
            match self.commands.try_recv() {
                // The handle may no longer wait for the reply; that is ignored.
                Ok(Command::Begin(reply)) => {
                    self.application.generator.begin_window(send);
                    let _ = reply.send(());
                }
                Ok(Command::End(reply)) => {
                    let _ = reply.send(self.application.generator.end_window(send));
                }
                Ok(Command::Start(_)) => {}
                Err(TryRecvError::Empty) => return true,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}
