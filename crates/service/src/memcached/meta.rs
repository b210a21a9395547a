//! The meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me`.
//!
//! Flags are single letters, some with a token behind them. The answer repeats the requested flags in the order of
//! the request.

use std::io::Write;
use std::sync::atomic::Ordering;

use napkin_policy::{NEVER, Ns};

use super::classic::{FORMAT, Outcome, Storage, Stored, digits, outcome_and_value, sum};
use super::flags::{Flags, key};
use super::line::Line;
use super::stats::count;
use super::store::{Change, Entry, Value};
use super::{Answered, Data, Memcached, SECOND, VALUE_LIMIT, data};

/// Appends a two-letter result code with the flags that every answer repeats; nothing if `quiet` (flag `q`).
fn result(
    code: &str,
    quiet: bool,
    word: &[u8],
    flags: &Flags<'_>,
    output: &mut Vec<u8>,
) -> Answered {
    if !quiet {
        output.extend_from_slice(code.as_bytes());
        flags.echo(word, None, output);
        output.extend_from_slice(b"\r\n");
    }
    Answered::Line
}

/// Seconds until the expiry time; -1 for never.
fn ttl(expires: Ns, now: Ns) -> i64 {
    if expires == NEVER { -1 } else { (expires.saturating_sub(now) / SECOND) as i64 }
}

/// Appends the flags that describe an item, in the order of the request.
fn describe(
    (entry, value): (&Entry, &Value),
    word: &[u8],
    flags: &Flags<'_>,
    now: Ns,
    output: &mut Vec<u8>,
) {
    let read = entry.read.load(Ordering::Relaxed);
    // Writing to a vector cannot fail.
    for (letter, given) in &flags.0 {
        let _ = match letter {
            b'f' => write!(output, " f{}", value.flags),
            b'c' => write!(output, " c{}", value.cas),
            b's' => write!(output, " s{}", value.data.len()),
            b't' => write!(output, " t{}", ttl(value.expires, now)),
            b'h' => write!(output, " h{}", u8::from(entry.fetched.load(Ordering::Relaxed))),
            b'l' => write!(output, " l{}", now.saturating_sub(read) / SECOND),
            b'O' => output.write_all(&[b" O", *given].concat()),
            b'k' => output.write_all(&[b" k", word].concat()),
            b'b' if flags.has(b'k') => output.write_all(b" b"),
            _ => Ok(()),
        };
    }
}

impl Memcached {
    pub(super) fn meta(
        &mut self,
        command: u8,
        line: &mut Line<'_>,
        rest: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Answered {
        if command == b'n' {
            output.extend_from_slice(b"MN\r\n");
            return Answered::Line;
        }
        let refuse = |output: &mut Vec<u8>, why: &str| {
            output.extend_from_slice(why.as_bytes());
            Answered::Line
        };
        if !b"gsdae".contains(&command) {
            return refuse(output, "ERROR\r\n");
        }
        let Some(word) = line.word() else { return refuse(output, FORMAT) };
        let bytes = match command {
            b's' => match line.number().filter(|bytes| *bytes <= VALUE_LIMIT) {
                Some(bytes) => bytes,
                None => return refuse(output, "CLIENT_ERROR bad data chunk\r\n"),
            },
            _ => 0,
        };
        let flags = Flags::read(line);
        let parsed = flags.and_then(|flags| match key(word, &flags) {
            Some(key) => Ok((flags, key)),
            None => Err(FORMAT),
        });
        let answered = match &parsed {
            Err(why) => Err(*why),
            Ok((flags, key)) => match command {
                b'g' => self.meta_get(word, key, flags, output, now),
                b's' => return self.meta_set((word, key), bytes, flags, rest, output, now),
                b'd' => self.meta_delete(word, key, flags, output, now),
                b'a' => self.meta_arithmetic(word, key, flags, output, now),
                _ => Ok(self.meta_debug(word, key, output, now)),
            },
        };
        match answered {
            Ok(answered) => answered,
            Err(why) => {
                output.extend_from_slice(why.as_bytes());
                if command == b's' { Answered::Discard(bytes + 2) } else { Answered::Line }
            }
        }
    }

    fn meta_get(
        &self,
        word: &[u8],
        key: &[u8],
        flags: &Flags<'_>,
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Result<Answered, &'static str> {
        count(&self.stats.cmd_get);
        let quiet = flags.has(b'q');
        let cas = flags.number::<u64>(b'E')?.unwrap_or(0);
        let recache = flags.number::<i64>(b'R')?;
        if let Some(exptime) = flags.number::<i64>(b'T')? {
            count(&self.stats.cmd_touch);
            self.prolong(key, self.expires(exptime, now), now);
        }
        let vivify = flags.number::<i64>(b'N')?;
        let mut answer = |entry: &Entry, value: &Value, vivified: bool| {
            if flags.has(b'v') {
                let _ = write!(output, "VA {}", value.data.len());
            } else {
                output.extend_from_slice(b"HD");
            }
            describe((entry, value), word, flags, now, output);
            // The client that gets `W` has won and must store the item anew; until then, others get `Z`.
            let old = recache
                .is_some_and(|least| value.expires != NEVER && ttl(value.expires, now) < least);
            if vivified {
                output.extend_from_slice(b" W");
            } else if value.stub || value.stale || old || entry.won.load(Ordering::Relaxed) {
                let won = value.stub || entry.won.swap(true, Ordering::Relaxed);
                output.extend_from_slice(if won { b" Z" } else { b" W" });
            }
            if value.stale {
                output.extend_from_slice(b" X");
            }
            output.extend_from_slice(b"\r\n");
            if flags.has(b'v') {
                // Reserve once, as in a classic answer.
                output.reserve(value.data.len() + 2);
                output.extend_from_slice(&value.data);
                output.extend_from_slice(b"\r\n");
            }
            if !flags.has(b'u') {
                entry.record_read(now);
            }
        };
        let (hit, vivified) = match vivify {
            None => {
                let hit = self.store.peek(key, now, |entry, value| answer(entry, value, false));
                (hit.is_some(), false)
            }
            Some(exptime) => {
                let expires = self.expires(exptime, now);
                let stub = || Value { expires, cas, stub: true, ..Value::new(b"", now) };
                let decide = |item: Option<(&Entry, &Value)>| match item {
                    Some(_) => Change::Leave(false),
                    None => Change::Store(stub(), true),
                };
                self.store.change_and_read(key, now, decide, |vivified, item| {
                    if let Some((entry, value)) = item {
                        answer(entry, value, vivified);
                    }
                    (item.is_some(), vivified)
                })
            }
        };
        let counts = &self.stats;
        count(if hit && !vivified { &counts.get_hits } else { &counts.get_misses });
        Ok(if hit { Answered::Line } else { result("EN", quiet, word, flags, output) })
    }

    fn meta_set(
        &self,
        (word, key): (&[u8], &[u8]),
        bytes: usize,
        flags: &Flags<'_>,
        rest: &[u8],
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Answered {
        let value = match data(rest, bytes, self.limits.item) {
            Data::Whole(value) => value,
            Data::More => return Answered::More,
            Data::Bad(answered, why) => {
                // Too large: the old value may be out of date.
                if let Answered::Discard(_) = answered {
                    self.store.change(key, now, |_| Change::<()>::Delete(()));
                }
                output.extend_from_slice(why.as_bytes());
                return answered;
            }
        };
        let read = (|| {
            let exptime = flags.number::<i64>(b'T')?.unwrap_or(0);
            let client = flags.number::<u32>(b'F')?.unwrap_or(0);
            let cas = flags.number::<u64>(b'E')?.unwrap_or(0);
            let mode = match flags.value(b'M').unwrap_or(b"S") {
                b"S" | b"s" => Storage::Set,
                b"E" | b"e" => Storage::Add,
                b"A" | b"a" => Storage::Append,
                b"P" | b"p" => Storage::Prepend,
                b"R" | b"r" => Storage::Replace,
                _ => return Err("CLIENT_ERROR invalid mode for ms\r\n"),
            };
            let expires = self.expires(exptime, now);
            let value = Value { flags: client, cas, expires, ..Value::new(value, now) };
            Ok((value, mode, flags.number::<u64>(b'C')?, flags.number::<i64>(b'N')?))
        })();
        let (value, mode, compare, vivify) = match read {
            Ok(read) => read,
            Err(why) => {
                output.extend_from_slice(why.as_bytes());
                return Answered::Value(bytes + 2);
            }
        };
        count(&self.stats.cmd_set);
        let (stored, item) = match (compare, mode) {
            (Some(cas), Storage::Set | Storage::Replace) if flags.has(b'I') => {
                self.invalidate_or_store(key, cas, &value, now)
            }
            (Some(cas), Storage::Set | Storage::Replace) => {
                self.store_value(Storage::Cas(cas), None, key, &value, now)
            }
            (compare, Storage::Append | Storage::Prepend) => {
                let stored = self.store_value(mode, compare, key, &value, now);
                match (stored.0, vivify) {
                    (Outcome::NotStored, Some(exptime)) => {
                        let expires = self.expires(exptime, now);
                        let value = Value { expires, ..value };
                        self.store_value(Storage::Set, None, key, &value, now)
                    }
                    _ => stored,
                }
            }
            // `add` ignores `C`: it has no item to compare with.
            (_, mode) => self.store_value(mode, None, key, &value, now),
        };
        let code = match stored {
            Outcome::Stored => "HD",
            Outcome::NotStored => "NS",
            Outcome::Exists => "EX",
            Outcome::NotFound => "NF",
            Outcome::TooLarge => {
                output.extend_from_slice(b"SERVER_ERROR object too large for cache\r\n");
                return Answered::Value(bytes + 2);
            }
        };
        if !(flags.has(b'q') && stored == Outcome::Stored) {
            output.extend_from_slice(code.as_bytes());
            flags.echo(word, item.as_deref(), output);
            output.extend_from_slice(b"\r\n");
        }
        Answered::Value(bytes + 2)
    }

    /// A compare-and-store that also accepts a CAS number smaller than the item's: the value is then stored and
    /// marked stale.
    fn invalidate_or_store(&self, key: &[u8], cas: u64, value: &Value, now: Ns) -> Stored {
        let decide = |item: Option<(&Entry, &Value)>| match item {
            None => Change::Leave(Outcome::NotFound),
            Some((_, old)) if cas == old.cas => Change::Store(value.clone(), Outcome::Stored),
            Some((_, old)) if cas < old.cas => {
                Change::Store(Value { stale: true, ..value.clone() }, Outcome::Stored)
            }
            Some(_) => Change::Leave(Outcome::Exists),
        };
        self.store.change_and_read(key, now, decide, outcome_and_value)
    }

    fn meta_delete(
        &self,
        word: &[u8],
        key: &[u8],
        flags: &Flags<'_>,
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Result<Answered, &'static str> {
        let compare = flags.number::<u64>(b'C')?;
        let cas = flags.number::<u64>(b'E')?.unwrap_or(0);
        let exptime = flags.number::<i64>(b'T')?;
        let code = self.store.change(key, now, |item| {
            let Some((_, old)) = item else { return Change::Leave("NF") };
            if compare.is_some_and(|compare| compare != old.cas) {
                return Change::Leave("EX");
            }
            // Without `I` and `x` the item is deleted; with them it stays, marked stale or emptied.
            if !flags.has(b'I') && !flags.has(b'x') {
                return Change::Delete("HD");
            }
            let expires = exptime.map_or(old.expires, |exptime| self.expires(exptime, now));
            let kept = Value { expires, cas, ..old.clone() };
            let kept = match flags.has(b'x') {
                true => Value { data: Box::default(), flags: 0, ..kept },
                false => kept,
            };
            Change::Alter(Value { stale: flags.has(b'I'), stub: false, ..kept }, "HD")
        });
        count(if code == "NF" { &self.stats.delete_misses } else { &self.stats.delete_hits });
        let quiet = flags.has(b'q') && code != "EX";
        Ok(result(code, quiet, word, flags, output))
    }

    fn meta_arithmetic(
        &self,
        word: &[u8],
        key: &[u8],
        flags: &Flags<'_>,
        output: &mut Vec<u8>,
        now: Ns,
    ) -> Result<Answered, &'static str> {
        let down = match flags.value(b'M').unwrap_or(b"I") {
            b"I" | b"i" | b"+" => false,
            b"D" | b"d" | b"-" => true,
            _ => return Err("CLIENT_ERROR invalid mode for ma\r\n"),
        };
        let delta = flags.number::<u64>(b'D')?.unwrap_or(1);
        let first = flags.number::<u64>(b'J')?.unwrap_or(0);
        let compare = flags.number::<u64>(b'C')?;
        let cas = flags.number::<u64>(b'E')?.unwrap_or(0);
        let (create, exptime) = (flags.number::<i64>(b'N')?, flags.number::<i64>(b'T')?);
        let wanted = flags.has(b'v');
        let silent = flags.has(b'q') && !wanted;
        let decide = |item: Option<(&Entry, &Value)>| {
            let Some((_, old)) = item else {
                let Some(exptime) = create else { return Change::Leave(Ok("NF")) };
                let value = Value::new(first.to_string().as_bytes(), now);
                let expires = self.expires(exptime, now);
                return Change::Store(Value { expires, cas, ..value }, Ok("HD"));
            };
            if compare.is_some_and(|compare| compare != old.cas) {
                return Change::Leave(Ok("EX"));
            }
            let Some(next) = sum(&old.data, delta, down) else { return Change::Leave(Err(())) };
            let expires = exptime.map_or(old.expires, |exptime| self.expires(exptime, now));
            let data = digits(next, &old.data, down);
            Change::Alter(Value { data, cas, expires, ..old.clone() }, Ok("HD"))
        };
        let code = self.store.change_and_read(key, now, decide, |code, item| {
            if code == Ok("HD")
                && !silent
                && let Some((entry, value)) = item
            {
                let number = value.data.trim_ascii_end();
                match wanted {
                    true => {
                        let _ = write!(output, "VA {}", number.len());
                    }
                    false => output.extend_from_slice(b"HD"),
                }
                describe((entry, value), word, flags, now, output);
                output.extend_from_slice(b"\r\n");
                if wanted {
                    output.extend_from_slice(number);
                    output.extend_from_slice(b"\r\n");
                }
            }
            code
        });
        let Ok(code) = code else {
            return Err("CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
        };
        let hit = code != "NF";
        count(match (down, hit) {
            (false, true) => &self.stats.incr_hits,
            (false, false) => &self.stats.incr_misses,
            (true, true) => &self.stats.decr_hits,
            (true, false) => &self.stats.decr_misses,
        });
        if code == "HD" {
            return Ok(Answered::Line);
        }
        Ok(result(code, flags.has(b'q') && code == "NF", word, flags, output))
    }

    fn meta_debug(&self, word: &[u8], key: &[u8], output: &mut Vec<u8>, now: Ns) -> Answered {
        // As in memcached, a look by `me` does not keep an item from being evicted.
        let found = self.store.peek(key, now, |entry, value| {
            output.extend_from_slice(b"ME ");
            output.extend_from_slice(word);
            let since = now.saturating_sub(entry.read.load(Ordering::Relaxed)) / SECOND;
            let fetched = if entry.fetched.load(Ordering::Relaxed) { "yes" } else { "no" };
            let (exp, cas, size) = (ttl(value.expires, now), value.cas, value.data.len());
            let _ = write!(
                output,
                " exp={exp} la={since} cas={cas} fetch={fetched} cls=1 size={size}\r\n"
            );
        });
        if found.is_none() {
            output.extend_from_slice(b"EN\r\n");
        }
        Answered::Line
    }
}
