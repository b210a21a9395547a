//! One thread of a client, on the operating system's sockets: sends what is due on its connections and reads the
//! answers.
//!
//! It uses one epoll for its sockets, a timer for its next deadline, and an eventfd through which the client's
//! handle wakes it. Between set-up and end it allocates nothing except the counts that it hands over at the end of
//! a window. [`Generator`] decides what is sent and when.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::config::{ClientWait, Config};
use super::connection::{Connection, open, reopen};
use super::error::ClientError;
use super::figures::{Tally, Trouble};
use super::generator::{Due, Generator, Streams};
use super::session::{Common, Phase};
use napkin_os::clock;

/// Maximum number of bytes per read.
const READ: usize = 64 * 1024;
/// Maximum number of events per wait.
const EVENTS: usize = 256;
/// Maximum number of due requests between two waits: a rate that the thread cannot keep up with must not keep it
/// from answers and commands.
const DUE_AT_ONCE: usize = 64;
/// The epoll data of the timer and the eventfd; sockets use their index.
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// The server is considered unstable after this many lost connections: the first number for each connection, plus
/// the second.
const LOSSES: (u64, u64) = (4, 16);

/// The commands of the handle to a thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Start to send; schedules begin at this time.
    Start(u64),
    /// Begin a window, and reply.
    Begin(Sender<()>),
    /// End the window, and reply with its counts.
    End(Sender<Box<Tally>>),
    Stop,
}

impl Command {
    /// Waits for the start command: returns the start time, or `None` if the thread is stopped before.
    pub(super) fn wait_for_start(commands: &Receiver<Command>) -> Option<u64> {
        loop {
            match commands.recv() {
                Ok(Command::Start(start)) => return Some(start),
                Ok(Command::Begin(_) | Command::End(_)) => {}
                // A dropped handle ends the thread as well.
                Ok(Command::Stop) | Err(_) => return None,
            }
        }
    }
}

/// A thread's state.
#[derive(Debug)]
pub(super) struct Worker {
    generator: Generator,
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer expires; `u64::MAX` if it is not armed.
    armed: u64,
    connections: Vec<Connection>,
    input: Box<[u8]>,
    output: Vec<u8>,
    /// Connections on which there is something to send.
    to_send: Vec<usize>,
    lost: u64,
}

impl Worker {
    /// Connects. `streams` has one entry for each of this thread's connections, with its number in the whole
    /// client.
    pub(super) fn connect(
        common: Arc<Common>,
        streams: Vec<(usize, Streams)>,
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> Result<Worker, ClientError> {
        let Config { address, answer_timeout, .. } = common.config;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ClientError::os("epoll_create1"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(ClientError::os("timerfd_create"))?;
        watch(&epoll, &timer, TIMER, EventFlags::IN)?;
        watch(&epoll, &*wake, WAKE, EventFlags::IN)?;
        let count = streams.len();
        let (mut connections, mut of_each) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (place, (number, streams)) in streams.into_iter().enumerate() {
            let socket = open(address, answer_timeout).map_err(|source| ClientError::Connect {
                address,
                number: number + 1,
                source,
            })?;
            watch(&epoll, &socket, place as u64, EventFlags::IN)?;
            connections.push(Connection { socket, watched_for_room: false });
            of_each.push(streams);
        }
        let output = Vec::with_capacity(common.records.longest_request());
        Ok(Worker {
            generator: Generator::new(common, of_each),
            commands,
            wake,
            epoll,
            timer,
            armed: u64::MAX,
            connections,
            input: vec![0; READ].into(),
            output,
            to_send: Vec::with_capacity(count),
            lost: 0,
        })
    }

    /// Waits for the start command, and runs until it is stopped.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        let Some(start) = Command::wait_for_start(&self.commands) else { return Ok(()) };
        self.begin(start)?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            self.send_due()?;
            self.wait(&mut events)?;
            let is_socket = |event: &epoll::Event| event.data.u64() < WAKE;
            // Only when no socket had an event: answers may have waited while this thread did not run.
            if !events.iter().any(is_socket) {
                self.generator.check_silence()?;
            }
            for event in &events {
                match event.data.u64() {
                    TIMER => self.armed = u64::MAX,
                    WAKE => {
                        if !self.handle_commands()? {
                            return Ok(());
                        }
                    }
                    place => self.handle(place as usize, event.flags)?,
                }
                // Processing an answer takes time, in which a request may have fallen due.
                self.send_due()?;
            }
        }
    }

    fn begin(&mut self, start: u64) -> Result<(), ClientError> {
        self.generator.begin(start);
        for place in 0..self.connections.len() {
            // In the closed loop; already sent if the answer to the handshake came meanwhile.
            if self.generator.phase(place) == Phase::Sending(0) {
                self.send(place)?;
            }
        }
        Ok(())
    }

    /// Sends the requests that are due, or puts them into the backlog of their connection.
    fn send_due(&mut self) -> Result<(), ClientError> {
        let time = clock::now();
        for _ in 0..DUE_AT_ONCE {
            match self.generator.take_due(time) {
                Due::Nothing => break,
                Due::Send(place) => self.send(place)?,
                Due::Late => {}
            }
        }
        Ok(())
    }

    /// Sends the rest of a connection's request.
    fn send(&mut self, place: usize) -> Result<(), ClientError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while self.generator.put(place, &mut self.output) {
            let taken = match send(&self.connections[place].socket, &self.output, flags) {
                Ok(bytes) => bytes,
                Err(Errno::INTR) => 0,
                Err(Errno::AGAIN) => return self.watch_for_room(place, true),
                Err(_) => return self.reconnect(place, Trouble::Failed),
            };
            // The rest is offered again: only a socket that takes nothing is full.
            self.generator.sent(place, taken, self.output.len());
        }
        self.watch_for_room(place, false)
    }

    fn watch_for_room(&mut self, place: usize, room: bool) -> Result<(), ClientError> {
        let connection = &mut self.connections[place];
        if connection.watched_for_room == room {
            return Ok(());
        }
        connection.watched_for_room = room;
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, room);
        let data = epoll::EventData::new_u64(place as u64);
        epoll::modify(&self.epoll, &connection.socket, data, flags)
            .map_err(ClientError::os("epoll_ctl"))
    }

    /// Handles an event of a socket. It may be a stale event of the socket that this one has replaced.
    fn handle(&mut self, place: usize, flags: EventFlags) -> Result<(), ClientError> {
        let room = flags.contains(EventFlags::OUT);
        if self.generator.phase(place) == Phase::Connecting {
            return self.connecting(place, room);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return self.read(place);
        }
        if room { self.send(place) } else { Ok(()) }
    }

    /// Reads what has arrived, at most one buffer full, so that a flood on one connection does not delay others.
    fn read(&mut self, place: usize) -> Result<(), ClientError> {
        let connection = &mut self.connections[place];
        let bytes = match recv(&connection.socket, &mut *self.input, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return self.reconnect(place, Trouble::Closed),
            Ok((bytes, _)) => &self.input[..bytes],
            // A stale event of the previous socket.
            Err(Errno::AGAIN | Errno::INTR) => return self.send(place),
            Err(_) => return self.reconnect(place, Trouble::Failed),
        };
        match self.generator.read(place, bytes) {
            // Sends the next request, or the rest of the current one.
            Ok(_) => self.send(place),
            Err(trouble) => self.reconnect(place, trouble),
        }
    }

    /// Closes a connection and starts to re-establish it.
    fn reconnect(&mut self, place: usize, trouble: Trouble) -> Result<(), ClientError> {
        let address = self.generator.common.config.address;
        self.generator.lost(place, trouble);
        self.lost += 1;
        if self.lost > LOSSES.0 * self.connections.len() as u64 + LOSSES.1 {
            let (times, last) = (self.lost, trouble.name());
            return Err(ClientError::Unstable { address, times, last });
        }
        let connection = &mut self.connections[place];
        // Closing the old socket removes it from the epoll.
        connection.socket =
            reopen(address).map_err(|source| ClientError::Dead { address, source })?;
        connection.watched_for_room = true;
        let flags = EventFlags::IN | EventFlags::OUT;
        watch(&self.epoll, &connection.socket, place as u64, flags)
    }

    /// Handles the end of a connection attempt.
    fn connecting(&mut self, place: usize, room: bool) -> Result<(), ClientError> {
        let address = self.generator.common.config.address;
        let met = sockopt::socket_error(&self.connections[place].socket).and_then(|met| met);
        met.map_err(|errno| ClientError::Dead { address, source: errno.into() })?;
        if !room {
            return Ok(());
        }
        self.watch_for_room(place, false)?;
        self.generator.reconnected(place);
        self.send(place)
    }

    /// Waits for the next event, at most until the next request is due.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        events.clear();
        let due = self.generator.next_due();
        let now = clock::now();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spins = self.generator.common.config.wait == ClientWait::Spin;
        let timeout = (spins || due <= now).then_some(&at_once);
        if timeout.is_none() {
            self.arm(due.min(self.generator.silence_deadline()))?;
        }
        match epoll::wait(&self.epoll, spare_capacity(events), timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(ClientError::os("epoll_wait")(errno)),
        }
    }

    /// Ensures that the timer expires at `time` or earlier. A timer that expires early is armed again, so a
    /// deadline that moves with every answer costs no system call for each.
    fn arm(&mut self, time: u64) -> Result<(), ClientError> {
        if self.armed <= time {
            return Ok(());
        }
        self.armed = time;
        let at = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: clock::timespec(time),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &at)
            .map(drop)
            .map_err(ClientError::os("timerfd_settime"))
    }

    /// Executes the commands of the handle; returns whether to go on.
    fn handle_commands(&mut self) -> Result<bool, ClientError> {
        // The eventfd only wakes the thread; the commands are in the channel.
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        loop {
            match self.commands.try_recv() {
                // The handle may no longer wait for the reply; that is ignored.
                Ok(Command::Begin(reply)) => {
                    self.generator.begin_window(|place| self.to_send.push(place));
                    let _ = reply.send(());
                }
                Ok(Command::End(reply)) => {
                    let _ = reply.send(self.generator.end_window(|place| self.to_send.push(place)));
                }
                Ok(Command::Start(_)) => {}
                Err(TryRecvError::Empty) => break,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
        while let Some(place) = self.to_send.pop() {
            self.send(place)?;
        }
        Ok(true)
    }
}

fn watch(
    epoll: &OwnedFd,
    source: impl AsFd,
    name: u64,
    flags: EventFlags,
) -> Result<(), ClientError> {
    epoll::add(epoll, source, epoll::EventData::new_u64(name), flags)
        .map_err(ClientError::os("epoll_ctl"))
}
