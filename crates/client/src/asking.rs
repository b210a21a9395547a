//! What one thread of a client asks, on which connection and when, and what it makes of the answers: no
//! sockets here.
//!
//! Each connection has one request outstanding at most. Whoever has the sockets asks what is due
//! ([`Asking::take_due`]), sends what is to be sent ([`Asking::put`]) and hands over what has come
//! ([`Asking::read`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use napkin_os::clock;
use napkin_traffic::{Rng, Schedule};

use super::answer::Answer;
use super::backlog::Backlog;
use super::config::{Asks, Config};
use super::error::ClientError;
use super::figures::{Tally, Trouble};
use super::talk::{Common, Phase, Talk};

/// Requests that may fall due where a window begins or ends: what was due before belongs to the
/// window before, however late this thread is, but nobody shall wait for ever.
const CATCH_UP: usize = 1 << 20;
/// A request that was due so long before a window's end, in nanoseconds, and was not looked at until then was held
/// back by this thread; a shorter time is from one look to the next.
const LAG: u64 = 1_000_000;

/// The random numbers of one connection.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    /// Of its schedule.
    pub(super) schedule: Rng,
    /// Of what it asks.
    pub(super) choice: Rng,
}

impl Streams {
    /// One for each connection of a client. Connection `i` asks the same at the same times whatever
    /// thread it is on, and whatever the server does.
    pub(super) fn of(seed: u64, connections: usize) -> Vec<Streams> {
        // Not the stream of the records, which comes from the seed itself.
        let mut rng = Rng::new(seed).split();
        let mut streams = || Streams { schedule: rng.split(), choice: rng.split() };
        (0..connections).map(|_| streams()).collect()
    }
}

/// What became of a look at the schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing more is due.
    Nothing,
    /// A request is to be sent on this connection.
    Send(usize),
    /// One waits behind another, or was given up.
    Late,
}

/// One thread's questions and answers.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) common: Arc<Common>,
    talks: Vec<Talk>,
    /// From which the schedules are drawn once the start is known.
    streams: Vec<Rng>,
    /// When requests are due on each connection; none in the closed loop.
    schedules: Vec<Schedule>,
    /// The next request of each schedule.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    backlog: Backlog,
    pub(super) tally: Tally,
    /// Connections that are not free.
    busy: usize,
    /// The last answer, or when a connection stopped being free while all were.
    quiet_since: u64,
    /// Nothing but a greeting is sent before.
    begun: bool,
}

impl Asking {
    /// On connections that are made already, one for each of the streams.
    pub(super) fn new(common: Arc<Common>, streams: Vec<Streams>) -> Asking {
        let here = streams.len();
        let (mut talks, mut schedules) = (Vec::with_capacity(here), Vec::with_capacity(here));
        for Streams { schedule, choice } in streams {
            talks.push(Talk::new(choice));
            schedules.push(schedule);
        }
        let mut asking = Asking {
            backlog: Backlog::new(here, common.config.connections),
            common,
            talks,
            streams: schedules,
            schedules: Vec::with_capacity(here),
            due: BinaryHeap::with_capacity(here),
            tally: Tally::default(),
            busy: 0,
            quiet_since: 0,
            begun: false,
        };
        if asking.greets() {
            // Its server may speak as soon as there is a connection.
            (0..here).for_each(|place| asking.greet(place));
        }
        asking
    }

    /// What a connection is at.
    pub(super) fn phase(&self, place: usize) -> Phase {
        self.talks[place].phase
    }

    /// Schedules begin at this time. Without any, one request is to be sent on each connection now.
    pub(super) fn begin(&mut self, start: u64) {
        self.tally.begin(start);
        self.quiet_since = start;
        self.begun = true;
        let Some(mean) = self.common.config.mean_gap() else {
            let free = |place: &usize| self.phase(*place) == Phase::Free;
            let free: Vec<usize> = (0..self.talks.len()).filter(free).collect();
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

    /// When the next request is due; `u64::MAX` without any.
    pub(super) fn next_due(&self) -> u64 {
        self.due.peek().map_or(u64::MAX, |Reverse((due, _))| *due)
    }

    /// Takes the next request that was due at a time: it goes out on its connection, or waits there.
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
        if self.talks[place].phase == Phase::Free {
            self.tally.send_delay.record(clock::now().saturating_sub(due));
            self.ask(place, due);
            return Due::Send(place);
        }
        self.tally.counts.late += 1;
        let room = self.backlog.push(place, due);
        self.tally.counts.abandoned += u64::from(!room);
        Due::Late
    }

    /// Makes up a request on a free connection. Whether there is one, which is then to be sent.
    fn ask(&mut self, place: usize, intended: u64) -> bool {
        let asks = self.talks[place].ask(&self.common, intended);
        if asks {
            self.take_up();
        }
        asks
    }

    /// Whether a connection begins with a handshake.
    fn greets(&self) -> bool {
        matches!(self.common.config.asks, Asks::Disk(_))
    }

    /// The same for a connection's handshake.
    fn greet(&mut self, place: usize) {
        self.talks[place].greet();
        self.take_up();
    }

    /// A connection is free no longer.
    fn take_up(&mut self) {
        if self.busy == 0 {
            self.quiet_since = clock::now();
        }
        self.busy += 1;
    }

    /// What is next to be sent of a connection's request, in `into`; nothing else is in it then. Whether
    /// there is anything.
    pub(super) fn put(&self, place: usize, into: &mut Vec<u8>) -> bool {
        self.talks[place].put(&self.common, into)
    }

    /// So many bytes of a request were taken, of as many as were put. Whether the rest is to follow when
    /// there is room.
    pub(super) fn sent(&mut self, place: usize, bytes: usize, put: usize) -> bool {
        self.talks[place].sent(self.common.config.asks, bytes, put)
    }

    /// Takes what has come on a connection. Says whether the next request is to be sent on it.
    ///
    /// # Errors
    /// What makes the connection useless.
    pub(super) fn read(&mut self, place: usize, bytes: &[u8]) -> Result<bool, Trouble> {
        let now = clock::now();
        let answer = self.talks[place].read(&self.common, bytes)?;
        Ok(answer.is_some_and(|answer| {
            self.answered(place, answer, now);
            self.go_on(place, now)
        }))
    }

    fn answered(&mut self, place: usize, answer: Answer, now: u64) {
        let talk = &mut self.talks[place];
        let request = talk.request;
        talk.phase = Phase::Free;
        self.busy -= 1;
        self.quiet_since = now;
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
            Answer::Bytes if matches!(self.common.config.asks, Asks::Echo(_)) => return,
            Answer::Bytes => {}
            Answer::Stored | Answer::Version => {}
        }
        *(if request.set { &mut counts.sets } else { &mut counts.gets }) += 1;
    }

    /// What a connection that has become free does next: whether there is something to send.
    fn go_on(&mut self, place: usize, now: u64) -> bool {
        if !self.begun {
            return false;
        }
        let intended = match self.schedules.is_empty() {
            true => Some(now),
            false => self.backlog.pop(place),
        };
        intended.is_some_and(|intended| self.ask(place, intended))
    }

    /// A connection is of no use, and begun anew. A request outstanding is lost: it has no latency, and
    /// is in the counts by what ended it.
    pub(super) fn lost(&mut self, place: usize, trouble: Trouble) {
        self.tally.counts.count(trouble);
        if self.talks[place].phase == Phase::Free {
            self.take_up();
        }
        self.talks[place].lost();
    }

    /// A connection that was lost is made again. Says whether there is something to send.
    pub(super) fn made_again(&mut self, place: usize) -> bool {
        self.talks[place].phase = Phase::Free;
        self.busy -= 1;
        self.tally.counts.reconnects += 1;
        if self.greets() {
            self.greet(place);
            return true;
        }
        self.go_on(place, clock::now())
    }

    /// When the server counts as dead; `u64::MAX` while nothing is outstanding.
    pub(super) fn patience(&self) -> u64 {
        match self.busy {
            0 => u64::MAX,
            _ => self.quiet_since.saturating_add(self.common.config.answer_timeout_ns()),
        }
    }

    /// # Errors
    /// If the server has been silent for too long.
    pub(super) fn check_silence(&self) -> Result<(), ClientError> {
        if clock::now() < self.patience() {
            return Ok(());
        }
        let Config { address, answer_timeout: timeout, .. } = self.common.config;
        Err(ClientError::Silent { address, timeout, outstanding: self.busy })
    }

    /// A window begins. What was due until now belongs to the one before: `send` is told of each
    /// connection on which something is to be sent.
    pub(super) fn begin_window(&mut self, send: impl FnMut(usize)) {
        let now = clock::now();
        self.catch_up(now, send);
        self.tally.begin(now);
        let outstanding = self.talks.iter().filter(|talk| talk.is_outstanding()).count();
        self.tally.counts.carried = outstanding as u64;
    }

    /// A window ends: its counts.
    pub(super) fn end_window(&mut self, send: impl FnMut(usize)) -> Box<Tally> {
        let now = clock::now();
        self.tally.counts.behind = !self.catch_up(now, send);
        let counts = &mut self.tally.counts;
        counts.ended = now;
        counts.backlog = self.backlog.len();
        counts.outstanding = 0;
        let mut oldest = now;
        for (place, talk) in self.talks.iter().enumerate() {
            if talk.is_outstanding() {
                counts.outstanding += 1;
                oldest = oldest.min(talk.request.intended);
            }
            oldest = oldest.min(self.backlog.first(place).unwrap_or(now));
        }
        counts.longest_wait = now.saturating_sub(oldest);
        Box::new(self.tally.clone())
    }

    /// Whether all that was due at a time was taken. What waits then, or was given up, for no other reason than that
    /// nobody had looked is counted as this side's.
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
