//! The control server, a thread called `napkin-control`, which sleeps while there are no requests.
//!
//! It serves every client without ever waiting for one. A client has room for one request and one answer; it is
//! read from only while no answer is left to send. A client is dropped at a deadline, which sending or reading a
//! little at a time does not put off. One that goes on sending requests and reading answers may stay, until all
//! places are taken and another waits: then the oldest one has to go.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use super::answer;
use super::credentials::Peer;
use super::error::{Code, ControlError, Refusal};
use super::listener::Listener;
use super::message::{MAX_LINE, Reply};
use super::request::{self, ParseError};
use crate::Engine;

/// The number of clients that are served at a time. One more waits, and takes the place of the oldest once that has
/// had its [`MIN_SESSION`].
pub const MAX_CLIENTS: usize = 32;

/// Time that a client may take for a request, and then for its answer.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a client keeps its place while others wait for one. Enough for a request and its answer; without it,
/// many clients that come at once would push each other out before they are served.
pub const MIN_SESSION: Duration = Duration::from_millis(500);

/// Time without accepting connections after the operating system had no descriptor for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The control of an engine, until it is dropped. It keeps the engine running: drop this first.
#[derive(Debug)]
pub struct Control {
    listener: Arc<Listener>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    wake: OwnedFd,
}

impl Control {
    /// Listens at `path` for requests to `engine`. A socket that a killed process left there is
    /// replaced.
    ///
    /// # Errors
    /// If another engine listens there, or the socket cannot be made.
    pub fn start(engine: Arc<Engine>, path: &Path) -> Result<Control, ControlError> {
        let system = |source: io::Error| ControlError::system("start the control of", path, source);
        let listener = Arc::new(Listener::open(path)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system(errno.into()))?;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), wake });
        let server = Server {
            engine,
            listener: Arc::clone(&listener),
            stop: Arc::clone(&stop),
            clients: Vec::new(),
            paused_until: None,
        };
        let builder = std::thread::Builder::new().name("napkin-control".into());
        let thread = builder.spawn(move || server.run()).map_err(system)?;
        Ok(Control { listener, stop, thread: Some(thread) })
    }

    /// The path of its socket.
    pub fn path(&self) -> &Path {
        &self.listener.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        // The counter of an eventfd that is written once cannot overflow.
        let _ = rustix::io::write(&self.stop.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there would be nothing left to do.
            let _ = thread.join();
        }
    }
}

struct Server {
    engine: Arc<Engine>,
    listener: Arc<Listener>,
    stop: Arc<Stop>,
    /// In the order of their connection.
    clients: Vec<Client>,
    /// When connections may be accepted again.
    paused_until: Option<Instant>,
}

impl Server {
    fn run(mut self) {
        while !self.stop.asked.load(Ordering::Acquire) {
            let ready = self.wait();
            let now = Instant::now();
            self.paused_until = self.paused_until.filter(|until| *until > now);
            for (client, ready) in self.clients.iter_mut().zip(&ready.clients) {
                if *ready {
                    client.serve(&self.engine, now);
                }
            }
            self.clients.retain(|client| !client.closing && client.deadline > now);
            if ready.listener {
                self.accept(now);
            }
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> Ready {
        let full = self.full_until().filter(|until| *until > Instant::now());
        let accepting = full.is_none() && self.paused_until.is_none();
        let listening = if accepting { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(&self.stop.wake, PollFlags::IN),
            PollFd::new(&self.listener.socket, listening),
        ];
        fds.extend(self.clients.iter().map(Client::interest));
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let timeout = deadlines.chain(self.paused_until).chain(full).min().and_then(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Up to a whole millisecond more, so that the thread does not wake a moment too early.
            Timespec::try_from(left + Duration::from_millis(1)).ok()
        });
        // An error (a signal, no memory) is handled like a timeout: everything is checked again.
        let found = poll(&mut fds, timeout.as_ref()).is_ok();
        let mut ready = fds.iter().map(|fd| found && !fd.revents().is_empty());
        let (_, listener) = (ready.next(), ready.next());
        Ready { listener: accepting && listener.unwrap_or(false), clients: ready.collect() }
    }

    /// When the oldest client's turn ends, if all places are taken.
    fn full_until(&self) -> Option<Instant> {
        let oldest = self.clients.first().filter(|_| self.clients.len() >= MAX_CLIENTS);
        oldest.map(|client| client.connected_at + MIN_SESSION)
    }

    fn accept(&mut self, now: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while self.full_until().is_none_or(|until| until <= now) {
            match accept_with(&self.listener.socket, flags) {
                Ok(socket) => {
                    if self.clients.len() >= MAX_CLIENTS {
                        self.clients.remove(0);
                    }
                    self.clients.push(Client::new(socket, now));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(_) => {
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }
}

/// The sockets that are ready.
struct Ready {
    listener: bool,
    clients: Vec<bool>,
}

struct Client {
    socket: OwnedFd,
    /// Bytes received and not yet answered: at most a line and the byte after it.
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    connected_at: Instant,
    deadline: Instant,
    /// Whether to close the connection once the answer is sent.
    last: bool,
    /// Whether to close the connection.
    closing: bool,
}

impl Client {
    fn new(socket: OwnedFd, now: Instant) -> Client {
        let mut client = Client {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            connected_at: now,
            deadline: now + CLIENT_TIMEOUT,
            last: false,
            closing: false,
        };
        match Peer::of(&client.socket) {
            Ok(peer) if peer.may_control() => {}
            _ => client.dismiss(Refusal::new(
                Code::PERM,
                "this engine belongs to another user: become that user, or root",
            )),
        }
        client
    }

    fn interest(&self) -> PollFd<'_> {
        let flags = if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        PollFd::from_borrowed_fd(self.socket.as_fd(), flags)
    }

    /// Does what can be done without waiting.
    fn serve(&mut self, engine: &Engine, now: Instant) {
        if self.output.is_empty() {
            self.receive();
            self.answer(engine, now);
        }
        self.transmit(engine, now);
    }

    fn receive(&mut self) {
        let mut chunk = [0; MAX_LINE + 1];
        let room = (MAX_LINE + 1).saturating_sub(self.input.len());
        let Some(chunk) = chunk.get_mut(..room).filter(|chunk| !chunk.is_empty()) else { return };
        match recv(&self.socket, &mut *chunk, RecvFlags::empty()) {
            // An unfinished last line is not a request.
            Ok((0, _)) => self.closing = true,
            Ok((received, _)) => {
                self.input.extend_from_slice(chunk.get(..received).unwrap_or_default());
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.closing = true,
        }
    }

    /// Answers the first line that was received, if a whole one was.
    fn answer(&mut self, engine: &Engine, now: Instant) {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            if self.input.len() > MAX_LINE {
                let what = format!("the line is longer than {MAX_LINE} bytes");
                self.dismiss(Refusal::new(Code::MSGSIZE, what));
            }
            return;
        };
        let line: Vec<u8> = self.input.drain(..=end).collect();
        let asked = request::read(line.trim_ascii_end());
        match asked {
            Ok(asked) => self.output = Reply::line(answer::carry_out(engine, asked)),
            Err(ParseError::Refused(refusal)) => self.output = Reply::line(Err(refusal)),
            Err(ParseError::Malformed(refusal)) => self.dismiss(refusal),
        }
        self.deadline = now + CLIENT_TIMEOUT;
    }

    /// Answers with a refusal, after which the connection is closed.
    fn dismiss(&mut self, refusal: Refusal) {
        self.output = Reply::line(Err(refusal));
        self.last = true;
    }

    fn transmit(&mut self, engine: &Engine, now: Instant) {
        // Each turn answers one line of a bounded input, so this ends.
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.closing = true;
                    return;
                }
            }
            if self.sent >= self.output.len() {
                self.output.clear();
                self.sent = 0;
                self.closing |= self.last;
                if !self.closing {
                    // Bytes that came together with the line that was answered.
                    self.answer(engine, now);
                }
            }
        }
    }
}
