//! What every packet queue offers: the driver's side of the NAPI contract.
//!
//! [`PacketQueue`] is the core's `Queue` without delivery: a device knows nothing of sockets, so it
//! hands frames out and the engine's adapter delivers them. All of it needs `&mut self`, which the
//! engine has only through a claim; what other threads may use at any time (transmission and
//! counters) are handles of their own.
//!
//! Time: `now` is nanoseconds of `CLOCK_MONOTONIC`, since that is the clock of the timers behind
//! [`PacketQueue::interrupt`]. A caller that never waits for that descriptor may pass any clock, as
//! the tests do.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::Ns;
use thiserror::Error;

use crate::{Frame, QueueCounters, Spent};

/// Bytes of an Ethernet header: anything shorter is not a frame.
pub const ETHERNET_HEADER: usize = 14;

/// One receive queue of a device together with its transmit completions.
pub trait PacketQueue: Send {
    /// Takes up to `budget` frames off the ring and reaps finished transmissions, the latter
    /// without limit. A `budget` of 0 reaps only.
    ///
    /// [`Work::rx`] counts the frames taken off the ring; fewer than `budget` means that the ring
    /// was found empty. `into` is given that many frames or fewer (one that is malformed, or for
    /// which there is no buffer, is counted and dropped) behind what it holds already. The caller
    /// has reserved room for `budget` of them, so that nothing is allocated here.
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work;

    /// Stops interrupts. Idempotent, and free after an interrupt that was
    /// [acknowledged](Self::acknowledge).
    fn mask(&mut self);

    /// Allows interrupts again and looks at the ring once more.
    ///
    /// `true` means that work waits already: the queue is then as good as masked, and the caller
    /// owes it a poll and another `unmask`. After `false` no work can come without the
    /// [descriptor](Self::interrupt) becoming readable. So a device whose descriptor is a doorbell (an
    /// eventfd, a pipe) and not the work itself clears it here, uncounted, and then looks into its ring:
    /// a bell that is still rung, for a frame that was polled already, would interrupt at once, find the
    /// instance owned, and so on for ever. One that cannot look without taking keeps what it took for
    /// the next poll.
    fn unmask(&mut self, now: Ns) -> bool;

    /// Becomes readable when an interrupt is due, and stays so until acknowledged, or until the next
    /// [`unmask`](Self::unmask).
    ///
    /// The engine watches it with `EPOLLIN | EPOLLONESHOT`; a one-shot that has fired is masked by
    /// that alone, and the engine's own unmask arms it again with `EPOLL_CTL_MOD`, after
    /// [`unmask`](Self::unmask). While masked it may become readable once, for an interrupt that
    /// was already on its way; it is spurious and does no harm.
    fn interrupt(&self) -> BorrowedFd<'_>;

    /// Takes note of an interrupt: clears the descriptor, where that is not the work itself, and counts
    /// the interrupt ([`interrupts_rx`](QueueCounters::interrupts_rx)).
    ///
    /// Called by the interrupt side once it has won the instance, before it polls, and before or after
    /// [`mask`](Self::mask). It may come without need, and must not wait. Of an interrupt that found the
    /// instance owned nobody takes note but [`unmask`](Self::unmask).
    fn acknowledge(&mut self);

    /// Whether the device has gone for good, as a TAP interface has that somebody removed, or a socket
    /// or pipe whose peer has hung up. The
    /// [descriptor](Self::interrupt) may then stay readable for ever and is not to be armed again;
    /// polls find nothing.
    fn gone(&self) -> bool {
        false
    }

    /// The way out, for any thread.
    fn transmitter(&self) -> Arc<dyn Transmitter>;

    /// The queue's counters, for any thread.
    fn counters(&self) -> Arc<QueueCounters>;
}

/// Sends frames through a queue, from any thread, without a lock.
pub trait Transmitter: Send + Sync {
    /// Hands one frame to the device, which has copied or sent it when this returns. `now` is the
    /// time of sending. A frame that is refused is dropped and counted in
    /// [`tx_dropped`](QueueCounters::tx_dropped).
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError>;

    /// Hands over frames in their order, as [`send`](Self::send) does each, up to the first that is refused:
    /// how many were sent. For a device on which several at once cost less than one by one.
    fn send_all(&self, frames: &[Frame], now: Ns) -> usize {
        frames.iter().take_while(|frame| self.send(frame, now).is_ok()).count()
    }

    /// As [`send_all`](Self::send_all), and takes the frames that were sent out of `frames`: for whoever does not need
    /// them any more. A device that can sends them from where they are, without copying them.
    fn send_owned(&self, frames: &mut Vec<Frame>, now: Ns) -> usize {
        let sent = self.send_all(frames, now);
        Spent::default().extend(frames.drain(..sent));
        sent
    }

    /// As [`send`](Self::send), of a frame after which there may be more: a device that has to call
    /// somebody for each may let it wait for the next ones. A thread that posts flushes before it does
    /// anything else.
    fn post(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.send(frame, now)
    }

    /// Sends what was [posted](Self::post), by whomever; costs nothing where nothing was.
    fn flush(&self) {}

    /// Frames that were sent and that the device has not let go of yet, as far as it can tell: 0 where it cannot.
    /// With the device they would be lost, so whoever closes it waits for them; not for the hot path.
    fn under_way(&self) -> usize {
        0
    }
}

/// Why a frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// No room until earlier transmissions are reaped; a moment later it may succeed.
    #[error("the transmit ring is full; send again once the queue has been polled")]
    RingFull,
    /// Longer than the device takes.
    #[error("the frame is longer than the {} bytes that a frame can hold", crate::FRAME_CAPACITY)]
    TooLong,
    /// No Ethernet header.
    #[error("the frame is shorter than the {} bytes of an Ethernet header", ETHERNET_HEADER)]
    TooShort,
    /// The device is down, or gone.
    #[error("the device is down or was closed")]
    Down,
}
