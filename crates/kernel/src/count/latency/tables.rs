//! The tables that the latency programs and this process share.
//!
//! - **choice**: which connections are sampled now ([`choice`]);
//! - **sockets**: a row for each of them ([`socket`]), at a place computed from its address. Two that
//!   share a place evict each other, and the times of the evicted one are lost;
//! - **instances**: the time of each one's last poll, and the histograms of the requests that it received
//!   ([`instance`]). The place is computed from the id, and one of the instances with the same place holds it;
//!   place 0 is for requests that came through no instance, or through one that does not hold its place;
//! - **CPUs**: the number of sends, and when the CPU's receive softirq was raised ([`cpu`]). This table is shared
//!   memory, which is read without a system call;
//! - **threads** of instances: when each was woken ([`thread`]).

use super::histogram::BUCKETS;

/// Offsets in the only value of the choice, in bytes; fields have 64 bits.
pub(super) mod choice {
    /// The generation of the choice; rows of an earlier generation are reset.
    pub(in super::super) const EPOCH: i16 = 0;
    /// The sampling rate, one of so many connections, minus 1: 0, 1, 3, 7 ... 255.
    pub(in super::super) const MASK: i16 = 8;
    /// The mask with which no connection is sampled, and nothing is counted.
    pub(in super::super) const SAMPLE_NONE: u64 = u64::MAX;
    /// A byte for each instance's place: whether its frames are steered to other CPUs (RPS).
    pub(in super::super) const STEERED: i16 = 16;
    /// The number of these bytes: up to the largest index that the mask in the programs lets pass.
    pub(in super::super) const STEERED_LEN: usize = 2 * super::INSTANCES as usize;
    pub(in super::super) const LEN: usize = STEERED as usize + STEERED_LEN;
}

/// Offsets in a socket's row, in bytes; fields have 64 bits.
pub(super) mod socket {
    /// The identity of the socket and its connection; 0 if the row is free.
    pub(in super::super) const ID: i16 = 0;
    pub(in super::super) const EPOCH: i16 = 8;
    /// When the oldest unread data arrived, or 0.
    pub(in super::super) const READY: i16 = 16;
    /// How long that data was in the ring, or negative if unknown.
    pub(in super::super) const RING: i16 = 24;
    /// The same two values for the latest data.
    pub(in super::super) const LAST: i16 = 32;
    pub(in super::super) const LAST_RING: i16 = 40;
    /// When the request that is being answered was read, or 0.
    pub(in super::super) const READ: i16 = 48;
    /// When that request entered the ring, or 0 if unknown.
    pub(in super::super) const ARRIVED: i16 = 56;
    /// The place of its instance in the instance table, or 0.
    pub(in super::super) const INSTANCE: i16 = 64;
    pub(in super::super) const LEN: usize = 72;
}

/// Offsets in an instance's row, in bytes; fields have 64 bits.
pub(super) mod instance {
    /// The id of the instance that holds the place; 0 if none does.
    pub(in super::super) const ID: i16 = 0;
    /// When its last poll ended.
    pub(in super::super) const POLLED: i16 = 8;
    /// The expiry of its timer at the end of that poll; in the past, if the timer was not armed. The maximum if the
    /// next poll needed no wake-up.
    pub(in super::super) const EXPIRES: i16 = 16;
    /// The arrival time in the ring of the frames of the last non-empty poll, if they are delivered after the poll;
    /// otherwise 0.
    pub(in super::super) const ARRIVAL: i16 = 24;
    /// The histograms, one for each part.
    pub(in super::super) const HISTOGRAMS: i16 = 32;
    pub(in super::super) const LEN: usize = 32 + 4 * super::HISTOGRAM as usize;
}

/// Offsets in a CPU's row, in bytes; fields have 64 bits.
pub(super) mod cpu {
    /// Sends on all connections.
    pub(in super::super) const SENDS: i16 = 0;
    /// Sends on the sampled connections.
    pub(in super::super) const SEEN: i16 = 8;
    /// When the receive softirq that is pending was raised, or 0.
    pub(in super::super) const RAISED: i16 = 16;
    /// When the receive softirq that started last was raised, or 0.
    pub(in super::super) const RUNNING: i16 = 24;
    /// A cache line, so that CPUs do not share one.
    pub(in super::super) const LEN: usize = 64;
}

/// Offsets in a thread's row, in bytes; fields have 64 bits.
pub(super) mod thread {
    /// The thread id in the initial PID namespace; 0 in a free place.
    pub(in super::super) const ID: i16 = 0;
    /// When the thread was last woken.
    pub(in super::super) const WOKEN: i16 = 8;
    pub(in super::super) const LEN: usize = 64;
}

/// The size of a histogram in bytes.
pub(super) const HISTOGRAM: i16 = 8 * BUCKETS as i16;

/// Size of the socket table: a power of two.
pub(super) const SOCKETS: u32 = 4096;
/// Size of the instance table without place 0: a power of two.
pub(super) const INSTANCES: u32 = 256;
/// Size of the CPU table: a power of two. Further CPUs share rows.
pub(super) const CPUS: u32 = 256;
/// Size of the thread table: a power of two. Threads that share a place evict each other.
pub(super) const THREADS: u32 = 1024;

/// The descriptors of the maps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps {
    pub(super) choice: i32,
    pub(super) sockets: i32,
    pub(super) instances: i32,
    pub(super) cpus: i32,
    pub(super) threads: i32,
}

/// Returns an instance's place in the instance table.
pub(super) fn place_of(napi_id: u32) -> u32 {
    if napi_id == 0 { 0 } else { (napi_id & (INSTANCES - 1)) + 1 }
}
