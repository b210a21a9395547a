//! A snapshot of one instance of an engine.

use napkin_core::Counts;
use napkin_nic::QueueCounts;
use napkin_policy::InstancePolicy;

/// One instance, as `napi-get` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NapiInfo {
    /// NAPI ID, unique in the engine.
    pub id: u32,
    /// Its device's name.
    pub device: String,
    /// Its device's number, from 1.
    pub ifindex: u32,
    /// The queue's index among those of its direction, from 0.
    pub queue: usize,
    /// The engine's CPU that serves it.
    pub cpu: u16,
    /// The id of its thread, if it has one.
    pub pid: Option<i32>,
    /// Whether its queue's device has gone for good: nothing arrives any more unless the queue is
    /// [replaced](crate::Engine::replace_queue).
    pub gone: bool,
    /// Its settings as they are now.
    pub settings: InstancePolicy,
    /// Frames that a poll outside busy polling may take.
    pub weight: u16,
    /// The number of epoll contexts that suspend its interrupts.
    pub suspending: u32,
    /// The core's counts of it.
    pub counts: Counts,
    /// The device's counts, over all of its queues.
    pub queue_counts: QueueCounts,
    /// System calls made to mask and unmask its interrupt.
    pub line_calls: u64,
}
