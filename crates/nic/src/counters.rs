//! The counters of a queue.
//!
//! Every frame that reaches a queue ends in exactly one of `rx_packets` and the `rx_` counters of
//! drops, or still waits in the ring; every frame handed to its transmitter in `tx_packets` or
//! `tx_dropped`. The counters are relaxed atomics: each is exact on its own, and a reading of
//! several while traffic flows is not a snapshot of one moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use napkin_core::Ns;

use crate::{ETHERNET_HEADER, FRAME_CAPACITY, Frame, Pool, SendError};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one queue, shared with the threads that report them.
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
            /// Adds another queue's counts.
            pub fn add(&mut self, other: &QueueCounts) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// The counts since `earlier`: the way to take a measuring window.
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
    /// Frames that found the ring full. They cost the CPU nothing.
    rx_dropped_ring,
    /// Frames longer than [`FRAME_CAPACITY`], dropped.
    rx_oversized,
    /// Frames shorter than an Ethernet header, dropped.
    rx_truncated,
    /// Frames dropped for invalid metadata: descriptors, addresses, or a header that uses a feature that was not
    /// negotiated. Only devices that share their ring with a peer have any.
    rx_malformed,
    /// Frames dropped because the pool had no buffer for them.
    rx_no_buffer,
    /// Frames accepted for transmission.
    tx_packets,
    /// Bytes of those frames.
    tx_bytes,
    /// Frames refused for transmission: ring full, too long, too short, or the device down.
    tx_dropped,
    /// Transmissions reaped by polls. 0 for a device whose transmissions complete within the call.
    tx_completions,
    /// Interrupts for received frames, whether or not transmissions had completed as well.
    interrupts_rx,
    /// Interrupts for completed transmissions alone.
    interrupts_tx,
}

/// Adds to a counter, with relaxed ordering.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    if n != 0 {
        counter.fetch_add(n, Relaxed);
    }
}

impl QueueCounters {
    /// Whether the device has gone for good, as a poll or a transmission found. Explains why the counters no longer
    /// change.
    pub fn gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Copies a frame that the device has read into its own memory at `now` into a buffer of `pool`, and counts it
    /// as received. Returns `None`, and counts a drop, if the length is invalid or no buffer is free.
    #[inline]
    pub fn received(&self, bytes: &[u8], pool: &Pool, now: Ns) -> Option<Frame> {
        let (counter, received) = match (bytes.len(), pool.take()) {
            (..ETHERNET_HEADER, _) => (&self.rx_truncated, None),
            (ETHERNET_HEADER..=FRAME_CAPACITY, None) => (&self.rx_no_buffer, None),
            (length @ ETHERNET_HEADER..=FRAME_CAPACITY, Some(mut frame)) => {
                frame.buffer()[..length].copy_from_slice(bytes);
                frame.set_len(length);
                frame.set_arrived(now);
                add(&self.rx_bytes, length as u64);
                (&self.rx_packets, Some(frame))
            }
            _ => (&self.rx_oversized, None),
        };
        add(counter, 1);
        received
    }

    /// Counts a frame by the result of its transmission.
    ///
    /// # Errors
    /// Returns `sent` unchanged.
    #[inline]
    pub fn sent(&self, frame: &[u8], sent: Result<(), SendError>) -> Result<(), SendError> {
        if sent.is_ok() {
            add(&self.tx_packets, 1);
            add(&self.tx_bytes, frame.len() as u64);
        } else {
            add(&self.tx_dropped, 1);
        }
        sent
    }

    /// Records that the device has gone for good. The engine does so for a queue whose
    /// [`gone`](crate::PacketQueue::gone) is true, at the latest when it would unmask the queue's interrupt.
    pub fn set_gone(&self) {
        self.gone.store(true, Relaxed);
    }
}

impl QueueCounts {
    /// All frames that arrived and were dropped.
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
    fn a_frame_that_is_received_is_copied_and_one_that_fits_nowhere_is_counted() {
        let (counters, pool) = (QueueCounters::default(), Pool::new(1));
        let frame = counters.received(&[7; 60], &pool, 5).expect("there is a buffer");
        assert_eq!((frame.arrived(), &frame[..]), (5, &[7; 60][..]));
        for (length, what) in
            [(60, "no buffer"), (ETHERNET_HEADER - 1, "short"), (FRAME_CAPACITY + 1, "long")]
        {
            assert!(counters.received(&vec![0; length], &pool, 5).is_none(), "{what}");
        }
        let counts = counters.read();
        assert_eq!((counts.rx_packets, counts.rx_bytes, counts.rx_dropped()), (1, 60, 3));
        assert_eq!((counts.rx_no_buffer, counts.rx_truncated, counts.rx_oversized), (1, 1, 1));
        assert_eq!(counters.sent(&[0; 60], Ok(())), Ok(()));
        assert_eq!(counters.sent(&[0; 60], Err(SendError::RingFull)), Err(SendError::RingFull));
        let counts = counters.read();
        assert_eq!((counts.tx_packets, counts.tx_bytes, counts.tx_dropped), (1, 60, 1));
    }

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
