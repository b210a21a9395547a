//! The classic text commands: `get`, `set`, `incr`, `stats` and the others.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use napkin_policy::{NEVER, Ns};

use super::line::{Line, number};
use super::stats::count;
use super::store::{Change, Entry, Value};
use super::{Answered, Data, KEY_LIMIT, Memcached, PIECE, Retrieval, VALUE_LIMIT, VERSION, data};

/// Upper bound, in bytes, of a `VALUE` line without its key, plus the line ends.
const HEAD: usize = 64;

const ERROR: &str = "ERROR\r\n";
pub(super) const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";

/// A storage command; `Cas` carries the unique number to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(u64),
}

/// The result of a storage command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Stored,
    NotStored,
    Exists,
    NotFound,
    TooLarge,
}

/// The outcome, with the item after the command: the one stored, or the one that prevented storing.
pub(super) type Stored = (Outcome, Option<Arc<Value>>);

pub(super) fn outcome_and_value(outcome: Outcome, item: Option<(&Entry, &Arc<Value>)>) -> Stored {
    (outcome, item.map(|(_, value)| Arc::clone(value)))
}

impl Outcome {
    fn line(self) -> &'static str {
        match self {
            Outcome::Stored => "STORED\r\n",
            Outcome::NotStored => "NOT_STORED\r\n",
            Outcome::Exists => "EXISTS\r\n",
            Outcome::NotFound => "NOT_FOUND\r\n",
            Outcome::TooLarge => "SERVER_ERROR object too large for cache\r\n",
        }
    }
}

/// Whether `key` is a valid key: 1 to [`KEY_LIMIT`] bytes.
pub(super) fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && key.len() <= KEY_LIMIT
}

impl Memcached {
    pub(super) fn classic(
        &mut self,
        command: &[u8],
        line: &mut Line<'_>,
        rest: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Answered {
        let set = match command {
            b"get" | b"gets" => {
                let retrieval = Retrieval { cas: command == b"gets", expires: None };
                return self.begin_retrieval(line, retrieval, output, now);
            }
            b"gat" | b"gats" => {
                let Some(exptime) = line.number() else {
                    return reply(output, "CLIENT_ERROR invalid exptime argument\r\n");
                };
                let expires = Some(self.expires(exptime, now));
                let retrieval = Retrieval { cas: command == b"gats", expires };
                return self.begin_retrieval(line, retrieval, output, now);
            }
            b"set" => Storage::Set,
            b"add" => Storage::Add,
            b"replace" => Storage::Replace,
            b"append" => Storage::Append,
            b"prepend" => Storage::Prepend,
            b"cas" => Storage::Cas(0),
            b"delete" => return self.delete(line, output, now),
            b"incr" => return self.add_to(line, false, output, now),
            b"decr" => return self.add_to(line, true, output, now),
            b"touch" => return self.touch(line, output, now),
            b"flush_all" => return self.flush_all(line, output, now),
            b"stats" => {
                match line.word() {
                    None => self.print_stats(output, now),
                    Some(b"reset") => {
                        self.reset_stats();
                        return reply(output, "RESET\r\n");
                    }
                    // There are no slabs, and no settings to report.
                    Some(b"items" | b"slabs" | b"sizes" | b"settings" | b"conns") => {
                        return reply(output, "END\r\n");
                    }
                    Some(_) => return reply(output, ERROR),
                }
                return Answered::Line;
            }
            b"version" => return reply(output, &format!("VERSION {VERSION}\r\n")),
            b"verbosity" => {
                return match (line.word(), line.word(), line.word()) {
                    (Some(b"noreply"), None, _) | (Some(_), Some(b"noreply"), None) => {
                        Answered::Line
                    }
                    (Some(level), None, _) if number::<u32>(level).is_some() => {
                        reply(output, "OK\r\n")
                    }
                    _ => reply(output, ERROR),
                };
            }
            b"quit" => return Answered::Quit,
            // A cross-protocol request from a browser: its body must not be read as commands.
            _ if line.rest().any(|word| word.starts_with(b"HTTP/")) => return Answered::Quit,
            _ => return reply(output, ERROR),
        };
        self.storage(set, line, rest, output, now)
    }

    /// Answers `get`, `gets`, `gat` and `gats`; one invalid key makes the whole command fail.
    fn begin_retrieval(
        &self,
        line: &mut Line<'_>,
        retrieval: Retrieval,
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Answered {
        if line.words() == 0 {
            return reply(output, ERROR);
        }
        if !line.rest().all(is_key) {
            return reply(output, FORMAT);
        }
        self.retrieve(line, retrieval, output, now)
    }

    /// Answers the remaining keys of a line, or as many as fill a [`PIECE`].
    pub(super) fn retrieve(
        &self,
        line: &mut Line<'_>,
        retrieval: Retrieval,
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Answered {
        let start = output.len();
        while let Some(key) = line.word() {
            count(&self.stats.cmd_get);
            if let Some(expires) = retrieval.expires {
                count(&self.stats.cmd_touch);
                self.prolong(key, expires, now);
            }
            let hit = self.store.get(key, now, |entry, value| {
                entry.read.store(now, Ordering::Relaxed);
                entry.fetched.store(true, Ordering::Relaxed);
                // Reserve once: growing by doubling could take twice the room, which counts against the bound of
                // all connections.
                output.reserve(key.len() + value.data.len() + HEAD);
                output.extend_from_slice(b"VALUE ");
                output.extend_from_slice(key);
                // Writing to a vector cannot fail.
                let _ = write!(output, " {} {}", value.flags, value.data.len());
                if retrieval.cas {
                    let _ = write!(output, " {}", value.cas);
                }
                output.extend_from_slice(b"\r\n");
                output.extend_from_slice(&value.data);
                output.extend_from_slice(b"\r\n");
            });
            let counts = &self.stats;
            count(if hit.is_some() { &counts.get_hits } else { &counts.get_misses });
            if output.len() - start >= PIECE {
                return Answered::Keys(retrieval);
            }
        }
        reply(output, "END\r\n")
    }

    /// Sets a new expiry time. Returns whether the item exists.
    pub(super) fn prolong(&self, key: &[u8], expires: Ns, now: Ns) -> bool {
        let hit = self.store.change(key, now, |item| match item {
            Some((_, value)) => Change::Alter(Value { expires, ..value.clone() }, true),
            None => Change::Leave(false),
        });
        count(if hit { &self.stats.touch_hits } else { &self.stats.touch_misses });
        hit
    }

    fn storage(
        &mut self,
        set: Storage,
        line: &mut Line<'_>,
        rest: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Answered {
        let needed = if let Storage::Cas(_) = set { 5 } else { 4 };
        if line.words() < needed {
            return reply(output, ERROR);
        }
        let parsed = (|| {
            let key = line.word()?;
            let (flags, exptime) = (line.number::<u32>()?, line.number::<i64>()?);
            let bytes = line.number().filter(|bytes| *bytes <= VALUE_LIMIT)?;
            let set = if let Storage::Cas(_) = set { Storage::Cas(line.number()?) } else { set };
            Some((key, flags, exptime, bytes, set))
        })();
        let Some((key, flags, exptime, bytes, set)) = parsed else {
            return reply(output, FORMAT);
        };
        let quiet = line.noreply();
        if !is_key(key) {
            reply_unless_quiet(output, quiet, FORMAT);
            return Answered::Discard(bytes + 2);
        }
        let value = match data(rest, bytes, self.limits.item) {
            Data::Whole(value) => value,
            Data::More => return Answered::More,
            Data::Bad(answered, why) => {
                // If a `set` is too large, the old value must go, because the client believes that it was replaced.
                // Other commands might not have replaced it anyway.
                if set == Storage::Set && matches!(answered, Answered::Discard(_)) {
                    self.store.change(key, now, |_| Change::<()>::Delete(()));
                }
                reply_unless_quiet(output, quiet, why);
                return answered;
            }
        };
        count(&self.stats.cmd_set);
        let value = Value { flags, expires: self.expires(exptime, now), ..Value::new(value, now) };
        let (stored, _) = self.store_value(set, None, key, &value, now);
        if !quiet {
            output.extend_from_slice(stored.line().as_bytes());
        }
        Answered::Value(bytes + 2)
    }

    /// Stores a value as the command demands. `compare`, if given, makes append and prepend conditional on the
    /// item's unique number.
    pub(super) fn store_value(
        &self,
        set: Storage,
        compare: Option<u64>,
        key: &[u8],
        value: &Value,
        now: Ns,
    ) -> Stored {
        let joined = |first: &[u8], second: &[u8], old: &Value| {
            if first.len() + second.len() > self.limits.item {
                return Change::Leave(Outcome::TooLarge);
            }
            let data = [first, second].concat().into();
            let (stale, stub) = (false, false);
            Change::Store(
                Value { data, cas: value.cas, stale, stub, ..old.clone() },
                Outcome::Stored,
            )
        };
        let decide = |item: Option<(&Entry, &Value)>| match (set, item) {
            (Storage::Add, Some(_))
            | (Storage::Replace | Storage::Append | Storage::Prepend, None) => {
                Change::Leave(Outcome::NotStored)
            }
            (Storage::Cas(_), None) => Change::Leave(Outcome::NotFound),
            (Storage::Cas(cas), Some((_, old))) if old.cas != cas => Change::Leave(Outcome::Exists),
            (Storage::Append | Storage::Prepend, Some((_, old)))
                if compare.is_some_and(|compare| compare != old.cas) =>
            {
                Change::Leave(Outcome::Exists)
            }
            (Storage::Append, Some((_, old))) => joined(&old.data, &value.data, old),
            (Storage::Prepend, Some((_, old))) => joined(&value.data, &old.data, old),
            _ => Change::Store(value.clone(), Outcome::Stored),
        };
        let stored = self.store.change_and_read(key, now, decide, outcome_and_value);
        if let Storage::Cas(_) = set {
            count(match stored.0 {
                Outcome::Exists => &self.stats.cas_badval,
                Outcome::NotFound => &self.stats.cas_misses,
                _ => &self.stats.cas_hits,
            });
        }
        stored
    }

    fn delete(&self, line: &mut Line<'_>, output: &mut Vec<u8>, now: Ns) -> Answered {
        const USAGE: &str =
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
        let Some(key) = line.word() else { return reply(output, ERROR) };
        let quiet = match (line.word(), line.word()) {
            (None, _) => false,
            (Some(b"noreply"), None) | (Some(b"0"), Some(b"noreply")) => true,
            (Some(b"0"), None) => false,
            _ => return reply(output, USAGE),
        };
        if !is_key(key) {
            return reply(output, FORMAT);
        }
        let hit = self.store.change(key, now, |item| Change::Delete(item.is_some()));
        count(if hit { &self.stats.delete_hits } else { &self.stats.delete_misses });
        reply_unless_quiet(output, quiet, if hit { "DELETED\r\n" } else { "NOT_FOUND\r\n" })
    }

    fn add_to(&self, line: &mut Line<'_>, down: bool, output: &mut Vec<u8>, now: Ns) -> Answered {
        let (Some(key), Some(delta)) = (line.word(), line.word()) else {
            return reply(output, ERROR);
        };
        let quiet = line.noreply();
        if !is_key(key) {
            return reply_unless_quiet(output, quiet, FORMAT);
        }
        let Some(delta) = number(delta) else {
            return reply_unless_quiet(
                output,
                quiet,
                "CLIENT_ERROR invalid numeric delta argument\r\n",
            );
        };
        let next = self.store.change(key, now, |item| {
            let Some((_, old)) = item else { return Change::Leave(Ok(None)) };
            let Some(next) = sum(&old.data, delta, down) else { return Change::Leave(Err(())) };
            let value = Value { data: digits(next, &old.data, down), cas: 0, ..old.clone() };
            Change::Alter(value, Ok(Some(next)))
        });
        let counts = match (down, &next) {
            (false, Ok(None)) => &self.stats.incr_misses,
            (true, Ok(None)) => &self.stats.decr_misses,
            (false, _) => &self.stats.incr_hits,
            (true, _) => &self.stats.decr_hits,
        };
        count(counts);
        match next {
            Ok(Some(next)) => reply_unless_quiet(output, quiet, &format!("{next}\r\n")),
            Ok(None) => reply_unless_quiet(output, quiet, "NOT_FOUND\r\n"),
            Err(()) => reply_unless_quiet(
                output,
                quiet,
                "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            ),
        }
    }

    fn touch(&self, line: &mut Line<'_>, output: &mut Vec<u8>, now: Ns) -> Answered {
        let (Some(key), Some(exptime)) = (line.word(), line.word()) else {
            return reply(output, ERROR);
        };
        let quiet = line.noreply();
        if !is_key(key) {
            return reply_unless_quiet(output, quiet, FORMAT);
        }
        let Some(exptime) = number(exptime) else {
            return reply_unless_quiet(output, quiet, "CLIENT_ERROR invalid exptime argument\r\n");
        };
        count(&self.stats.cmd_touch);
        let hit = self.prolong(key, self.expires(exptime, now), now);
        reply_unless_quiet(output, quiet, if hit { "TOUCHED\r\n" } else { "NOT_FOUND\r\n" })
    }

    fn flush_all(&self, line: &mut Line<'_>, output: &mut Vec<u8>, now: Ns) -> Answered {
        let mut quiet = false;
        let mut delay = 0;
        while let Some(word) = line.word() {
            match (word, number::<i64>(word)) {
                (b"noreply", _) => quiet = true,
                (_, Some(seconds)) => delay = seconds,
                _ => return reply(output, "CLIENT_ERROR invalid exptime argument\r\n"),
            }
        }
        count(&self.stats.cmd_flush);
        match delay {
            ..=0 => {
                // A pending delayed flush is cancelled.
                self.store.flush_at(NEVER, now);
                self.store.clear();
            }
            _ => self.store.flush_at(self.expires(delay, now), now),
        }
        reply_unless_quiet(output, quiet, "OK\r\n")
    }
}

/// Adds `delta` to a decimal number, wrapping at 64 bits, or subtracts it, stopping at 0. `None` if `data` is not a
/// number.
pub(super) fn sum(data: &[u8], delta: u64, down: bool) -> Option<u64> {
    let old: u64 = number(data)?;
    Some(if down { old.saturating_sub(delta) } else { old.wrapping_add(delta) })
}

/// Formats a number for storage: after `decr` it keeps its length, padded with blanks.
pub(super) fn digits(next: u64, old: &[u8], down: bool) -> Box<[u8]> {
    let mut digits = next.to_string().into_bytes();
    if down && digits.len() < old.len() {
        digits.resize(old.len(), b' ');
    }
    digits.into()
}

fn reply(output: &mut Vec<u8>, line: &str) -> Answered {
    output.extend_from_slice(line.as_bytes());
    Answered::Line
}

fn reply_unless_quiet(output: &mut Vec<u8>, quiet: bool, line: &str) -> Answered {
    if quiet { Answered::Line } else { reply(output, line) }
}
