//! One thread of a client: it sends what is due on its connections and reads the answers.
//!
//! One epoll for its sockets, the timer of its next deadline, and the wake-up by which the client's
//! handle talks to it. It allocates nothing between its set-up and its end but what it hands over
//! when a window ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use napkin_traffic::Rng;
use napkin_traffic::Schedule;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::answer::{Answer, Parser};
use super::backlog::Backlog;
use super::config::{ClientWait, Config};
use super::connection::{Connection, Phase, Streams, open, reopen};
use super::error::ClientError;
use super::figures::{Tally, Trouble};
use super::records::Records;
use napkin_os::clock;

/// Bytes read at once.
const READ: usize = 64 * 1024;
/// Events taken at once.
const EVENTS: usize = 256;
/// Requests that may fall due between two looks at the sockets: a rate that the thread cannot keep
/// up with must not keep it from answers and commands.
const DUE_AT_ONCE: usize = 64;
/// Requests that may fall due where a window begins or ends: what was due before belongs to the
/// window before, however late this thread is, but nobody shall wait for ever.
const CATCH_UP: usize = 1 << 20;
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

/// What all threads of a client share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) config: Config,
    pub(super) records: Records,
}

/// A thread's state.
#[derive(Debug)]
pub(super) struct Worker {
    common: Arc<Common>,
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer expires; `u64::MAX` if it is not armed.
    armed: u64,
    connections: Vec<Connection>,
    /// From which the schedules are drawn once the start is known.
    streams: Vec<Rng>,
    /// When requests are due on each connection; none in the closed loop.
    schedules: Vec<Schedule>,
    /// The next request of each schedule.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    backlog: Backlog,
    input: Box<[u8]>,
    output: Vec<u8>,
    tally: Tally,
    /// Connections that are not free.
    busy: usize,
    /// The last answer, or when a connection stopped being free while all were.
    quiet_since: u64,
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
        let Config { address, answer_timeout, connections: all, .. } = common.config;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ClientError::os("epoll_create1"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(ClientError::os("timerfd_create"))?;
        watch(&epoll, &timer, TIMER, EventFlags::IN)?;
        watch(&epoll, &*wake, WAKE, EventFlags::IN)?;
        let here = streams.len();
        let mut connections = Vec::with_capacity(here);
        let mut schedules = Vec::with_capacity(here);
        for (place, (number, streams)) in streams.into_iter().enumerate() {
            let socket = open(address, answer_timeout).map_err(|source| ClientError::Connect {
                address,
                number: number + 1,
                source,
            })?;
            watch(&epoll, &socket, place as u64, EventFlags::IN)?;
            connections.push(Connection::new(socket, streams.choice));
            schedules.push(streams.schedule);
        }
        let output = Vec::with_capacity(common.records.longest_request());
        Ok(Worker {
            common,
            commands,
            wake,
            epoll,
            timer,
            armed: u64::MAX,
            connections,
            streams: schedules,
            schedules: Vec::with_capacity(here),
            due: BinaryHeap::with_capacity(here),
            backlog: Backlog::new(here, all),
            input: vec![0; READ].into(),
            output,
            tally: Tally::default(),
            busy: 0,
            quiet_since: 0,
            lost: 0,
        })
    }

    /// Waits for the word to go, and runs until it is told to stop.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        // A handle that is gone has nothing more to say: that ends it as well.
        let start = loop {
            match self.commands.recv() {
                Ok(Command::Go(start)) => break start,
                Ok(Command::Begin(_) | Command::End(_)) => {}
                Ok(Command::Stop) | Err(_) => return Ok(()),
            }
        };
        self.begin(start)?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            self.send_due()?;
            self.wait(&mut events)?;
            let is_socket = |event: &epoll::Event| event.data.u64() < WAKE;
            // Only now: answers may have waited while this thread was kept from its CPU.
            if !events.iter().any(is_socket) {
                self.check_silence()?;
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
        self.tally.begin(start);
        self.quiet_since = start;
        let Some(mean) = self.common.config.mean_gap() else {
            for place in 0..self.connections.len() {
                // Under way already, if its answer came while others were asking.
                self.ask(place, clock::now())?;
            }
            return Ok(());
        };
        for (place, stream) in self.streams.drain(..).enumerate() {
            let schedule = Schedule::new(stream, mean, start);
            self.due.push(Reverse((schedule.due(), place)));
            self.schedules.push(schedule);
        }
        Ok(())
    }

    /// Sends what is due, or puts it into the backlog of its connection.
    fn send_due(&mut self) -> Result<(), ClientError> {
        self.send_due_by(clock::now(), DUE_AT_ONCE).map(drop)
    }

    /// The same with what was due at a time, and at most so many; says whether that was all.
    fn send_due_by(&mut self, time: u64, most: usize) -> Result<bool, ClientError> {
        for _ in 0..most {
            let Some(mut next) = self.due.peek_mut() else { return Ok(true) };
            let Reverse((due, place)) = *next;
            if due > time {
                return Ok(true);
            }
            let schedule = &mut self.schedules[place];
            schedule.advance();
            *next = Reverse((schedule.due(), place));
            drop(next);
            self.tally.counts.due += 1;
            if self.connections[place].phase == Phase::Free {
                self.tally.send_delay.record(clock::now().saturating_sub(due));
                self.ask(place, due)?;
            } else {
                self.tally.counts.late += 1;
                let room = self.backlog.push(place, due);
                self.tally.counts.abandoned += u64::from(!room);
            }
        }
        Ok(false)
    }

    /// Makes up a request on a free connection and sends it.
    fn ask(&mut self, place: usize, intended: u64) -> Result<(), ClientError> {
        let connection = &mut self.connections[place];
        let config = &self.common.config;
        connection.ask(self.common.records.len(), config.update, intended, clock::now());
        connection.phase = Phase::Sending(0);
        self.take_up();
        self.send(place)
    }

    /// A connection is free no longer.
    fn take_up(&mut self) {
        if self.busy == 0 {
            self.quiet_since = clock::now();
        }
        self.busy += 1;
    }

    /// Sends what is left of the request.
    fn send(&mut self, place: usize) -> Result<(), ClientError> {
        let connection = &mut self.connections[place];
        let Phase::Sending(mut sent) = connection.phase else { return Ok(()) };
        let request = connection.request;
        self.output.clear();
        if request.set {
            self.common.records.put_set(request.record, true, &mut self.output);
        } else {
            self.common.records.put_get(request.record, &mut self.output);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while sent < self.output.len() {
            match send(&connection.socket, &self.output[sent..], flags) {
                Ok(bytes) => sent += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    connection.phase = Phase::Sending(sent);
                    return self.watch_for_room(place, true);
                }
                Err(_) => return self.lose(place, Trouble::Failed),
            }
        }
        connection.phase = Phase::Waiting;
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
        if self.connections[place].phase == Phase::Connecting {
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
        let now = clock::now();
        if connection.phase == Phase::Free {
            return self.lose(place, Trouble::NotAsked);
        }
        let request = connection.request;
        let asked = self.common.records.asked(request.record, request.set);
        match connection.parser.feed(asked, bytes) {
            Ok((_, None)) => self.send(place),
            Ok((taken, Some(answer)))
                if taken == bytes.len() && connection.phase == Phase::Waiting =>
            {
                self.answered(place, answer, now)
            }
            // There is more, or it is the answer to a request that is not all sent.
            Ok(_) => self.lose(place, Trouble::NotAsked),
            Err(fault) => self.lose(place, Trouble::Fault(fault)),
        }
    }

    fn answered(&mut self, place: usize, answer: Answer, now: u64) -> Result<(), ClientError> {
        let connection = &mut self.connections[place];
        let request = connection.request;
        connection.phase = Phase::Free;
        self.busy -= 1;
        self.quiet_since = now;
        self.tally.latency.record(now.saturating_sub(request.intended));
        self.tally.from_sending.record(now.saturating_sub(request.sent));
        let counts = &mut self.tally.counts;
        *(if request.set { &mut counts.sets } else { &mut counts.gets }) += 1;
        match answer {
            Answer::Hit { bytes } => {
                counts.hits += 1;
                if bytes != self.common.records.value_size(request.record) {
                    counts.count(Trouble::WrongSize);
                }
            }
            Answer::Miss => counts.misses += 1,
            Answer::Refused(refusal) => counts.count(Trouble::Refused(refusal)),
            Answer::Stored | Answer::Version => {}
        }
        self.go_on(place, now)
    }

    /// What a connection that has become free does next.
    fn go_on(&mut self, place: usize, now: u64) -> Result<(), ClientError> {
        if self.schedules.is_empty() {
            return self.ask(place, now);
        }
        match self.backlog.pop(place) {
            Some(due) => self.ask(place, due),
            None => Ok(()),
        }
    }

    /// Gives a connection up and begins another in its place. A request outstanding is lost: it has
    /// no latency, and is in the counts by what ended it.
    fn lose(&mut self, place: usize, trouble: Trouble) -> Result<(), ClientError> {
        let address = self.common.config.address;
        self.tally.counts.count(trouble);
        self.lost += 1;
        if self.lost > LOSSES.0 * self.connections.len() as u64 + LOSSES.1 {
            let (times, last) = (self.lost, trouble.name());
            return Err(ClientError::Unstable { address, times, last });
        }
        if self.connections[place].phase == Phase::Free {
            self.take_up();
        }
        let connection = &mut self.connections[place];
        connection.phase = Phase::Connecting;
        connection.parser = Parser::default();
        // Closing the old one takes it out of the epoll.
        connection.socket =
            reopen(address).map_err(|source| ClientError::Dead { address, source })?;
        connection.watched_for_room = true;
        let flags = EventFlags::IN | EventFlags::OUT;
        watch(&self.epoll, &connection.socket, place as u64, flags)
    }

    /// A new connection was made, or could not be.
    fn connecting(&mut self, place: usize, room: bool) -> Result<(), ClientError> {
        let address = self.common.config.address;
        let connection = &mut self.connections[place];
        let met = sockopt::socket_error(&connection.socket).and_then(|met| met);
        met.map_err(|errno| ClientError::Dead { address, source: errno.into() })?;
        if !room {
            return Ok(());
        }
        connection.phase = Phase::Free;
        self.busy -= 1;
        self.tally.counts.reconnects += 1;
        self.watch_for_room(place, false)?;
        self.go_on(place, clock::now())
    }

    /// When the server counts as dead; `u64::MAX` while nothing is outstanding.
    fn patience(&self) -> u64 {
        match self.busy {
            0 => u64::MAX,
            _ => self.quiet_since.saturating_add(self.common.config.answer_timeout_ns()),
        }
    }

    fn check_silence(&self) -> Result<(), ClientError> {
        if clock::now() < self.patience() {
            return Ok(());
        }
        let Config { address, answer_timeout: timeout, .. } = self.common.config;
        Err(ClientError::Silent { address, timeout, outstanding: self.busy })
    }

    /// Waits for the next event, or for the next request to be due.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        events.clear();
        let due = self.due.peek().map_or(u64::MAX, |Reverse((due, _))| *due);
        let now = clock::now();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spins = self.common.config.wait == ClientWait::Spin;
        let timeout = (spins || due <= now).then_some(&at_once);
        if timeout.is_none() {
            self.arm(due.min(self.patience()))?;
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
                    let now = clock::now();
                    self.send_due_by(now, CATCH_UP)?;
                    self.tally.begin(now);
                    let _ = told.send(());
                }
                Ok(Command::End(told)) => {
                    let now = clock::now();
                    self.tally.counts.behind = !self.send_due_by(now, CATCH_UP)?;
                    let _ = told.send(self.end_window(now));
                }
                Ok(Command::Go(_)) => {}
                Err(TryRecvError::Empty) => return Ok(true),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn end_window(&mut self, now: u64) -> Box<Tally> {
        let counts = &mut self.tally.counts;
        counts.ended = now;
        counts.backlog = self.backlog.len();
        counts.outstanding = 0;
        let mut oldest = now;
        for (place, connection) in self.connections.iter().enumerate() {
            if matches!(connection.phase, Phase::Sending(_) | Phase::Waiting) {
                counts.outstanding += 1;
                oldest = oldest.min(connection.request.intended);
            }
            oldest = oldest.min(self.backlog.first(place).unwrap_or(now));
        }
        counts.longest_wait = now.saturating_sub(oldest);
        Box::new(self.tally.clone())
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
