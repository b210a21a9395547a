//! The transmit side of a virtio queue.
//!
//! One sender is at the ring at a time. Another one leaves its frame in a buffer, to be sent by the one that is
//! there ([`Gate`](super::gate::Gate)), so that no sender waits. Frames that were left and find the ring full stay,
//! in order, until the peer has made room: it is asked to notify us of that, and then the queue's owner sends them,
//! unless a sender comes first. Until then no other frame is accepted. If the driver stops the ring before, they
//! are dropped and counted.

use std::sync::Arc;

use napkin_policy::Ns;

use super::port::{Kind, Port, Ring, Sending, with};
use super::ring::{Outgoing, PutResult};
use crate::counters::add;
use crate::{ETHERNET_HEADER, FRAME_CAPACITY, Frame, SendError, Transmitter};

/// The [`Transmitter`] of one queue, with all ring pairs of its device.
#[derive(Debug)]
pub(super) struct Wire {
    ports: Arc<[Arc<Port>]>,
    index: usize,
}

impl Wire {
    pub(super) fn new(ports: &Arc<[Arc<Port>]>, index: usize) -> Wire {
        Wire { ports: Arc::clone(ports), index }
    }

    /// The pair to send by: a driver that has not enabled all pairs receives everything by the first.
    fn port(&self) -> &Port {
        let own = &self.ports[self.index];
        if self.index > 0 && !own.outgoing.occupied() { &self.ports[0] } else { own }
    }

    /// Sends frames until one is refused; returns how many were sent, and why no more were. Frames left to another
    /// sender count as sent.
    fn carry<'a>(
        &self,
        mut frames: impl Iterator<Item = &'a [u8]>,
    ) -> (usize, Result<(), SendError>) {
        let port = self.port();
        let (mut count, mut sent) = (0, Sent::default());
        let result = match port.outgoing.try_enter() {
            Some(mut gate) => match &mut *gate {
                Some(ring) => send(ring, port, frames.inspect(|_| count += 1), &mut sent),
                None => frames.next().map_or(Ok(()), |_| Err(SendError::Down)),
            },
            None => {
                let left = frames.try_for_each(|frame| {
                    count += 1;
                    enqueue(port, frame)
                });
                port.outgoing.request();
                left
            }
        };
        send_waiting(port, &mut sent);
        sent.dropped += u64::from(result.is_err());
        self.count(&sent);
        (count - usize::from(result.is_err() && count > 0), result)
    }

    /// For the queue's owner: sends the frames that wait at its own pair, since there may be room now.
    #[inline]
    pub(super) fn send_waiting_frames(&self) {
        let port = &*self.ports[self.index];
        if port.waiting.ready() {
            self.send_waiting_frames_slow(port);
        }
    }

    #[cold]
    fn send_waiting_frames_slow(&self, port: &Port) {
        let mut sent = Sent::default();
        port.outgoing.request();
        send_waiting(port, &mut sent);
        self.count(&sent);
    }

    fn count(&self, sent: &Sent) {
        let counters = &self.ports[self.index].counters;
        add(&counters.tx_packets, sent.frames);
        add(&counters.tx_bytes, sent.bytes);
        add(&counters.tx_dropped, sent.dropped);
    }
}

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _now: Ns) -> Result<(), SendError> {
        self.carry(std::iter::once(frame)).1
    }

    /// Publishes all frames at once, with one notification.
    fn send_all(&self, frames: &[Frame], _now: Ns) -> usize {
        self.carry(frames.iter().map(|frame| &**frame)).0
    }

    /// A thread at the ring counts as one frame. Without a peer, waiting frames are dropped.
    fn in_flight(&self) -> usize {
        let port = self.port();
        let Some(mut gate) = port.outgoing.try_enter() else { return 1 };
        let in_ring = gate.as_mut().map_or(0, |ring| with!(ring, it => it.in_flight()));
        drop(gate);
        let mut sent = Sent::default();
        send_waiting(port, &mut sent);
        self.count(&sent);
        usize::from(in_ring) + port.waiting.len()
    }
}

/// The results of sending frames.
#[derive(Debug, Default)]
struct Sent {
    frames: u64,
    bytes: u64,
    /// Frames refused, or left by other senders for a peer that has gone or has no buffer of their size.
    dropped: u64,
}

impl Sent {
    #[inline]
    fn put(
        &mut self,
        ring: &mut impl Outgoing,
        sending: &mut Sending,
        frame: &[u8],
    ) -> Result<(), SendError> {
        match ring.put(frame) {
            PutResult::Sent => {
                self.frames += 1;
                self.bytes += frame.len() as u64;
                Ok(())
            }
            PutResult::Full => Err(SendError::RingFull),
            PutResult::TooLong => Err(SendError::TooLong),
            PutResult::Broken => {
                sending.report_broken();
                Err(SendError::Down)
            }
        }
    }
}

fn checked(frame: &[u8]) -> Result<(), SendError> {
    match frame.len() {
        ..ETHERNET_HEADER => Err(SendError::TooShort),
        len if len > FRAME_CAPACITY => Err(SendError::TooLong),
        _ => Ok(()),
    }
}

/// Leaves a frame for the thread at the ring, or the next one.
fn enqueue(port: &Port, frame: &[u8]) -> Result<(), SendError> {
    checked(frame)?;
    let mut copy = port.pool.take().ok_or(SendError::RingFull)?;
    // The arrival time is not needed here: its field holds the number of the driver that the frame is for.
    copy.set_arrived(port.stops());
    copy.buffer()[..frame.len()].copy_from_slice(frame);
    copy.set_len(frame.len());
    if port.waiting.push(copy) { Ok(()) } else { Err(SendError::RingFull) }
}

/// Sends the frames that other senders left, if requested.
#[inline]
fn send_waiting(port: &Port, sent: &mut Sent) {
    port.outgoing.serve_requests(|ring| match ring {
        Some(ring) => {
            let _ = send(ring, port, std::iter::empty(), sent);
        }
        None => sent.dropped += port.drop_waiting(),
    });
}

/// Puts the frames that other senders left into a ring, and then `frames`, until one is refused.
#[inline]
fn send<'a>(
    ring: &mut Ring,
    port: &Port,
    frames: impl Iterator<Item = &'a [u8]>,
    sent: &mut Sent,
) -> Result<(), SendError> {
    let sending = &mut ring.sending;
    let (result, notify) = with!(ring, it => put_all(it, sending, port, frames, sent));
    if notify {
        ring.notify();
    }
    result
}

#[inline]
fn put_all<'a>(
    ring: &mut impl Outgoing,
    sending: &mut Sending,
    port: &Port,
    mut frames: impl Iterator<Item = &'a [u8]>,
    sent: &mut Sent,
) -> (Result<(), SendError>, bool) {
    let mut notify = false;
    if port.waiting.ready() {
        loop {
            let full = put_waiting(ring, sending, port, sent);
            notify |= ring.publish();
            if full && !ring.await_room() {
                sending.awaits_room = true;
                let refused = frames.next().map_or(Ok(()), |_| Err(SendError::RingFull));
                return (refused, notify);
            }
            if !full {
                break;
            }
        }
    }
    if std::mem::take(&mut sending.awaits_room) {
        ring.ignore_room();
    }
    // Another sender is about to leave a frame, and a frame of this thread may be behind it. Later ones must not
    // overtake that one, so they are left as well.
    let result = match port.waiting.len() {
        0 => frames
            .try_for_each(|frame| checked(frame).and_then(|()| sent.put(ring, sending, frame))),
        _ => frames.try_for_each(|frame| enqueue(port, frame)),
    };
    (result, notify | ring.publish())
}

/// Puts the frames that other senders left into a ring; `true` if it is full before the last of them.
fn put_waiting(
    ring: &mut impl Outgoing,
    sending: &mut Sending,
    port: &Port,
    sent: &mut Sent,
) -> bool {
    let mut full = false;
    loop {
        let mut dropped = 0;
        let gone = port.waiting.pop_if(|frame| {
            let put = match frame.arrived() == port.stops() {
                true => sent.put(ring, sending, frame),
                false => Err(SendError::Down),
            };
            full = put == Err(SendError::RingFull);
            dropped = u64::from(put.is_err());
            !full
        });
        if gone.is_none() {
            return full;
        }
        sent.dropped += dropped;
    }
}
