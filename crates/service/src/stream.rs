//! Services on byte streams, and the pump between one and a TCP connection.
//!
//! A [`StreamService`] sees bytes and answers with bytes; it never blocks, and knows neither sockets nor
//! threads. A [`Pump`] gives it what a connection received and sends what it answers, and takes nothing
//! more from a peer who does not read his answers: what a connection holds is bounded.

use napkin_policy::Ns;
use napkin_stack::{ByteStream, Flow, TcpApplication};

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

    /// Bytes of the longest request: a connection that has sent as many, and still wants to send more,
    /// is closed.
    fn longest_request(&self) -> usize;
}

/// Bytes of answers that wait to be sent before requests wait, too.
const OUTPUT: usize = 64 * 1_024;
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
}

impl<C> Pumped<C> {
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
        }
    }

    fn ready(&mut self, state: &mut Self::State, stream: &mut impl ByteStream, now: Ns) {
        let most = self.service.longest_request();
        loop {
            let owes = !state.closing
                && self.service.proceed(&mut state.connection, &mut state.output, now);
            let flushed = state.flush(stream);
            if state.closing || !stream.writable() {
                break;
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

/// Lets go whatever comes.
#[derive(Debug, Clone, Copy, Default)]
pub struct SinkStream;

impl StreamService for SinkStream {
    type Connection = ();

    fn open(&mut self, _: Flow) {}

    fn serve(&mut self, (): &mut (), input: &[u8], _: &mut Vec<u8>, _: Ns) -> Served {
        Served::Took(input.len())
    }

    fn longest_request(&self) -> usize {
        16 * 1_024
    }
}
