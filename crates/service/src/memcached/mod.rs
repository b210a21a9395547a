//! memcached server: the text protocol and its meta commands, as in protocol.txt of memcached 1.6.
//!
//! There is one [`Memcached`] per thread; all share one [`Store`]. Not implemented: the binary protocol, SASL,
//! slabs and their tuning, watchers.

mod classic;
pub mod datagrams;
mod flags;
mod line;
mod meta;
mod stats;
pub mod store;

use std::sync::Arc;

use napkin_policy::{NEVER, Ns};
use napkin_stack::Flow;

pub use datagrams::MemcachedUdp;
pub use stats::Stats;
pub use store::Store;

use crate::{Bound, Served, StreamService};
use line::Line;

/// Longest key in bytes.
pub const KEY_LIMIT: usize = 250;
/// Longest command line in bytes, except for `get` and `gets`.
const LINE_LIMIT: usize = 64 * 1_024;
/// Longest line of a `get` or `gets` in bytes; they may have many keys. A connection buffers that much of an
/// incomplete line, which is less than a `set` of the default largest value takes.
const GET_LIMIT: usize = 1_024 * 1_024;
/// Bytes of answer after which the remaining keys of a `get` wait until it was sent. Without this, a line full of
/// keys of the largest item would be answered with thousands of times as many bytes as all items have together.
const PIECE: usize = 64 * 1_024;
/// Longest value in bytes that is refused and then discarded as it arrives. As in memcached, a line that announces
/// a longer one is itself an error.
const VALUE_LIMIT: usize = i32::MAX as usize - 2;
/// First byte of a request of the binary protocol; no text command begins with it.
const BINARY: u8 = 0x80;
/// The answer to `version`.
const VERSION: &str = concat!("1.6.0-napkin-", env!("CARGO_PKG_VERSION"));
/// Expiry times above this many seconds (30 days, as in protocol.txt) are Unix times, not durations.
const RELATIVE: i64 = 60 * 60 * 24 * 30;
const SECOND: Ns = 1_000_000_000;

/// Memory limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all items (`memcached -m`). Incomplete requests and unread answers may together take the same
    /// again, and at least four times the longest request.
    pub memory: usize,
    /// Bytes of the largest value (`memcached -I`).
    pub item: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 64 << 20, item: 1 << 20 }
    }
}

/// Contradictory or invalid limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The memory limit is less than twice the largest value.
    #[error(
        "a memory limit of {memory} bytes is less than twice the largest item of {item}: give more \
         memory, or smaller items"
    )]
    Memory {
        /// [`Limits::memory`] as given.
        memory: usize,
        /// [`Limits::item`] as given.
        item: usize,
    },
    /// A largest value of 0 bytes, or of more than 128 MiB.
    #[error("the largest item is {0} bytes: give 1 byte to 128 MiB")]
    Item(usize),
}

impl Limits {
    fn longest_request(self) -> usize {
        GET_LIMIT.max(LINE_LIMIT + self.item + 2)
    }

    /// Returns the limits if they are valid.
    ///
    /// # Errors
    /// [`LimitError`] tells which limit is invalid.
    pub fn check(self) -> Result<Limits, LimitError> {
        match self {
            Limits { item, .. } if item == 0 || item > 128 << 20 => Err(LimitError::Item(item)),
            Limits { memory, item } if memory < 2 * item => {
                Err(LimitError::Memory { memory, item })
            }
            _ => Ok(self),
        }
    }
}

/// One thread's memcached service.
#[derive(Debug, Clone)]
pub struct Memcached {
    store: Arc<Store>,
    stats: Arc<Stats>,
    /// Bytes that connections hold besides the items.
    held: Arc<Bound>,
    limits: Limits,
    /// Unix time, in seconds, at time 0 of the clock that `now` is taken from.
    epoch: i64,
    /// Start time on that clock.
    started: Ns,
    /// Requests that this thread served without an answer.
    silent: u64,
}

/// State of a connection.
#[derive(Debug, Default)]
pub struct Client {
    /// Bytes of a refused value that are still to be discarded.
    discard: usize,
    /// Bytes at the start of the input that are known to contain no line end.
    seen: usize,
    /// A `get` with keys still to be answered.
    retrieval: Option<Retrieval>,
}

/// Options of a retrieval command.
#[derive(Debug, Clone, Copy, Default)]
struct Retrieval {
    /// Whether to include each item's unique number.
    cas: bool,
    /// New expiry time for the items found (`gat`, `gats`).
    expires: Option<Ns>,
}

impl Memcached {
    /// Creates a service with an empty store; clone it for each thread. `epoch` is the Unix time, in seconds, at
    /// time 0 of the clock that `now` is taken from.
    ///
    /// # Errors
    /// Invalid limits.
    pub fn new(limits: Limits, epoch: i64) -> Result<Memcached, LimitError> {
        let limits = limits.check()?;
        let store = Arc::new(Store::new(limits.memory));
        // Large enough for one connection's buffers, which grow by doubling.
        let held = Arc::new(Bound::new(limits.memory.max(4 * limits.longest_request())));
        let stats = Arc::default();
        Ok(Memcached { store, stats, held, limits, epoch, started: 0, silent: 0 })
    }

    /// Sets the start time, from which uptime counts; the default is time 0 of the clock.
    pub fn started_at(self, now: Ns) -> Memcached {
        Memcached { started: now, ..self }
    }

    /// The items, shared by all threads.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The counters, shared by all threads.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Converts an `exptime` as protocol.txt defines it: 0 is never, up to 30 days are seconds from now, more is a
    /// Unix time, and a negative one has already expired.
    fn expires(&self, exptime: i64, now: Ns) -> Ns {
        let seconds = match exptime {
            0 => return NEVER,
            ..0 => return 0,
            1..=RELATIVE => return now.saturating_add(exptime as Ns * SECOND),
            _ => exptime - self.epoch,
        };
        // A Unix time before the clock's time 0 has expired.
        u64::try_from(seconds).map_or(0, |seconds| seconds.saturating_mul(SECOND))
    }
}

impl StreamService for Memcached {
    type Connection = Client;

    fn open(&mut self, _: Flow) -> Client {
        Client::default()
    }

    fn serve(
        &mut self,
        client: &mut Client,
        input: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Served {
        let before = output.len();
        let served = self.answer(client, input, output, now);
        let silent = matches!(served, Served::Request(_)) && output.len() == before;
        self.silent += u64::from(silent);
        served
    }

    fn silent(&self) -> u64 {
        self.silent
    }

    fn longest_request(&self) -> usize {
        self.limits.longest_request()
    }

    fn bound(&self) -> Option<Arc<Bound>> {
        Some(Arc::clone(&self.held))
    }
}

impl Memcached {
    /// Serves the request at the start of `input`.
    fn answer(
        &mut self,
        client: &mut Client,
        input: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Served {
        if client.discard > 0 {
            let bytes = client.discard.min(input.len());
            client.discard -= bytes;
            return Served::Continued(bytes);
        }
        if input.first() == Some(&BINARY) {
            // The binary protocol has no line ends: both sides would wait for ever.
            output.extend_from_slice(b"CLIENT_ERROR the binary protocol is not spoken here\r\n");
            return Served::Close;
        }
        let gets =
            client.retrieval.is_some() || input.starts_with(b"get ") || input.starts_with(b"gets ");
        let limit = if gets { GET_LIMIT } else { LINE_LIMIT };
        let part = &input[..input.len().min(limit)];
        // Resume the search where the last piece of the line ended.
        let unseen = part.get(client.seen..).unwrap_or_default();
        let Some(end) = unseen.iter().position(|byte| *byte == b'\n') else {
            if input.len() >= limit {
                output.extend_from_slice(b"CLIENT_ERROR line too long\r\n");
                return Served::Close;
            }
            client.seen = input.len();
            return Served::More;
        };
        let end = end + std::mem::take(&mut client.seen);
        let line = &input[..end];
        let mut line = Line::new(line.strip_suffix(b"\r").unwrap_or(line));
        let rest = &input[end + 1..];
        if let Some(retrieval) = client.retrieval.take() {
            return match self.retrieve(&mut line, retrieval, output, now) {
                Answered::Keys(retrieval) => {
                    let taken = line.start(input);
                    (client.retrieval, client.seen) = (Some(retrieval), end - taken);
                    Served::Continued(taken)
                }
                _ => Served::Continued(end + 1),
            };
        }
        let command = line.word().unwrap_or_default();
        let answered = match command {
            [b'm', _] => self.meta(command[1], &mut line, rest, output, now),
            _ => self.classic(command, &mut line, rest, output, now),
        };
        match answered {
            Answered::Line => Served::Request(end + 1),
            Answered::Value(bytes) => Served::Request(end + 1 + bytes),
            Answered::Discard(bytes) => {
                client.discard = bytes;
                Served::Request(end + 1)
            }
            Answered::Keys(retrieval) => {
                let taken = line.start(input);
                (client.retrieval, client.seen) = (Some(retrieval), end - taken);
                Served::Request(taken)
            }
            Answered::More => {
                client.seen = end;
                Served::More
            }
            Answered::Quit => Served::Close,
        }
    }
}

/// What a command consumed besides its line.
enum Answered {
    Line,
    /// A value of so many bytes, line end included.
    Value(usize),
    /// A refused value: so many bytes are to be discarded, now or as they arrive.
    Discard(usize),
    /// The line up to a key; the remaining keys are to be answered later.
    Keys(Retrieval),
    /// The value is incomplete.
    More,
    Quit,
}

/// The value of a storage command: as many bytes as its line announced, and a line end.
enum Data<'a> {
    Whole(&'a [u8]),
    /// Not to be stored; the error line to answer with.
    Bad(Answered, &'static str),
    More,
}

/// Takes a value of `bytes` bytes from `rest`, the input after the command line.
fn data<'a>(rest: &'a [u8], bytes: usize, limit: usize) -> Data<'a> {
    if bytes > limit {
        return Data::Bad(
            Answered::Discard(bytes + 2),
            "SERVER_ERROR object too large for cache\r\n",
        );
    }
    let Some(value) = rest.get(..bytes + 2) else { return Data::More };
    match value.strip_suffix(b"\r\n") {
        Some(value) => Data::Whole(value),
        // As in memcached, whatever follows is read as a command.
        None => Data::Bad(Answered::Value(bytes + 2), "CLIENT_ERROR bad data chunk\r\n"),
    }
}
