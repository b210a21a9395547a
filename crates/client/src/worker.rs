//! One thread of a client: it sends what is due on its connections and reads the answers.
//!
//! One epoll for its sockets, the timer of its next deadline, and the wake-up by which the client's
//! handle talks to it. It allocates nothing between its set-up and its end but what it hands over
//! when a window ends. What is asked, and when, is [`Asking`]'s.

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

use super::asking::{Asking, Due, Streams};
use super::config::{ClientWait, Config};
use super::connection::{Connection, open, reopen};
use super::error::ClientError;
use super::figures::{Tally, Trouble};
use super::talk::{Common, Phase};
use napkin_os::clock;

/// Bytes read at once.
const READ: usize = 64 * 1024;
/// Events taken at once.
const EVENTS: usize = 256;
/// Requests that may fall due between two looks at the sockets: a rate that the thread cannot keep
/// up with must not keep it from answers and commands.
const DUE_AT_ONCE: usize = 64;
/// The epoll's names of the timer and the wake-up; sockets are called by their place.
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// Connections that may be lost for each that there is, and some more, before the server is given
/// up.
const LOSSES: (u64, u64) = (4, 16);

/// What the handle asks of a thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Begin to send; schedules start at this time.
    Go(u64),
    /// Begin a window, and say so.
    Begin(Sender<()>),
    /// End it, and hand over the counts.
    End(Sender<Box<Tally>>),
    Stop,
}

impl Command {
    /// Waits for the word to go: when schedules start, or `None` if it is to stop before.
    pub(super) fn go(commands: &Receiver<Command>) -> Option<u64> {
        loop {
            match commands.recv() {
                Ok(Command::Go(start)) => return Some(start),
                Ok(Command::Begin(_) | Command::End(_)) => {}
                // A handle that is gone has nothing more to say: that ends it as well.
                Ok(Command::Stop) | Err(_) => return None,
            }
        }
    }
}

/// A thread's state.
#[derive(Debug)]
pub(super) struct Worker {
    asking: Asking,
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer expires; `u64::MAX` if it is not armed.
    armed: u64,
    connections: Vec<Connection>,
    input: Box<[u8]>,
    output: Vec<u8>,
    /// Connections on which something is to be sent.
    to_send: Vec<usize>,
    lost: u64,
}

impl Worker {
    /// Connects. `streams` has one entry for each of this thread's connections, with its number in
    /// the client.
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
        let here = streams.len();
        let (mut connections, mut of_each) = (Vec::with_capacity(here), Vec::with_capacity(here));
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
            asking: Asking::new(common, of_each),
            commands,
            wake,
            epoll,
            timer,
            armed: u64::MAX,
            connections,
            input: vec![0; READ].into(),
            output,
            to_send: Vec::with_capacity(here),
            lost: 0,
        })
    }

    /// Waits for the word to go, and runs until it is told to stop.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        let Some(start) = Command::go(&self.commands) else { return Ok(()) };
        self.begin(start)?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            self.send_due()?;
            self.wait(&mut events)?;
            let is_socket = |event: &epoll::Event| event.data.u64() < WAKE;
            // Only now: answers may have waited while this thread was kept from its CPU.
            if !events.iter().any(is_socket) {
                self.asking.check_silence()?;
            }
            for event in &events {
                match event.data.u64() {
                    TIMER => self.armed = u64::MAX,
                    WAKE => {
                        if !self.obey()? {
                            return Ok(());
                        }
                    }
                    place => self.handle(place as usize, event.flags)?,
                }
                // Answers take their time, and a request may have fallen due meanwhile.
                self.send_due()?;
            }
        }
    }

    fn begin(&mut self, start: u64) -> Result<(), ClientError> {
        self.asking.begin(start);
        for place in 0..self.connections.len() {
            // In the closed loop; under way already, if its answer came while others were asking.
            if self.asking.phase(place) == Phase::Sending(0) {
                self.send(place)?;
            }
        }
        Ok(())
    }

    /// Sends what is due, or puts it into the backlog of its connection.
    fn send_due(&mut self) -> Result<(), ClientError> {
        let time = clock::now();
        for _ in 0..DUE_AT_ONCE {
            match self.asking.take_due(time) {
                Due::Nothing => break,
                Due::Send(place) => self.send(place)?,
                Due::Late => {}
            }
        }
        Ok(())
    }

    /// Sends what is left of the request.
    fn send(&mut self, place: usize) -> Result<(), ClientError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while self.asking.put(place, &mut self.output) {
            let taken = match send(&self.connections[place].socket, &self.output, flags) {
                Ok(bytes) => bytes,
                Err(Errno::INTR) => 0,
                Err(Errno::AGAIN) => return self.watch_for_room(place, true),
                Err(_) => return self.lose(place, Trouble::Failed),
            };
            // What is left is tried again: only a socket that takes nothing says that it is full.
            self.asking.sent(place, taken, self.output.len());
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

    /// A socket has something to say. It may have been said by the one that it has replaced since.
    fn handle(&mut self, place: usize, flags: EventFlags) -> Result<(), ClientError> {
        let room = flags.contains(EventFlags::OUT);
        if self.asking.phase(place) == Phase::Connecting {
            return self.connecting(place, room);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return self.read(place);
        }
        if room { self.send(place) } else { Ok(()) }
    }

    /// Reads what has come, at most one buffer full: others shall not wait for a flood.
    fn read(&mut self, place: usize) -> Result<(), ClientError> {
        let connection = &mut self.connections[place];
        let bytes = match recv(&connection.socket, &mut *self.input, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return self.lose(place, Trouble::Closed),
            Ok((bytes, _)) => &self.input[..bytes],
            // The event was of the socket before.
            Err(Errno::AGAIN | Errno::INTR) => return self.send(place),
            Err(_) => return self.lose(place, Trouble::Failed),
        };
        match self.asking.read(place, bytes) {
            // The next request, or what is left of the last.
            Ok(_) => self.send(place),
            Err(trouble) => self.lose(place, trouble),
        }
    }

    /// Gives a connection up and begins another in its place.
    fn lose(&mut self, place: usize, trouble: Trouble) -> Result<(), ClientError> {
        let address = self.asking.common.config.address;
        self.asking.lost(place, trouble);
        self.lost += 1;
        if self.lost > LOSSES.0 * self.connections.len() as u64 + LOSSES.1 {
            let (times, last) = (self.lost, trouble.name());
            return Err(ClientError::Unstable { address, times, last });
        }
        let connection = &mut self.connections[place];
        // Closing the old one takes it out of the epoll.
        connection.socket =
            reopen(address).map_err(|source| ClientError::Dead { address, source })?;
        connection.watched_for_room = true;
        let flags = EventFlags::IN | EventFlags::OUT;
        watch(&self.epoll, &connection.socket, place as u64, flags)
    }

    /// A new connection was made, or could not be.
    fn connecting(&mut self, place: usize, room: bool) -> Result<(), ClientError> {
        let address = self.asking.common.config.address;
        let met = sockopt::socket_error(&self.connections[place].socket).and_then(|met| met);
        met.map_err(|errno| ClientError::Dead { address, source: errno.into() })?;
        if !room {
            return Ok(());
        }
        self.watch_for_room(place, false)?;
        self.asking.made_again(place);
        self.send(place)
    }

    /// Waits for the next event, or for the next request to be due.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        events.clear();
        let due = self.asking.next_due();
        let now = clock::now();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spins = self.asking.common.config.wait == ClientWait::Spin;
        let timeout = (spins || due <= now).then_some(&at_once);
        if timeout.is_none() {
            self.arm(due.min(self.asking.patience()))?;
        }
        match epoll::wait(&self.epoll, spare_capacity(events), timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(ClientError::os("epoll_wait")(errno)),
        }
    }

    /// Has the timer expire at a time or before: one that expires early is armed anew, and a
    /// deadline that moves away with every answer costs no call for each.
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

    /// Does what the handle asks; says whether to go on.
    fn obey(&mut self) -> Result<bool, ClientError> {
        // It only wakes: what is asked is in the channel.
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        loop {
            match self.commands.try_recv() {
                // Nobody may be waiting any more for an answer, which is no concern of this thread.
                Ok(Command::Begin(told)) => {
                    self.asking.begin_window(|place| self.to_send.push(place));
                    let _ = told.send(());
                }
                Ok(Command::End(told)) => {
                    let _ = told.send(self.asking.end_window(|place| self.to_send.push(place)));
                }
                Ok(Command::Go(_)) => {}
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
