//! Services on byte streams, and the pump between one and a TCP connection.
//!
//! A [`StreamService`] sees bytes and answers with bytes; it never blocks, and knows neither sockets nor
//! threads. A [`Pump`] gives it what a connection received and sends what it answers, and takes nothing
//! more from a peer who does not read his answers: what a connection holds is bounded.

use std::sync::Arc;

use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{ByteStream, Flow, TcpApplication};

use crate::held::{Bound, Held};

/// What became of a look at a stream's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// So many bytes were taken, at least one; there may be another request behind them.
    Took(usize),
    /// So many bytes were taken, at least one, of a request that was taken before.
    Part(usize),
    /// These bytes are the beginning of a request, and the rest has not come.
    More,
    /// Nothing is taken before something has ended that was begun; whoever runs the thread then has the
    /// connection looked at.
    Wait,
    /// The connection is to end once what was answered so far has been sent.
    Close,
}

/// A service on byte streams. One value serves all connections of a thread.
pub trait StreamService {
    /// What it keeps of a connection.
    type Connection;

    /// A connection was opened.
    fn open(&mut self, flow: Flow) -> Self::Connection;

    /// Appends to `output` what the connection is sent without a request: a greeting, or answers that
    /// are ready only now. Called whenever the connection is looked at; says whether answers to what
    /// was taken are still to come.
    fn proceed(&mut self, _: &mut Self::Connection, _output: &mut Vec<u8>, _now: Ns) -> bool {
        false
    }

    /// Whether nothing more may be sent to the connection, so that it is closed. Asked after
    /// [`proceed`](StreamService::proceed), for what ended while no request came.
    fn over(&self, _: &Self::Connection) -> bool {
        false
    }

    /// Serves the request at the beginning of `input`, which is not empty, and appends its answer to
    /// `output`.
    fn serve(
        &mut self,
        connection: &mut Self::Connection,
        input: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Served;

    /// Takes what has ended that was begun for connections, and says whose these are: each is to be
    /// looked at. Called by whoever runs the thread, before its connections are served.
    fn collect(&mut self, _look_at: &mut dyn FnMut(Flow)) {}

    /// Hands over what was begun since the last call; called after they were served.
    fn submit(&mut self) {}

    /// Requests that were served and have no answer, as whoever sent them wanted.
    fn silent(&self) -> u64 {
        0
    }

    /// Bytes of the longest request: a connection that has sent as many, and still wants to send more,
    /// is closed.
    fn longest_request(&self) -> usize;

    /// What all connections together may hold of requests that have not come whole and of answers that
    /// their peers do not read, beyond a few KiB of each; the one with which it would be more is reset.
    /// `None` if it is bounded by the number of connections alone.
    fn bound(&self) -> Option<Arc<Bound>> {
        None
    }
}

/// Bytes of answers that wait to be sent before requests wait, too.
const OUTPUT: usize = 64 * 1_024;
/// How long, and for how many bytes that still come, a peer may take to close after us, as long as he can
/// be reached. Then the connection is reset: else whoever does not look for our end would write for ever,
/// and hold his place.
const LINGER: Ns = 60_000 * MILLISECOND;
const LINGER_BYTES: usize = 1 << 20;
/// What a buffer keeps when it is empty.
const KEPT: usize = 4 * 1_024;

/// Serves TCP connections by a [`StreamService`].
#[derive(Debug)]
pub struct Pump<S> {
    /// The service behind these connections.
    pub service: S,
    /// Connections opened so far.
    pub opened: u64,
    /// Requests served so far.
    pub served: u64,
}

impl<S> Pump<S> {
    /// A pump for a service.
    pub fn new(service: S) -> Pump<S> {
        Pump { service, opened: 0, served: 0 }
    }
}

impl<S: StreamService> Pump<S> {
    /// Requests that were answered, or are to be.
    pub fn replied(&self) -> u64 {
        self.served.saturating_sub(self.service.silent())
    }
}

/// A connection's buffers, and what the service keeps of it.
#[derive(Debug)]
pub struct Pumped<C> {
    connection: C,
    input: Vec<u8>,
    /// Bytes of `input` that were taken.
    taken: usize,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
    closing: bool,
    /// Once all was sent, and we have closed: when, and how many bytes came since.
    closed: Option<(Ns, usize)>,
    /// Its part of what all connections may hold, if that is bounded.
    held: Option<Held>,
}

impl<C> Pumped<C> {
    /// Lets go what still comes after our end, for a while.
    fn linger(&mut self, stream: &mut impl ByteStream, now: Ns) {
        let Some((since, bytes)) = &mut self.closed else { return };
        loop {
            self.input.clear();
            match stream.receive(&mut self.input, OUTPUT) {
                0 => break,
                came => *bytes += came,
            }
        }
        (self.input, self.taken) = (Vec::new(), 0);
        let over = now.saturating_sub(*since) >= LINGER || *bytes > LINGER_BYTES;
        if over && !stream.ended() {
            stream.abort();
        }
    }

    /// Whether there is room for what it holds by now. Without, it is over: it holds nothing any more.
    fn fits(&mut self, now: Ns) -> bool {
        let Some(held) = &mut self.held else { return true };
        let beyond = |input: &Vec<u8>, output: &Vec<u8>| {
            (input.capacity() + output.capacity()).saturating_sub(2 * KEPT)
        };
        if held.set(beyond(&self.input, &self.output)) {
            return true;
        }
        // A buffer that has grown has up to twice the room of what waits in it.
        self.input.drain(..self.taken);
        self.output.drain(..self.sent);
        (self.taken, self.sent) = (0, 0);
        self.input.shrink_to(KEPT);
        self.output.shrink_to(KEPT);
        if held.set(beyond(&self.input, &self.output)) {
            return true;
        }
        held.refuse();
        (self.input, self.taken) = (Vec::new(), 0);
        (self.output, self.sent) = (Vec::new(), 0);
        self.closed = Some((now, 0));
        false
    }

    /// Sends what waits; whether all of it was taken.
    fn flush(&mut self, stream: &mut impl ByteStream) -> bool {
        self.sent += stream.send(&self.output[self.sent..]);
        if self.sent < self.output.len() {
            // What was sent goes, too, if the rest never does: the peer may read more slowly than he
            // asks, and for ever.
            if self.sent >= self.output.len() / 2 {
                self.output.drain(..self.sent);
                self.sent = 0;
            }
            return false;
        }
        self.sent = 0;
        self.output.clear();
        self.output.shrink_to(KEPT);
        true
    }

    /// Receives more, up to `most` bytes that were not taken; whether any came.
    fn receive(&mut self, stream: &mut impl ByteStream, most: usize) -> bool {
        self.input.drain(..self.taken);
        self.taken = 0;
        if self.input.is_empty() {
            self.input.shrink_to(KEPT);
        }
        let room = most.saturating_sub(self.input.len());
        stream.receive(&mut self.input, room) > 0
    }
}

impl<S: StreamService> TcpApplication for Pump<S> {
    type State = Pumped<S::Connection>;

    fn collect(&mut self, look_at: &mut dyn FnMut(Flow)) {
        self.service.collect(look_at);
    }

    fn submit(&mut self) {
        self.service.submit();
    }

    fn opened(&mut self, flow: Flow) -> Self::State {
        self.opened += 1;
        Pumped {
            connection: self.service.open(flow),
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            sent: 0,
            closing: false,
            closed: None,
            held: self.service.bound().map(Held::new),
        }
    }

    fn ready(&mut self, state: &mut Self::State, stream: &mut impl ByteStream, now: Ns) {
        self.advance(state, stream, now);
        if !state.fits(now) {
            stream.abort();
        }
    }
}

impl<S: StreamService> Pump<S> {
    /// Serves what has come, and receives more, until nothing is left to be done.
    fn advance(
        &mut self,
        state: &mut Pumped<S::Connection>,
        stream: &mut impl ByteStream,
        now: Ns,
    ) {
        if state.closed.is_some() {
            return state.linger(stream, now);
        }
        let most = self.service.longest_request();
        loop {
            let owes = !state.closing
                && self.service.proceed(&mut state.connection, &mut state.output, now);
            state.closing |= self.service.over(&state.connection);
            let answers = !state.output.is_empty();
            let flushed = state.flush(stream);
            if state.closing || !stream.writable() {
                break;
            }
            if owes && flushed && answers {
                // There is room again for what had none: nobody would tell of it.
                continue;
            }
            if !flushed && state.output.len() - state.sent > OUTPUT {
                return;
            }
            let waiting = &state.input[state.taken..];
            let served = match waiting.is_empty() {
                true => Served::More,
                false => self.service.serve(&mut state.connection, waiting, &mut state.output, now),
            };
            match served {
                Served::Took(bytes) => {
                    debug_assert!(bytes > 0, "nothing was taken");
                    state.taken += bytes.min(waiting.len());
                    self.served += 1;
                }
                Served::Part(bytes) => {
                    debug_assert!(bytes > 0, "nothing was taken");
                    state.taken += bytes.min(waiting.len());
                }
                Served::Wait => return,
                Served::Close => state.closing = true,
                Served::More if state.receive(stream, most) => {}
                Served::More => {
                    // Nothing came: because nothing did, because nothing will, or for want of room.
                    let ended = stream.ended() && !owes;
                    state.closing = ended || state.input.len() >= most;
                    if !state.closing {
                        return;
                    }
                }
            }
        }
        if state.output.is_empty() || !stream.writable() {
            stream.close();
            state.closed = Some((now, 0));
            state.linger(stream, now);
        }
    }
}

/// Sends back whatever comes.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoStream;

impl StreamService for EchoStream {
    type Connection = ();

    fn open(&mut self, _: Flow) {}

    fn serve(&mut self, (): &mut (), input: &[u8], output: &mut Vec<u8>, _: Ns) -> Served {
        output.extend_from_slice(input);
        Served::Took(input.len())
    }

    fn longest_request(&self) -> usize {
        16 * 1_024
    }
}

#[cfg(test)]
mod tests;
