//! What a queue counts.
//!
//! Every frame that reaches a queue ends in exactly one of `rx_packets` and the `rx_` counters of
//! drops, or still waits in the ring; every frame handed to its transmitter in `tx_packets` or
//! `tx_dropped`. The counters are relaxed atomics: each is exact on its own, and a reading of
//! several while traffic flows is not a snapshot of one moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one queue, shared with whoever reports them.
        #[derive(Debug, Default)]
        pub struct QueueCounters {
            $($(#[$doc])* pub $name: AtomicU64,)*
            gone: AtomicBool,
        }

        /// A reading of [`QueueCounters`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct QueueCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl QueueCounters {
            /// Reads all counters, one after the other.
            pub fn read(&self) -> QueueCounts {
                QueueCounts { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl QueueCounts {
            /// Adds another queue's.
            pub fn add(&mut self, other: &QueueCounts) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// What was counted since `earlier`: the way to take a measuring window.
            pub fn since(&self, earlier: &QueueCounts) -> QueueCounts {
                QueueCounts { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Frames that a poll handed to its caller.
    rx_packets,
    /// Bytes of those frames.
    rx_bytes,
    /// Frames that found the ring full: they cost the CPU nothing.
    rx_dropped_ring,
    /// Frames longer than [`FRAME_CAPACITY`](crate::FRAME_CAPACITY), dropped.
    rx_oversized,
    /// Frames shorter than an Ethernet header, dropped.
    rx_truncated,
    /// Frames dropped because what describes them makes no sense: descriptors, addresses, or a header that asks
    /// for what was never agreed. Only a device whose ring a peer shares has any.
    rx_malformed,
    /// Frames dropped because the pool had no buffer for them.
    rx_no_buffer,
    /// Frames accepted for transmission.
    tx_packets,
    /// Bytes of those frames.
    tx_bytes,
    /// Frames refused for transmission: ring full, too long, too short, or the device down.
    tx_dropped,
    /// Transmissions reaped by polls. A device whose transmissions end within the call has none.
    tx_completions,
    /// Interrupts for received frames, whether or not transmissions had completed as well.
    interrupts_rx,
    /// Interrupts for completed transmissions alone.
    interrupts_tx,
}

/// Adds to a counter; a helper because the ordering is always the same.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    if n != 0 {
        counter.fetch_add(n, Relaxed);
    }
}

impl QueueCounters {
    /// Whether the device has gone for good, as a poll or a transmission has found out. No count,
    /// but what explains that nothing is counted any more.
    pub fn gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// The device has gone for good.
    pub(crate) fn depart(&self) {
        self.gone.store(true, Relaxed);
    }
}

impl QueueCounts {
    /// All frames that arrived and were dropped, for whatever reason.
    pub fn rx_dropped(&self) -> u64 {
        self.rx_dropped_ring
            + self.rx_oversized
            + self.rx_truncated
            + self.rx_malformed
            + self.rx_no_buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let counters = QueueCounters::default();
        add(&counters.rx_packets, 5);
        let before = counters.read();
        add(&counters.rx_packets, 2);
        add(&counters.rx_no_buffer, 1);
        let window = counters.read().since(&before);
        assert_eq!(window.rx_packets, 2);
        assert_eq!(window.rx_dropped(), 1);
    }
}
