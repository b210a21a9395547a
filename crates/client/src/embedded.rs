//! One thread of a client that brings its own network: a packet queue, and a stack above it.
//!
//! No interrupt thread and no engine: the thread polls its queue itself, without end where it has a CPU
//! of its own ([`ClientWait::Spin`]), or else sleeps until the queue interrupts. What it costs is its own
//! CPU's, and none of the server's. A connection that is lost ends the client: nothing is lost on a cable.

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

use super::asking::{Asking, Due, Streams};
use super::config::{Asks, ClientWait};
use super::error::ClientError;
use super::figures::Trouble;
use super::talk::{Common, Phase};
use super::worker::Command;

/// Frames that are polled, and segments that are looked at, before what is due.
const BATCH: usize = 64;
/// Requests that may fall due between two looks at the queue.
const DUE_AT_ONCE: usize = 64;
/// Handshakes under way at a time.
const HANDSHAKES: usize = 64;
/// Bytes read at once.
const READ: usize = 64 * 1_024;
/// Bytes of a connection's buffers for large requests and answers.
const LARGE: usize = 256 * 1_024;
/// What the stack calls the only queue.
const NAPI_ID: u32 = 1;

/// A network for a client of its own.
pub struct Host {
    /// A queue on the server's network, by which all of its frames come and go.
    pub queue: Box<dyn PacketQueue>,
    /// Who the client is there, and in which VLAN.
    pub addresses: Addresses,
    /// The first port of its connections; `None` for the same each time
    /// ([`TcpWorker::begin_ports_at`]).
    pub first_port: Option<u16>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// What the connections are served by.
struct Lines {
    asking: Asking,
    /// The place of each connection, by its port.
    places: HashMap<u16, usize>,
    opened: usize,
    /// Why a connection was lost.
    lost: Option<Trouble>,
    /// All of them are to end.
    closing: bool,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl TcpApplication for Lines {
    type State = usize;

    fn opened(&mut self, flow: Flow) -> usize {
        self.opened += 1;
        // Each was begun here.
        self.places.get(&flow.local.port()).copied().unwrap_or(0)
    }

    fn ready(&mut self, place: &mut usize, stream: &mut impl ByteStream, _: u64) {
        if self.closing {
            return stream.abort();
        }
        self.input.clear();
        while stream.receive(&mut self.input, READ) > 0 {
            if let Err(trouble) = self.asking.read(*place, &self.input) {
                self.lost = Some(trouble);
            }
            self.input.clear();
        }
        if stream.ended() || stream.is_closed() {
            self.lost = Some(Trouble::Closed);
        }
        while self.asking.put(*place, &mut self.output) {
            let taken = stream.send(&self.output);
            if self.asking.sent(*place, taken, self.output.len()) {
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
    lines: Lines,
    /// Each connection's flow, by its place.
    flows: Vec<Flow>,
    frames: Vec<Frame>,
}

impl EmbeddedWorker {
    /// A worker with its own stack, and its connections begun.
    pub(super) fn connect(
        host: Host,
        common: Arc<Common>,
        streams: Vec<Streams>,
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> Result<EmbeddedWorker, ClientError> {
        let server = common.config.address;
        let Host { queue, addresses, first_port } = host;
        let here = streams.len();
        let stack = Stack::new(addresses);
        let input = Input::new(Arc::clone(&stack), NAPI_ID, queue.transmitter());
        let buffers = match common.config.asks {
            // An operation of many segments is not to wait for the other side at each few of them.
            Asks::Disk(_) => TcpLimits {
                receive_buffer: u16::MAX.into(),
                send_buffer: LARGE,
                ..TcpLimits::DEFAULT
            },
            Asks::Records | Asks::Fill | Asks::Echo(_) => TcpLimits::DEFAULT,
        };
        let limits = TcpLimits { connections: here, half_open: here, ..buffers };
        // A new stack has no other worker.
        let tcp = stack.open_tcp(None, limits).map_err(io::Error::other);
        let mut tcp = tcp.map_err(|source| ClientError::Os { what: "opening TCP", source })?;
        first_port.into_iter().for_each(|port| tcp.begin_ports_at(port));
        let output = Vec::with_capacity(common.records.longest_request());
        let lines = Lines {
            asking: Asking::new(common, streams),
            places: HashMap::with_capacity(here),
            opened: 0,
            lost: None,
            closing: false,
            input: Vec::with_capacity(READ),
            output,
        };
        let frames = Vec::with_capacity(BATCH);
        let flows = Vec::with_capacity(here);
        let mut worker = EmbeddedWorker { commands, wake, queue, input, tcp, lines, flows, frames };
        let made = worker.reach(&stack, server).and_then(|()| worker.open(here, server));
        match made {
            Ok(()) => Ok(worker),
            Err(error) => {
                // Those that were made until then.
                worker.part();
                Err(error)
            }
        }
    }

    /// Learns the server's Ethernet address.
    fn reach(&mut self, stack: &Stack, server: SocketAddr) -> Result<(), ClientError> {
        /// How long an answer is waited for before it is asked again.
        const AGAIN: u64 = 100_000_000;
        let (deadline, mut again) = (self.deadline(), 0);
        while stack.neighbour(server.ip()).is_none() {
            let now = clock::now();
            if now >= again {
                // A queue that does not take it now may do so the next time.
                let _ = stack.resolve(server.ip(), now);
                again = now + AGAIN;
            }
            self.step(now);
            self.patient(deadline, 0)?;
            self.rest(again);
        }
        Ok(())
    }

    /// Opens the connections.
    fn open(&mut self, connections: usize, server: SocketAddr) -> Result<(), ClientError> {
        let deadline = self.deadline();
        while self.lines.opened < connections {
            while self.flows.len() < connections && self.tcp.half_open() < HANDSHAKES {
                let number = self.flows.len() + 1;
                let flow = self.tcp.connect(server, NAPI_ID).map_err(io::Error::other);
                let flow = flow.map_err(|source| self.not_made(number, source))?;
                self.lines.places.insert(flow.local.port(), self.flows.len());
                self.flows.push(flow);
            }
            self.step(clock::now());
            if self.tcp.connections() < self.flows.len() {
                let number = self.lines.opened + 1;
                return Err(self.not_made(number, io::ErrorKind::ConnectionRefused.into()));
            }
            self.patient(deadline, self.lines.opened)?;
            self.rest(deadline);
        }
        Ok(())
    }

    fn deadline(&self) -> u64 {
        clock::now().saturating_add(self.lines.asking.common.config.answer_timeout_ns())
    }

    fn not_made(&self, number: usize, source: io::Error) -> ClientError {
        ClientError::Connect { address: self.lines.asking.common.config.address, number, source }
    }

    /// # Errors
    /// Once the deadline of the set-up has passed, or its user has given up.
    fn patient(&self, deadline: u64, opened: usize) -> Result<(), ClientError> {
        match self.commands.try_recv() {
            Ok(_) | Err(TryRecvError::Disconnected) => Err(ClientError::Ended),
            Err(TryRecvError::Empty) if clock::now() < deadline => Ok(()),
            Err(TryRecvError::Empty) => {
                Err(self.not_made(opened + 1, io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Polls, delivers, and looks at what came and at what is to be sent. Whether there was anything.
    fn step(&mut self, now: u64) -> bool {
        self.queue.poll(BATCH as u16, now, &mut self.frames);
        let came = !self.frames.is_empty();
        self.input.deliver(&mut self.frames, now);
        self.tcp.step(now, BATCH, &mut self.lines) > 0 || came
    }

    /// Waits for the word to go, and runs until it is told to stop. No connection outlives it, however it ends.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        let ran = self.ask();
        self.part();
        ran
    }

    fn ask(&mut self) -> Result<(), ClientError> {
        let Some(start) = Command::go(&self.commands) else { return Ok(()) };
        self.lines.asking.begin(start);
        let asks = |place: &usize| self.lines.asking.phase(*place) == Phase::Sending(0);
        (0..self.flows.len()).filter(asks).for_each(|place| self.tcp.wake(self.flows[place]));
        while self.obey() {
            let now = clock::now();
            for _ in 0..DUE_AT_ONCE {
                match self.lines.asking.take_due(now) {
                    Due::Nothing => break,
                    Due::Send(place) => self.tcp.wake(self.flows[place]),
                    Due::Late => {}
                }
            }
            let came = self.step(now);
            if let Some(trouble) = self.lines.lost {
                let address = self.lines.asking.common.config.address;
                return Err(ClientError::Unstable { address, times: 1, last: trouble.name() });
            }
            if !came {
                // Only now: answers may have waited while this thread was kept from its CPU.
                self.lines.asking.check_silence()?;
                self.rest(self.lines.asking.next_due().min(self.lines.asking.patience()));
            }
        }
        Ok(())
    }

    /// Resets the connections, so that the server does not keep them for a client that has gone: another one
    /// at this address would have the same ports.
    fn part(&mut self) {
        self.lines.closing = true;
        self.flows.iter().for_each(|flow| self.tcp.wake(*flow));
        for _ in 0..self.flows.len().div_ceil(BATCH) + 1 {
            self.step(clock::now());
        }
    }

    /// Sleeps until a frame comes, a deadline, or a word of the handle; or does not, if it spins.
    fn rest(&mut self, deadline: u64) {
        if self.lines.asking.common.config.wait == ClientWait::Spin {
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
        // An error is as good as an early wake-up.
        let _ = poll(&mut watched, Some(&timeout));
        let [interrupted, woken] = [0, 1].map(|it: usize| !watched[it].revents().is_empty());
        if interrupted {
            self.queue.acknowledge();
        }
        if woken {
            // Before the channel is looked into, which has what is asked: left as it is it would wake for ever.
            let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        }
        self.queue.mask();
    }

    /// Does what the handle asks; says whether to go on.
    fn obey(&mut self) -> bool {
        loop {
            let send = |place: usize| self.tcp.wake(self.flows[place]);
            match self.commands.try_recv() {
                // Nobody may be waiting any more for an answer, which is no concern of this thread.
                Ok(Command::Begin(told)) => {
                    self.lines.asking.begin_window(send);
                    let _ = told.send(());
                }
                Ok(Command::End(told)) => {
                    let _ = told.send(self.lines.asking.end_window(send));
                }
                Ok(Command::Go(_)) => {}
                Err(TryRecvError::Empty) => return true,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}
