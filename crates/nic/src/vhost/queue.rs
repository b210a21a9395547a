//! One pair of rings as a [`PacketQueue`] and its [`Transmitter`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use napkin_core::Work;
use napkin_policy::Ns;

use super::control::{Control, Peers};
use super::port::{Kind, Port, Ring};
use super::ring::{Incoming, Outgoing, Put, Taken};
use crate::counters::add;
use crate::{
    ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, QueueCounters, SendError, Transmitter,
};

/// Calls a function that takes any ring with the one that there is.
macro_rules! with {
    ($ring:expr, $inner:ident => $call:expr) => {
        match &mut $ring.kind {
            Kind::SplitDevice($inner) => $call,
            Kind::SplitDriver($inner) => $call,
            Kind::PackedDevice($inner) => {
                let $inner = &mut **$inner;
                $call
            }
            Kind::PackedDriver($inner) => $call,
        }
    };
}

/// One queue of a virtio device: a ring to receive from and a ring to send to. It outlives its peers: without
/// one it finds nothing, and cannot send.
#[derive(Debug)]
pub struct VhostQueue {
    port: Arc<Port>,
    wire: Arc<Wire>,
    /// Interrupts were allowed since the last one was acknowledged, so that the descriptor may be readable.
    armed: bool,
    /// The ring was found broken, and that was told.
    broken: bool,
    index: usize,
    /// Who tells it.
    peers: Arc<Peers>,
    /// Where frames go for which there is no buffer: they are given back all the same.
    spare: Box<[u8]>,
    /// Keeps the control thread, if there is one, while there is a queue.
    _control: Option<Arc<Control>>,
}

impl VhostQueue {
    /// The queue of a pair; `ports` are all pairs of the device.
    pub(super) fn new(
        ports: &Arc<[Arc<Port>]>,
        index: usize,
        peers: &Arc<Peers>,
        control: Option<&Arc<Control>>,
    ) -> VhostQueue {
        let (port, peers) = (Arc::clone(&ports[index]), Arc::clone(peers));
        let wire = Arc::new(Wire { ports: Arc::clone(ports), index });
        let spare = vec![0; FRAME_CAPACITY].into_boxed_slice();
        VhostQueue {
            port,
            wire,
            armed: false,
            broken: false,
            index,
            peers,
            spare,
            _control: control.cloned(),
        }
    }
}

/// What a poll has counted.
#[derive(Default)]
struct Polled {
    taken: u16,
    bytes: u64,
    frames: u64,
    oversized: u64,
    truncated: u64,
    malformed: u64,
    no_buffer: u64,
    broken: bool,
}

impl Polled {
    /// Takes frames off a ring; `true` if its peer is to be notified.
    #[inline]
    fn drain(
        &mut self,
        ring: &mut impl Incoming,
        (budget, now): (u16, Ns),
        port: &Port,
        spare: &mut [u8],
        into: &mut Vec<Frame>,
    ) -> bool {
        // Kept over a frame that was let go.
        let mut frame: Option<Frame> = None;
        while self.taken < budget {
            if frame.is_none() {
                frame = port.pool.take();
            }
            let buffer = frame.as_mut().map_or(&mut *spare, Frame::buffer);
            match ring.take(buffer) {
                Taken::Empty => break,
                Taken::Broken => {
                    self.broken = true;
                    break;
                }
                Taken::Frame(len) => {
                    if let Some(mut frame) = frame.take() {
                        frame.set_len(len);
                        frame.set_arrived(now);
                        self.bytes += len as u64;
                        self.frames += 1;
                        into.push(frame);
                    } else {
                        self.no_buffer += 1;
                    }
                }
                Taken::Oversized => self.oversized += 1,
                Taken::Truncated => self.truncated += 1,
                Taken::Malformed => self.malformed += 1,
            }
            self.taken += 1;
        }
        ring.publish()
    }
}

impl PacketQueue for VhostQueue {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let mut polled = Polled::default();
        if let Some(mut gate) = self.port.incoming.try_enter()
            && let Some(ring) = &mut *gate
        {
            let (port, spare) = (&*self.port, &mut *self.spare);
            if with!(ring, it => polled.drain(it, (budget, now), port, spare, into)) {
                ring.ring();
            }
        }
        if polled.broken != self.broken {
            self.broken = polled.broken;
            if polled.broken {
                self.peers.refuse(format!(
                    "queue {}: the peer's ring holds what cannot be in one; it is not looked at until the \
                     peer sets it up anew",
                    self.index
                ));
            }
        }
        let counters = &self.port.counters;
        add(&counters.rx_packets, polled.frames);
        add(&counters.rx_bytes, polled.bytes);
        add(&counters.rx_oversized, polled.oversized);
        add(&counters.rx_truncated, polled.truncated);
        add(&counters.rx_malformed, polled.malformed);
        add(&counters.rx_no_buffer, polled.no_buffer);
        Work { rx: polled.taken, tx: 0 }
    }

    fn mask(&mut self) {
        if let Some(mut gate) = self.port.incoming.try_enter()
            && let Some(ring) = &mut *gate
        {
            with!(ring, it => it.mask());
        }
    }

    /// Where the control thread is changing the ring there is nothing to look at: it interrupts when it is done.
    fn unmask(&mut self, _now: Ns) -> bool {
        // Of an interrupt that a poll was faster than. Left readable, it would interrupt at once; and if that
        // finds the queue's owner still there it is not acknowledged either, and so on for ever.
        if std::mem::replace(&mut self.armed, true) {
            self.port.quiet();
        }
        let Some(mut gate) = self.port.incoming.try_enter() else { return false };
        gate.as_mut().is_some_and(|ring| with!(ring, it => it.unmask()))
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.port.interrupt()
    }

    fn acknowledge(&mut self) {
        self.armed = false;
        add(&self.port.counters.interrupts_rx, self.port.quiet().into());
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::clone(&self.wire) as Arc<dyn Transmitter>
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.port.counters)
    }
}

/// The way out of a queue.
///
/// One sender is at the ring at a time. Another one leaves its frame in a buffer, to be sent by the one who is
/// there when he is done: he looks for such frames after he has left, and who leaves one then tries once more
/// himself, both sequentially consistent, so that one of the two sends it. Nobody waits.
#[derive(Debug)]
struct Wire {
    ports: Arc<[Arc<Port>]>,
    index: usize,
}

impl Wire {
    /// The pair that a frame goes by: a driver that has not enabled all of them takes everything from the
    /// first.
    fn port(&self) -> &Port {
        let own = &self.ports[self.index];
        let idle = || own.outgoing.try_enter().is_some_and(|ring| ring.is_none());
        if self.index > 0 && idle() { &self.ports[0] } else { own }
    }

    /// Sends frames until one is refused: how many went, and why no more did. Those that were left for
    /// another sender are as good as sent.
    fn carry<'a>(
        &self,
        mut frames: impl Iterator<Item = &'a [u8]>,
    ) -> (usize, Result<(), SendError>) {
        let port = self.port();
        let (mut count, mut sent) = (0, Sent::default());
        let result = match port.outgoing.try_enter() {
            Some(mut gate) => match &mut *gate {
                Some(ring) => send(ring, port, frames.inspect(|_| count += 1), &mut sent),
                None => Err(SendError::Down),
            },
            None => frames.try_for_each(|frame| {
                count += 1;
                leave(port, frame)
            }),
        };
        fence(SeqCst);
        while port.waiting.ready()
            && let Some(mut gate) = port.outgoing.try_enter()
        {
            match &mut *gate {
                Some(ring) => {
                    let _ = send(ring, port, std::iter::empty(), &mut sent);
                }
                None => {
                    while port.waiting.pop().is_some() {
                        sent.dropped += 1;
                    }
                }
            }
            drop(gate);
            fence(SeqCst);
        }
        let counters = &self.ports[self.index].counters;
        add(&counters.tx_packets, sent.frames);
        add(&counters.tx_bytes, sent.bytes);
        add(&counters.tx_dropped, sent.dropped + u64::from(result.is_err()));
        (count - usize::from(result.is_err() && count > 0), result)
    }
}

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _now: Ns) -> Result<(), SendError> {
        self.carry(std::iter::once(frame)).1
    }

    /// The peer sees all of them at once, and is notified once.
    fn send_all(&self, frames: &[Frame], _now: Ns) -> usize {
        self.carry(frames.iter().map(|frame| &**frame)).0
    }
}

/// What happened to frames.
#[derive(Debug, Default)]
struct Sent {
    frames: u64,
    bytes: u64,
    /// Of those that others had left.
    dropped: u64,
}

fn checked(frame: &[u8]) -> Result<(), SendError> {
    match frame.len() {
        ..ETHERNET_HEADER => Err(SendError::TooShort),
        len if len > FRAME_CAPACITY => Err(SendError::TooLong),
        _ => Ok(()),
    }
}

/// Leaves a frame for whoever is at the ring, or comes next.
fn leave(port: &Port, frame: &[u8]) -> Result<(), SendError> {
    checked(frame)?;
    let mut copy = port.pool.take().ok_or(SendError::RingFull)?;
    copy.buffer()[..frame.len()].copy_from_slice(frame);
    copy.set_len(frame.len());
    if port.waiting.push(copy) { Ok(()) } else { Err(SendError::RingFull) }
}

/// Puts into a ring what others left, and then these, until one is refused.
#[inline]
fn send<'a>(
    ring: &mut Ring,
    port: &Port,
    frames: impl Iterator<Item = &'a [u8]>,
    sent: &mut Sent,
) -> Result<(), SendError> {
    let (result, notify) = with!(ring, it => put_all(it, port, frames, sent));
    if notify {
        ring.ring();
    }
    result
}

#[inline]
fn put_all<'a>(
    ring: &mut impl Outgoing,
    port: &Port,
    mut frames: impl Iterator<Item = &'a [u8]>,
    sent: &mut Sent,
) -> (Result<(), SendError>, bool) {
    let mut put = |frame: &[u8]| match ring.put(frame) {
        Put::Sent => {
            sent.frames += 1;
            sent.bytes += frame.len() as u64;
            Ok(())
        }
        Put::Full => Err(SendError::RingFull),
        Put::TooLong => Err(SendError::TooLong),
        Put::Broken => Err(SendError::Down),
    };
    let mut dropped = 0;
    if port.waiting.ready() {
        while let Some(frame) = port.waiting.pop() {
            dropped += u64::from(put(&frame).is_err());
        }
    }
    // Somebody is about to leave a frame, and one of ours may be behind it: what comes after that one does
    // not overtake it.
    let result = match port.waiting.len() {
        0 => frames.try_for_each(|frame| checked(frame).and_then(|()| put(frame))),
        _ => frames.try_for_each(|frame| leave(port, frame)),
    };
    sent.dropped += dropped;
    (result, ring.publish())
}
