//! The tables by which the programs and who reads them know of each other.
//!
//! - **choice**: which connections are looked at now ([`choice`]);
//! - **sockets**: a row for each of them ([`socket`]), at a place that its address gives. Two that
//!   share a place take it from each other, and the times of the one that lost it are not told;
//! - **instances**: for each when it last polled, and the histograms of what its frames led to
//!   ([`instance`]). Its place is given by its id, and of those with the same place one has it; place 0 is for what
//!   came through none, or through one that has not got its place;
//! - **CPUs**: how often was sent there, and when its receive softirq was asked for ([`cpu`]); it is memory of both,
//!   which a reading takes no system call for;
//! - **threads** of instances: when each was woken ([`thread`]).

use super::histogram::BUCKETS;

/// Places in the one value of the choice, in bytes; 64 bits each.
pub(super) mod choice {
    /// Counts the choices; a row of an earlier one is begun anew.
    pub(in super::super) const EPOCH: i16 = 0;
    /// One of so many connections is looked at, less 1: 0, 1, 3, 7 ... 255.
    pub(in super::super) const MASK: i16 = 8;
    /// The mask with which none is, and nothing counted.
    pub(in super::super) const NOTHING: u64 = u64::MAX;
    /// A byte for each instance's place: whether its frames are handed to other CPUs (RPS).
    pub(in super::super) const HANDED: i16 = 16;
    /// As many of them as a mask can reach.
    pub(in super::super) const HANDED_LEN: usize = 2 * super::INSTANCES as usize;
    pub(in super::super) const LEN: usize = HANDED as usize + HANDED_LEN;
}

/// Places in a socket's row, in bytes; 64 bits each.
pub(super) mod socket {
    /// Which socket it is, and which connection of that; 0 is none.
    pub(in super::super) const ID: i16 = 0;
    pub(in super::super) const EPOCH: i16 = 8;
    /// When the oldest data came that was not read, or 0.
    pub(in super::super) const READY: i16 = 16;
    /// How long that had been in the ring, or below 0 if nobody knows.
    pub(in super::super) const RING: i16 = 24;
    /// The same two of the latest data.
    pub(in super::super) const LAST: i16 = 32;
    pub(in super::super) const LAST_RING: i16 = 40;
    /// When the request that waits for its answer was read, or 0.
    pub(in super::super) const READ: i16 = 48;
    /// When it may have entered the ring, or 0.
    pub(in super::super) const BEGAN: i16 = 56;
    /// The place of its instance in their table, or 0.
    pub(in super::super) const INSTANCE: i16 = 64;
    pub(in super::super) const LEN: usize = 72;
}

/// Places in an instance's row, in bytes; 64 bits each.
pub(super) mod instance {
    /// The id of whose it is; 0 is nobody.
    pub(in super::super) const ID: i16 = 0;
    /// When its last poll ended.
    pub(in super::super) const POLLED: i16 = 8;
    /// When its timer was to fire, as of then; it was not armed if that is before. The greatest
    /// number if nobody had to be woken for the next poll.
    pub(in super::super) const EXPIRES: i16 = 16;
    /// When what the last poll took that found something may have entered the ring, at the earliest, if that
    /// is delivered after it, or 0.
    pub(in super::super) const TAKEN: i16 = 24;
    /// The histograms, one for each part.
    pub(in super::super) const HISTOGRAMS: i16 = 32;
    pub(in super::super) const LEN: usize = 32 + 4 * super::HISTOGRAM as usize;
}

/// Places in a CPU's row, in bytes; 64 bits each.
pub(super) mod cpu {
    /// Sends, of all connections.
    pub(in super::super) const SENDS: i16 = 0;
    /// Sends of those that are looked at.
    pub(in super::super) const SEEN: i16 = 8;
    /// When its receive softirq was asked for that has not begun yet, or 0.
    pub(in super::super) const RAISED: i16 = 16;
    /// When the one was asked for that began last, or 0.
    pub(in super::super) const RUNNING: i16 = 24;
    /// A cache line, so that CPUs do not share one.
    pub(in super::super) const LEN: usize = 64;
}

/// Places in a thread's row, in bytes; 64 bits each.
pub(super) mod thread {
    /// Its thread ID, as the first PID namespace has it; 0 in a place that none has taken.
    pub(in super::super) const ID: i16 = 0;
    /// When it was woken.
    pub(in super::super) const WOKEN: i16 = 8;
    pub(in super::super) const LEN: usize = 64;
}

/// Bytes of a histogram.
pub(super) const HISTOGRAM: i16 = 8 * BUCKETS as i16;

/// Places in the table of sockets: a power of two.
pub(super) const SOCKETS: u32 = 4096;
/// Places in the table of instances, beside that of none: a power of two.
pub(super) const INSTANCES: u32 = 256;
/// Places in the table of CPUs: a power of two. CPUs beyond share.
pub(super) const CPUS: u32 = 256;
/// Places in the table of threads: a power of two. Threads that share one take it from each other.
pub(super) const THREADS: u32 = 1024;

/// Descriptors of the maps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps {
    pub(super) choice: i32,
    pub(super) sockets: i32,
    pub(super) instances: i32,
    pub(super) cpus: i32,
    pub(super) threads: i32,
}

/// Where an instance's place is in their table.
pub(super) fn place_of(napi_id: u32) -> u32 {
    if napi_id == 0 { 0 } else { (napi_id & (INSTANCES - 1)) + 1 }
}
