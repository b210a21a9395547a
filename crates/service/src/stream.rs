//! Services on byte streams, and the pump that connects one to TCP connections.
//!
//! A [`StreamService`] sees bytes and answers with bytes; it never blocks, and knows neither sockets nor threads. A
//! [`Pump`] passes received bytes to it and sends its answers. It stops reading from a peer that does not read its
//! answers, so that the memory of a connection is bounded.

use std::sync::Arc;

use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{ByteStream, Flow, TcpApplication};

use crate::bound::{Bound, Share};

/// The result of serving a stream's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// A request or its first part, of so many bytes (at least one), was taken; another may follow.
    Request(usize),
    /// A further part, of so many bytes (at least one), of an earlier request was taken.
    Continued(usize),
    /// The input is an incomplete request.
    More,
    /// Nothing is taken until an operation in flight completes; the thread's loop then serves the connection again.
    Wait,
    /// The connection is to be closed after the answers so far have been sent.
    Close,
}

/// A service on byte streams. One value serves all connections of a thread.
pub trait StreamService {
    /// State of a connection.
    type Connection;

    /// Creates the state of a new connection.
    fn open(&mut self, flow: Flow) -> Self::Connection;

    /// Appends to `output` what is sent without a request: a greeting, or answers that have become ready. Called
    /// each time the connection is served. Returns whether answers to requests already taken are still to come.
    fn proceed(&mut self, _: &mut Self::Connection, _output: &mut Vec<u8>, _now: Ns) -> bool {
        false
    }

    /// Whether nothing more may be sent to the connection, so that it must be closed. Checked after
    /// [`proceed`](StreamService::proceed), because the cause may arise without a request.
    fn must_close(&self, _: &Self::Connection) -> bool {
        false
    }

    /// Serves the request at the start of `input`, which is not empty, and appends the answer to `output`.
    fn serve(
        &mut self,
        connection: &mut Self::Connection,
        input: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Served;

    /// Takes completed operations, and calls `look_at` with the flow of each connection that must be served. Called
    /// by the thread's loop before it serves its connections.
    fn collect(&mut self, _look_at: &mut dyn FnMut(Flow)) {}

    /// Submits the operations begun since the last call. Called after the connections were served.
    fn submit(&mut self) {}

    /// Requests that were served without an answer because the client wanted none.
    fn silent(&self) -> u64 {
        0
    }

    /// Longest request in bytes. A connection that has sent that many bytes of one incomplete request is closed.
    fn longest_request(&self) -> usize;

    /// Limit of the bytes that all connections together hold in incomplete requests and unread answers, beyond a
    /// few KiB each. A connection that would exceed it is reset. `None` if only the number of connections limits
    /// it.
    fn bound(&self) -> Option<Arc<Bound>> {
        None
    }
}

/// Bytes of unsent answers above which no further requests are served.
const OUTPUT: usize = 64 * 1_024;
/// How long a reachable peer may take to close after us, and how many bytes it may send meanwhile. Then the
/// connection is reset: otherwise a peer that ignores our FIN could write for ever and keep its slot.
const LINGER: Ns = 60_000 * MILLISECOND;
const LINGER_BYTES: usize = 1 << 20;
/// Capacity in bytes that an empty buffer keeps.
const KEPT: usize = 4 * 1_024;

/// Serves TCP connections with a [`StreamService`].
#[derive(Debug)]
pub struct Pump<S> {
    /// The service behind the connections.
    pub service: S,
    /// Connections opened so far.
    pub opened: u64,
    /// Requests served so far.
    pub served: u64,
}

impl<S> Pump<S> {
    /// Creates a pump for `service`.
    pub fn new(service: S) -> Pump<S> {
        Pump { service, opened: 0, served: 0 }
    }
}

impl<S: StreamService> Pump<S> {
    /// Requests that were answered, or will be.
    pub fn replied(&self) -> u64 {
        self.served.saturating_sub(self.service.silent())
    }
}

/// Buffers of a connection, and the service's state of it.
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
    /// Set when we have closed after sending everything: the time, and the bytes received since.
    closed: Option<(Ns, usize)>,
    /// The connection's share of the service's [`Bound`], if there is one.
    share: Option<Share>,
}

impl<C> Pumped<C> {
    /// Discards what arrives after our close, until the limits of lingering are exceeded.
    fn linger(&mut self, stream: &mut impl ByteStream, now: Ns) {
        let Some((since, bytes)) = &mut self.closed else { return };
        loop {
            self.input.clear();
            match stream.receive(&mut self.input, OUTPUT) {
                0 => break,
                received => *bytes += received,
            }
        }
        (self.input, self.taken) = (Vec::new(), 0);
        let over = now.saturating_sub(*since) >= LINGER || *bytes > LINGER_BYTES;
        if over && !stream.ended() {
            stream.abort();
        }
    }

    /// Whether the buffers fit the bound. If not, they are released and the connection is over.
    fn fits(&mut self, now: Ns) -> bool {
        let Some(share) = &mut self.share else { return true };
        let beyond = |input: &Vec<u8>, output: &Vec<u8>| {
            (input.capacity() + output.capacity()).saturating_sub(2 * KEPT)
        };
        if share.set(beyond(&self.input, &self.output)) {
            return true;
        }
        // A buffer that has grown may have twice the capacity of its content.
        self.input.drain(..self.taken);
        self.output.drain(..self.sent);
        (self.taken, self.sent) = (0, 0);
        self.input.shrink_to(KEPT);
        self.output.shrink_to(KEPT);
        if share.set(beyond(&self.input, &self.output)) {
            return true;
        }
        share.refuse();
        (self.input, self.taken) = (Vec::new(), 0);
        (self.output, self.sent) = (Vec::new(), 0);
        self.closed = Some((now, 0));
        false
    }

    /// Sends pending output. Returns whether all of it was taken.
    fn flush(&mut self, stream: &mut impl ByteStream) -> bool {
        self.sent += stream.send(&self.output[self.sent..]);
        if self.sent < self.output.len() {
            // Drop what was sent even if the rest is never sent: a peer may for ever read more slowly than it sends
            // requests.
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

    /// Receives until `most` bytes are waiting. Returns whether any arrived.
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
            share: self.service.bound().map(Share::new),
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
    /// Serves the input and receives more, until nothing is left to do.
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
            let pending = !state.closing
                && self.service.proceed(&mut state.connection, &mut state.output, now);
            state.closing |= self.service.must_close(&state.connection);
            let answers = !state.output.is_empty();
            let flushed = state.flush(stream);
            if state.closing || !stream.writable() {
                break;
            }
            if pending && flushed && answers {
                // The flush made room that `proceed` may have lacked. No event will report that: try again.
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
                Served::Request(bytes) => {
                    debug_assert!(bytes > 0, "nothing was taken");
                    state.taken += bytes.min(waiting.len());
                    self.served += 1;
                }
                Served::Continued(bytes) => {
                    debug_assert!(bytes > 0, "nothing was taken");
                    state.taken += bytes.min(waiting.len());
                }
                Served::Wait => return,
                Served::Close => state.closing = true,
                Served::More if state.receive(stream, most) => {}
                Served::More => {
                    // Nothing was received: no data is there, the peer has ended, or the input buffer is full.
                    let ended = stream.ended() && !pending;
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

/// Sends back all bytes it receives.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoStream;

impl StreamService for EchoStream {
    type Connection = ();

    fn open(&mut self, _: Flow) {}

    fn serve(&mut self, (): &mut (), input: &[u8], output: &mut Vec<u8>, _: Ns) -> Served {
        output.extend_from_slice(input);
        Served::Request(input.len())
    }

    fn longest_request(&self) -> usize {
        16 * 1_024
    }
}

#[cfg(test)]
mod tests;
