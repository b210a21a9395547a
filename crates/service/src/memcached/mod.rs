//! memcached: the text protocol and its meta commands, as protocol.txt of memcached 1.6 has them.
//!
//! One [`Memcached`] a thread, all on one [`Store`]. A connection has no state but the rest of a value
//! that was refused and is still coming. What is not here: the binary protocol, SASL, slabs and what
//! tunes them, watchers.

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

/// Bytes of the longest key.
pub const KEY_LIMIT: usize = 250;
/// Bytes of the longest command line, but for those of `get` and `gets`.
const LINE_LIMIT: usize = 64 * 1_024;
/// Bytes of the longest line of a `get` or `gets`, whose keys may be many. A connection holds as much of one that
/// has not ended, which is less than of a value of the usual largest size.
const GET_LIMIT: usize = 1_024 * 1_024;
/// Bytes of values after which the keys of a `get` wait until those were sent. (As many keys as a line
/// holds, each of the largest item, are thousands of times as much as all items together.)
const PIECE: usize = 64 * 1_024;
/// Bytes of the longest value that is refused and thrown away as it comes. A line that tells of more is
/// itself refused, as memcached does.
const VALUE_LIMIT: usize = i32::MAX as usize - 2;
/// What a request of the binary protocol begins with, and no command does.
const BINARY: u8 = 0x80;
/// What `version` says.
const VERSION: &str = concat!("1.6.0-napkin-", env!("CARGO_PKG_VERSION"));
/// Times above it are points in time, not lengths (30 days, as in protocol.txt).
const RELATIVE: i64 = 60 * 60 * 24 * 30;
const SECOND: Ns = 1_000_000_000;

/// How much is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all items (`memcached -m`), and as many again, but some MiB at least, of all requests that have
    /// not come whole and answers that are not read.
    pub memory: usize,
    /// Bytes of the largest value (`memcached -I`).
    pub item: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 64 << 20, item: 1 << 20 }
    }
}

/// Limits that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The largest value would not fit.
    #[error(
        "a memory limit of {memory} bytes is less than twice the largest item of {item}: give more \
         memory, or smaller items"
    )]
    Memory {
        /// As it was given.
        memory: usize,
        /// As it was given.
        item: usize,
    },
    /// Items of no bytes, or of more than fit in a request.
    #[error("the largest item is {0} bytes: give 1 byte to 128 MiB")]
    Item(usize),
}

impl Limits {
    fn longest_request(self) -> usize {
        GET_LIMIT.max(LINE_LIMIT + self.item + 2)
    }

    /// Refuses limits that contradict each other.
    ///
    /// # Errors
    /// Which do.
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

/// One thread's memcached.
#[derive(Debug, Clone)]
pub struct Memcached {
    store: Arc<Store>,
    stats: Arc<Stats>,
    /// What connections hold beside the items.
    held: Arc<Bound>,
    limits: Limits,
    /// The Unix time, in seconds, at time 0 of the clock that requests are served by.
    epoch: i64,
    /// When it was started, by that clock.
    started: Ns,
    /// Requests that were served without an answer, by this thread.
    silent: u64,
}

/// What is kept of a connection.
#[derive(Debug, Default)]
pub struct Client {
    /// Bytes of a refused value that are still to come.
    swallow: usize,
    /// Bytes at the beginning of what waits in which no line ends.
    seen: usize,
    /// A `get` of whose keys some are still to be answered.
    retrieval: Option<Retrieval>,
}

/// Which `get` it is.
#[derive(Debug, Clone, Copy, Default)]
struct Retrieval {
    /// Each item's unique number is told.
    cas: bool,
    /// When what is found expires from now on.
    expires: Option<Ns>,
}

impl Memcached {
    /// A service on a store of its own; clone it for each thread. `epoch` is the Unix time, in seconds,
    /// at time 0 of the clock by which it is called.
    ///
    /// # Errors
    /// Limits that contradict each other.
    pub fn new(limits: Limits, epoch: i64) -> Result<Memcached, LimitError> {
        let limits = limits.check()?;
        let store = Arc::new(Store::new(limits.memory));
        // One connection's buffers are never too much, which grow by doubling.
        let held = Arc::new(Bound::new(limits.memory.max(4 * limits.longest_request())));
        let stats = Arc::default();
        Ok(Memcached { store, stats, held, limits, epoch, started: 0, silent: 0 })
    }

    /// The same, started at this time of the clock, from which its uptime counts; else at time 0.
    pub fn started_at(self, now: Ns) -> Memcached {
        Memcached { started: now, ..self }
    }

    /// The items, which all threads share.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What it has counted, all threads together.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// When what is to live for `exptime` expires, as protocol.txt reads it: 0 is never, up to 30 days
    /// are seconds from now, more is a Unix time, and below 0 has been already.
    fn expires(&self, exptime: i64, now: Ns) -> Ns {
        let seconds = match exptime {
            0 => return NEVER,
            ..0 => return 0,
            1..=RELATIVE => return now.saturating_add(exptime as Ns * SECOND),
            _ => exptime - self.epoch,
        };
        // A point in time that has passed has expired.
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
        let silent = matches!(served, Served::Took(_)) && output.len() == before;
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
    /// Serves the request at the beginning of `input`.
    fn answer(
        &mut self,
        client: &mut Client,
        input: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Served {
        if client.swallow > 0 {
            let bytes = client.swallow.min(input.len());
            client.swallow -= bytes;
            return Served::Part(bytes);
        }
        if input.first() == Some(&BINARY) {
            // It has no line end, so that both sides would wait for ever.
            output.extend_from_slice(b"CLIENT_ERROR the binary protocol is not spoken here\r\n");
            return Served::Close;
        }
        let gets =
            client.retrieval.is_some() || input.starts_with(b"get ") || input.starts_with(b"gets ");
        let limit = if gets { GET_LIMIT } else { LINE_LIMIT };
        let part = &input[..input.len().min(limit)];
        // Not from the beginning each time that a piece of a long line comes.
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
                    Served::Part(taken)
                }
                _ => Served::Part(end + 1),
            };
        }
        let command = line.word().unwrap_or_default();
        let answered = match command {
            [b'm', _] => self.meta(command[1], &mut line, rest, output, now),
            _ => self.classic(command, &mut line, rest, output, now),
        };
        match answered {
            Answered::Line => Served::Took(end + 1),
            Answered::Value(bytes) => Served::Took(end + 1 + bytes),
            Answered::Swallow(bytes) => {
                client.swallow = bytes;
                Served::Took(end + 1)
            }
            Answered::Keys(retrieval) => {
                let taken = line.start(input);
                (client.retrieval, client.seen) = (Some(retrieval), end - taken);
                Served::Took(taken)
            }
            Answered::More => {
                client.seen = end;
                Served::More
            }
            Answered::Quit => Served::Close,
        }
    }
}

/// What a command took beside its line.
enum Answered {
    Line,
    /// A value of so many bytes, its line end included.
    Value(usize),
    /// A value that is refused, and of which so many bytes are to be thrown away, now or as they come.
    Swallow(usize),
    /// Its line up to a key, from which on it is to be answered later.
    Keys(Retrieval),
    /// The value has not come yet.
    More,
    Quit,
}

/// The value of a storage command: as many bytes as its line says, and a line end.
enum Data<'a> {
    Whole(&'a [u8]),
    /// To be answered so, and not to be stored.
    Bad(Answered, &'static str),
    More,
}

/// Takes the value of `bytes` bytes off what follows the line.
fn data<'a>(rest: &'a [u8], bytes: usize, limit: usize) -> Data<'a> {
    if bytes > limit {
        return Data::Bad(
            Answered::Swallow(bytes + 2),
            "SERVER_ERROR object too large for cache\r\n",
        );
    }
    let Some(value) = rest.get(..bytes + 2) else { return Data::More };
    match value.strip_suffix(b"\r\n") {
        Some(value) => Data::Whole(value),
        // What is left of it is read as a command, as memcached does.
        None => Data::Bad(Answered::Value(bytes + 2), "CLIENT_ERROR bad data chunk\r\n"),
    }
}
