//! The request logic of one client thread: what to send, on which connection and when, and the accounting of
//! answers. It has no sockets.
//!
//! Each connection has at most one outstanding request. The owner of the sockets asks for what is due
//! ([`Generator::take_due`]), sends the bytes ([`Generator::put`]) and passes on received bytes ([`Generator::read`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use napkin_os::clock;
use napkin_traffic::{Rng, Schedule};

use super::answer::Answer;
use super::backlog::Backlog;
use super::config::{Config, RequestKind};
use super::error::ClientError;
use super::figures::{Tally, Trouble};
use super::session::{Common, Phase, Session};

/// Most requests that are taken at a window's beginning or end. What fell due before belongs to the earlier window,
/// however late the thread is, but the caller must not wait for ever.
const CATCH_UP: usize = 1 << 20;
/// In nanoseconds: a request that was due this long before the end of a window, and was still not taken, was
/// delayed by this thread. A shorter delay is the normal interval between two calls.
const LAG: u64 = 1_000_000;

/// The random number streams of one connection.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    /// For the schedule.
    pub(super) schedule: Rng,
    /// For the choice of requests.
    pub(super) choice: Rng,
}

impl Streams {
    /// The streams of all connections of a client. Connection `i` sends the same requests at the same times,
    /// whatever its thread and whatever the server does.
    pub(super) fn of(seed: u64, connections: usize) -> Vec<Streams> {
        // Not the stream of the records, which is drawn from the seed itself.
        let mut rng = Rng::new(seed).split();
        let mut streams = || Streams { schedule: rng.split(), choice: rng.split() };
        (0..connections).map(|_| streams()).collect()
    }
}

/// The result of taking a due request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing more is due.
    Nothing,
    /// A request must be sent on this connection.
    Send(usize),
    /// The request joined its connection's backlog, or was abandoned.
    Late,
}

/// The state of one thread's connections and their requests.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) common: Arc<Common>,
    sessions: Vec<Session>,
    /// For the schedules, which are made once the start time is known.
    streams: Vec<Rng>,
    /// The schedule of each connection; empty in the closed loop.
    schedules: Vec<Schedule>,
    /// The due time of the next request of each schedule.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    backlog: Backlog,
    pub(super) tally: Tally,
    /// Number of connections that are not free.
    busy: usize,
    /// Time of the last answer, or when a connection stopped being free while all were.
    last_activity: u64,
    /// Whether requests are sent; before that only handshakes are.
    begun: bool,
}

impl Generator {
    /// Creates the state for established connections, one for each of the streams.
    pub(super) fn new(common: Arc<Common>, streams: Vec<Streams>) -> Generator {
        let connections = streams.len();
        let (mut sessions, mut schedules) =
            (Vec::with_capacity(connections), Vec::with_capacity(connections));
        for Streams { schedule, choice } in streams {
            sessions.push(Session::new(choice));
            schedules.push(schedule);
        }
        let mut generator = Generator {
            backlog: Backlog::new(connections, common.config.connections),
            common,
            sessions,
            streams: schedules,
            schedules: Vec::with_capacity(connections),
            due: BinaryHeap::with_capacity(connections),
            tally: Tally::default(),
            busy: 0,
            last_activity: 0,
            begun: false,
        };
        if generator.greets() {
            // The server may speak first, as soon as the connection exists.
            (0..connections).for_each(|place| generator.greet(place));
        }
        generator
    }

    /// The phase of a connection.
    pub(super) fn phase(&self, place: usize) -> Phase {
        self.sessions[place].phase
    }

    /// Starts the schedules at this time. In the closed loop, prepares one request on each free connection instead.
    pub(super) fn begin(&mut self, start: u64) {
        self.tally.begin(start);
        self.last_activity = start;
        self.begun = true;
        let Some(mean) = self.common.config.mean_gap() else {
            let free = |place: &usize| self.phase(*place) == Phase::Free;
            let free: Vec<usize> = (0..self.sessions.len()).filter(free).collect();
            for place in free {
                self.ask(place, clock::now());
            }
            return;
        };
        for (place, stream) in self.streams.drain(..).enumerate() {
            let schedule = Schedule::new(stream, mean, start);
            self.due.push(Reverse((schedule.due(), place)));
            self.schedules.push(schedule);
        }
    }

    /// Due time of the next request; `u64::MAX` if there is none.
    pub(super) fn next_due(&self) -> u64 {
        self.due.peek().map_or(u64::MAX, |Reverse((due, _))| *due)
    }

    /// Takes the next request that is due by `time`: it is prepared on its connection, or joins the backlog.
    pub(super) fn take_due(&mut self, time: u64) -> Due {
        let Some(mut next) = self.due.peek_mut() else { return Due::Nothing };
        let Reverse((due, place)) = *next;
        if due > time {
            return Due::Nothing;
        }
        let schedule = &mut self.schedules[place];
        schedule.advance();
        *next = Reverse((schedule.due(), place));
        drop(next);
        self.tally.counts.due += 1;
        if self.sessions[place].phase == Phase::Free {
            self.tally.send_delay.record(clock::now().saturating_sub(due));
            self.ask(place, due);
            return Due::Send(place);
        }
        self.tally.counts.late += 1;
        let room = self.backlog.push(place, due);
        self.tally.counts.abandoned += u64::from(!room);
        Due::Late
    }

    /// Prepares a request on a free connection. Returns whether there is one to send.
    fn ask(&mut self, place: usize, intended: u64) -> bool {
        let asks = self.sessions[place].ask(&self.common, intended);
        if asks {
            self.mark_busy();
        }
        asks
    }

    /// Whether connections begin with a handshake.
    fn greets(&self) -> bool {
        matches!(self.common.config.asks, RequestKind::Disk(_))
    }

    /// Prepares a connection's handshake.
    fn greet(&mut self, place: usize) {
        self.sessions[place].greet();
        self.mark_busy();
    }

    /// Records that a connection is no longer free.
    fn mark_busy(&mut self) {
        if self.busy == 0 {
            self.last_activity = clock::now();
        }
        self.busy += 1;
    }

    /// Replaces `into` with the next bytes to send on a connection. Returns whether there are any.
    pub(super) fn put(&self, place: usize, into: &mut Vec<u8>) -> bool {
        self.sessions[place].put(&self.common, into)
    }

    /// Records that the socket took `bytes` of the `put` bytes offered. Returns whether the rest must wait until
    /// the socket has room.
    pub(super) fn sent(&mut self, place: usize, bytes: usize, put: usize) -> bool {
        self.sessions[place].sent(self.common.config.asks, bytes, put)
    }

    /// Processes bytes received on a connection. Returns whether the next request is to be sent on it.
    ///
    /// # Errors
    /// A fault that makes the connection unusable.
    pub(super) fn read(&mut self, place: usize, bytes: &[u8]) -> Result<bool, Trouble> {
        let now = clock::now();
        let answer = self.sessions[place].read(&self.common, bytes)?;
        Ok(answer.is_some_and(|answer| {
            self.answered(place, answer, now);
            self.next_request(place, now)
        }))
    }

    fn answered(&mut self, place: usize, answer: Answer, now: u64) {
        let session = &mut self.sessions[place];
        let request = session.request;
        session.phase = Phase::Free;
        self.busy -= 1;
        self.last_activity = now;
        if request.hello {
            return;
        }
        self.tally.latency.record(now.saturating_sub(request.intended));
        self.tally.from_sending.record(now.saturating_sub(request.sent));
        let counts = &mut self.tally.counts;
        match answer {
            Answer::Hit { bytes } => {
                counts.hits += 1;
                if bytes != self.common.records.value_size(request.record) {
                    counts.count(Trouble::WrongSize);
                }
            }
            Answer::Miss => counts.misses += 1,
            Answer::Refused(refusal) => counts.count(Trouble::Refused(refusal)),
            Answer::Bytes if matches!(self.common.config.asks, RequestKind::Echo(_)) => return,
            Answer::Bytes => {}
            Answer::Stored | Answer::Version => {}
        }
        *(if request.set { &mut counts.sets } else { &mut counts.gets }) += 1;
    }

    /// Prepares the next request of a connection that has become free. Returns whether there is one.
    fn next_request(&mut self, place: usize, now: u64) -> bool {
        if !self.begun {
            return false;
        }
        let intended = match self.schedules.is_empty() {
            true => Some(now),
            false => self.backlog.pop(place),
        };
        intended.is_some_and(|intended| self.ask(place, intended))
    }

    /// Records that a connection was lost and is being re-established. An outstanding request is lost with it: it
    /// has no latency, and is counted under the trouble that ended it.
    pub(super) fn lost(&mut self, place: usize, trouble: Trouble) {
        self.tally.counts.count(trouble);
        if self.sessions[place].phase == Phase::Free {
            self.mark_busy();
        }
        self.sessions[place].lost();
    }

    /// Records that a lost connection was re-established. Returns whether there is something to send.
    pub(super) fn reconnected(&mut self, place: usize) -> bool {
        self.sessions[place].phase = Phase::Free;
        self.busy -= 1;
        self.tally.counts.reconnects += 1;
        if self.greets() {
            self.greet(place);
            return true;
        }
        self.next_request(place, clock::now())
    }

    /// When the server is considered dead; `u64::MAX` while no request is outstanding.
    pub(super) fn silence_deadline(&self) -> u64 {
        match self.busy {
            0 => u64::MAX,
            _ => self.last_activity.saturating_add(self.common.config.answer_timeout_ns()),
        }
    }

    /// Checks that the server is not considered dead.
    ///
    /// # Errors
    /// If the server has been silent for too long.
    pub(super) fn check_silence(&self) -> Result<(), ClientError> {
        if clock::now() < self.silence_deadline() {
            return Ok(());
        }
        let Config { address, answer_timeout: timeout, .. } = self.common.config;
        Err(ClientError::Silent { address, timeout, outstanding: self.busy })
    }

    /// Begins a window. Requests that fell due before belong to the window before; `send` is called for each
    /// connection on which one must be sent.
    pub(super) fn begin_window(&mut self, send: impl FnMut(usize)) {
        let now = clock::now();
        self.catch_up(now, send);
        self.tally.begin(now);
        let outstanding = self.sessions.iter().filter(|session| session.is_outstanding()).count();
        self.tally.counts.carried = outstanding as u64;
    }

    /// Ends the window and returns its counts.
    pub(super) fn end_window(&mut self, send: impl FnMut(usize)) -> Box<Tally> {
        let now = clock::now();
        self.tally.counts.behind = !self.catch_up(now, send);
        let counts = &mut self.tally.counts;
        counts.ended = now;
        counts.backlog = self.backlog.len();
        counts.outstanding = 0;
        let mut oldest = now;
        for (place, session) in self.sessions.iter().enumerate() {
            if session.is_outstanding() {
                counts.outstanding += 1;
                oldest = oldest.min(session.request.intended);
            }
            oldest = oldest.min(self.backlog.first(place).unwrap_or(now));
        }
        counts.longest_wait = now.saturating_sub(oldest);
        Box::new(self.tally.clone())
    }

    /// Takes all requests that were due by `time` and returns whether that was possible. A request that goes to the
    /// backlog, or is abandoned, long after its time is counted as this side's fault: nothing else is known to have
    /// delayed it.
    fn catch_up(&mut self, time: u64, mut send: impl FnMut(usize)) -> bool {
        for _ in 0..CATCH_UP {
            let lags = self.next_due().saturating_add(LAG) <= time;
            match self.take_due(time) {
                Due::Nothing => return true,
                Due::Send(place) => send(place),
                Due::Late => self.tally.counts.late_here += u64::from(lags),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
