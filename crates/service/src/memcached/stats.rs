//! Counters of a memcached, shared by all threads, and the output of `stats`.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use napkin_policy::Ns;

use super::{Memcached, SECOND, VERSION};

/// Counters, with memcached's names.
#[derive(Debug, Default)]
pub struct Stats {
    pub(super) cmd_get: AtomicU64,
    pub(super) cmd_set: AtomicU64,
    pub(super) cmd_flush: AtomicU64,
    pub(super) cmd_touch: AtomicU64,
    pub(super) get_hits: AtomicU64,
    pub(super) get_misses: AtomicU64,
    pub(super) delete_hits: AtomicU64,
    pub(super) delete_misses: AtomicU64,
    pub(super) incr_hits: AtomicU64,
    pub(super) incr_misses: AtomicU64,
    pub(super) decr_hits: AtomicU64,
    pub(super) decr_misses: AtomicU64,
    pub(super) cas_hits: AtomicU64,
    pub(super) cas_misses: AtomicU64,
    pub(super) cas_badval: AtomicU64,
    pub(super) touch_hits: AtomicU64,
    pub(super) touch_misses: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Stats {
    fn all(&self) -> [(&'static str, &AtomicU64); 17] {
        [
            ("cmd_get", &self.cmd_get),
            ("cmd_set", &self.cmd_set),
            ("cmd_flush", &self.cmd_flush),
            ("cmd_touch", &self.cmd_touch),
            ("get_hits", &self.get_hits),
            ("get_misses", &self.get_misses),
            ("delete_hits", &self.delete_hits),
            ("delete_misses", &self.delete_misses),
            ("incr_hits", &self.incr_hits),
            ("incr_misses", &self.incr_misses),
            ("decr_hits", &self.decr_hits),
            ("decr_misses", &self.decr_misses),
            ("cas_hits", &self.cas_hits),
            ("cas_misses", &self.cas_misses),
            ("cas_badval", &self.cas_badval),
            ("touch_hits", &self.touch_hits),
            ("touch_misses", &self.touch_misses),
        ]
    }

    /// Keys looked up (`cmd_get`).
    pub fn gets(&self) -> u64 {
        self.cmd_get.load(Ordering::Relaxed)
    }

    /// Storage commands (`cmd_set`).
    pub fn sets(&self) -> u64 {
        self.cmd_set.load(Ordering::Relaxed)
    }
}

impl Memcached {
    /// Resets the counters to 0 (`stats reset`).
    pub(super) fn reset_stats(&self) {
        for (_, counter) in self.stats.all() {
            counter.store(0, Ordering::Relaxed);
        }
        self.store.reset_counts();
        self.held.reset_counts();
    }

    /// Writes the answer to `stats`.
    pub(super) fn print_stats(&self, output: &mut Vec<u8>, now: Ns) {
        let seconds = now / SECOND;
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a vector cannot fail.
            let _ = write!(output, "STAT {name} {value}\r\n");
        };
        line("pid", &std::process::id());
        line("uptime", &(now.saturating_sub(self.started) / SECOND));
        line("time", &(self.epoch + seconds as i64));
        line("version", &VERSION);
        line("pointer_size", &usize::BITS);
        line("curr_items", &self.store.len());
        line("total_items", &self.store.total());
        line("bytes", &self.store.bytes());
        line("limit_maxbytes", &self.store.limit());
        line("evictions", &self.store.evictions());
        line("read_buf_bytes", &self.held.bytes());
        line("read_buf_oom", &self.held.refused());
        for (name, counter) in self.stats.all() {
            line(name, &counter.load(Ordering::Relaxed));
        }
        output.extend_from_slice(b"END\r\n");
    }
}
