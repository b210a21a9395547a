//! The interface of every packet queue: the driver's side of the NAPI contract.
//!
//! [`PacketQueue`] is the core's `Queue` without delivery: a device has no notion of sockets, so it returns frames
//! and the engine's adapter delivers them. All of its methods that change the queue need `&mut self`, which the
//! engine has only through a claim; transmission and counters, which other threads may use at any time, have
//! handles of their own.
//!
//! Time: `now` is nanoseconds of `CLOCK_MONOTONIC`, the clock of the timers behind [`PacketQueue::interrupt`]. A
//! caller that never waits for that descriptor may pass any clock, as the tests do.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::Ns;
use thiserror::Error;

use crate::{Frame, QueueCounters, ReturnedFrames};

/// Bytes of an Ethernet header. Anything shorter is not a frame.
pub const ETHERNET_HEADER: usize = 14;

/// One receive queue of a device together with its transmit completions.
pub trait PacketQueue: Send {
    /// Takes up to `budget` frames off the ring and reaps finished transmissions, the latter without limit. A
    /// `budget` of 0 only reaps.
    ///
    /// [`Work::rx`] counts the frames taken off the ring; fewer than `budget` means that the ring was found empty.
    /// Appends that many frames to `into`, or fewer: a malformed frame, or one for which there is no buffer, is
    /// counted and dropped. The caller has reserved room for `budget` of them, so that nothing is allocated here.
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work;

    /// Stops interrupts. Idempotent, and free after an interrupt that was
    /// [acknowledged](Self::acknowledge).
    fn mask(&mut self);

    /// Allows interrupts again, then checks the ring once more.
    ///
    /// `true` means that work is pending: the queue is then as good as masked, and the caller must poll and call
    /// `unmask` again. After `false`, the [descriptor](Self::interrupt) becomes readable when work arrives. A
    /// device whose descriptor is a doorbell (an eventfd, a pipe), and not the work itself, therefore clears it
    /// here without counting it, and then looks into its ring: a doorbell left set for a frame that was already
    /// polled would interrupt at once, find the instance owned, and repeat that for ever. A device that cannot
    /// check for frames without taking one keeps it for the next poll.
    fn unmask(&mut self, now: Ns) -> bool;

    /// The descriptor that becomes readable when an interrupt is due, and stays so until acknowledged, or until the
    /// next [`unmask`](Self::unmask).
    ///
    /// The engine watches it with `EPOLLIN | EPOLLONESHOT`. A one-shot that has fired is thereby masked, and the
    /// engine's own unmask arms it again with `EPOLL_CTL_MOD`, after [`unmask`](Self::unmask). While masked it may
    /// become readable once, for an interrupt that was already on its way; that interrupt is spurious and does no
    /// harm.
    fn interrupt(&self) -> BorrowedFd<'_>;

    /// Acknowledges an interrupt: clears the descriptor, where that is not the work itself, and counts the
    /// interrupt ([`interrupts_rx`](QueueCounters::interrupts_rx)).
    ///
    /// Called by the interrupt side once it has won the instance, before it polls, and before or after
    /// [`mask`](Self::mask). May be called without an interrupt, and must not wait. An interrupt that found the
    /// instance owned is not acknowledged; the next [`unmask`](Self::unmask) clears it.
    fn acknowledge(&mut self);

    /// Whether the device has gone for good: a TAP interface that was removed, or a socket or pipe whose peer has
    /// hung up. The [descriptor](Self::interrupt) may then stay readable for ever and must not be armed again;
    /// polls find nothing.
    fn gone(&self) -> bool {
        false
    }

    /// The transmit side, for any thread.
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

    /// Hands over frames in order, as [`send`](Self::send) does each, up to the first that is refused, and returns
    /// how many were sent. For devices on which a batch costs less than single frames.
    fn send_all(&self, frames: &[Frame], now: Ns) -> usize {
        frames.iter().take_while(|frame| self.send(frame, now).is_ok()).count()
    }

    /// As [`send_all`](Self::send_all), and removes the sent frames from `frames`: for a caller that no longer
    /// needs them. A device that supports it sends them in place, without a copy.
    fn send_owned(&self, frames: &mut Vec<Frame>, now: Ns) -> usize {
        let sent = self.send_all(frames, now);
        ReturnedFrames::default().extend(frames.drain(..sent));
        sent
    }

    /// As [`send`](Self::send), for a frame that more may follow: a device that needs a call or a notification for
    /// each frame may defer it. A thread that posts must flush before it does anything else.
    fn post(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.send(frame, now)
    }

    /// Sends what any thread has [posted](Self::post); costs nothing if nothing is pending.
    fn flush(&self) {}

    /// The number of frames that were sent and that the device still holds, or 0 if the device cannot tell. Closing
    /// the device would lose them, so the closing side waits for them. Not for the hot path.
    fn in_flight(&self) -> usize {
        0
    }
}

/// Why a frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// No room until earlier transmissions are reaped. A later attempt may succeed.
    #[error("the transmit ring is full; send again once the queue has been polled")]
    RingFull,
    /// Longer than the device accepts.
    #[error("the frame is longer than the {} bytes that a frame can hold", crate::FRAME_CAPACITY)]
    TooLong,
    /// Shorter than an Ethernet header.
    #[error("the frame is shorter than the {} bytes of an Ethernet header", ETHERNET_HEADER)]
    TooShort,
    /// The device is down, or gone.
    #[error("the device is down or was closed")]
    Down,
}
