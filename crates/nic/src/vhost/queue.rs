//! One pair of rings as a [`PacketQueue`] and its [`Transmitter`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::Ns;

use super::control::{Control, Peers};
use super::port::{Kind, Port, Ring, Sending};
use super::ring::{Incoming, Outgoing, Put, Taken};
use super::segments::Segments;
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
    /// The ring was found broken, and that was told.
    broken: bool,
    index: usize,
    /// Who tells it.
    peers: Arc<Peers>,
    /// Where frames go for which there is no buffer: they are given back all the same.
    spare: Box<[u8]>,
    /// A packet that is being cut, perhaps over several polls.
    segments: Segments,
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
            broken: false,
            index,
            peers,
            spare,
            segments: Segments::new(),
            _control: control.cloned(),
        }
    }
}

/// Frames that are taken with buffers that come from the pool together.
const BATCH: u16 = 32;

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
        (spare, segments): (&mut [u8], &mut Segments),
        into: &mut Vec<Frame>,
    ) -> bool {
        while self.taken < budget && !self.broken {
            let Some(ready) = ring.ready((budget - self.taken).min(BATCH)) else {
                self.broken = true;
                break;
            };
            if ready == 0 {
                break;
            }
            let mut stash = port.pool.stash(ready.into());
            for _ in 0..ready {
                match ring.take(stash.buffer().unwrap_or(&mut *spare)) {
                    Taken::Large => {
                        // Its segments need the buffers, which were taken for frames that are its parts.
                        drop(stash);
                        match ring.take_large(segments) {
                            Taken::Large => self.cut(segments, (budget, now), port, spare, into),
                            other => self.dropped(other),
                        }
                        break;
                    }
                    Taken::Empty => return ring.publish(),
                    Taken::Broken => {
                        self.broken = true;
                        break;
                    }
                    Taken::Frame(len) => match stash.frame(len, now) {
                        Some(frame) => {
                            self.bytes += len as u64;
                            self.frames += 1;
                            into.push(frame);
                        }
                        None => self.no_buffer += 1,
                    },
                    other => {
                        self.dropped(other);
                        continue;
                    }
                }
                self.taken += 1;
            }
        }
        ring.publish()
    }

    /// Counts what was taken and is no frame.
    #[cold]
    fn dropped(&mut self, taken: Taken) {
        let count = match taken {
            Taken::Oversized => &mut self.oversized,
            Taken::Truncated => &mut self.truncated,
            Taken::Malformed => &mut self.malformed,
            Taken::Broken => {
                self.broken = true;
                return;
            }
            Taken::Empty | Taken::Frame(_) | Taken::Large => return,
        };
        *count += 1;
        self.taken += 1;
    }

    /// Takes segments of a packet that is being cut.
    #[cold]
    fn cut(
        &mut self,
        segments: &mut Segments,
        (budget, now): (u16, Ns),
        port: &Port,
        spare: &mut [u8],
        into: &mut Vec<Frame>,
    ) {
        while self.taken < budget && segments.pending() {
            let mut stash = port.pool.stash((budget - self.taken).min(BATCH).into());
            for _ in 0..BATCH.min(budget - self.taken) {
                let Some(len) = segments.next(stash.buffer().unwrap_or(&mut *spare)) else { break };
                match stash.frame(len, now) {
                    Some(frame) => {
                        self.bytes += len as u64;
                        self.frames += 1;
                        into.push(frame);
                    }
                    None => self.no_buffer += 1,
                }
                self.taken += 1;
            }
        }
    }
}

impl PacketQueue for VhostQueue {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        self.wire.see_to_waiting();
        let mut polled = Polled::default();
        if self.segments.pending() {
            polled.cut(&mut self.segments, (budget, now), &self.port, &mut self.spare, into);
        }
        let gate = self.port.incoming.try_enter();
        let (entered, index, mut until) = (gate.is_some(), self.index, None);
        let why = |until: &str| {
            format!("queue {index}: the peer's ring makes no sense; it is not looked at {until}")
        };
        if let Some(mut gate) = gate
            && let Some(ring) = &mut *gate
        {
            let (port, rest) = (&*self.port, (&mut *self.spare, &mut self.segments));
            if with!(ring, it => polled.drain(it, (budget, now), port, rest, into)) {
                ring.ring();
            }
            if polled.broken {
                until = ring.sending.give_up(why);
            }
        }
        // Whoever was not there has not seen whether it is.
        if entered && polled.broken != self.broken {
            self.broken = polled.broken;
            if let Some(until) = until {
                self.peers.refuse(why(until));
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
        // First the descriptor, then the rings. Left readable, by an interrupt that a poll was faster than, it
        // would interrupt at once, and so on for ever; and what it was readable for is found by looking.
        self.port.quiet();
        self.wire.see_to_waiting();
        if self.segments.pending() {
            return true;
        }
        let Some(mut gate) = self.port.incoming.try_enter() else { return false };
        gate.as_mut().is_some_and(|ring| with!(ring, it => it.unmask()))
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.port.interrupt()
    }

    /// Counts. The descriptor is cleared where that has to be done anyway, when interrupts are allowed again.
    fn acknowledge(&mut self) {
        add(&self.port.counters.interrupts_rx, 1);
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
/// there ([`Gate`](super::gate::Gate)); nobody waits. What was left and finds the ring full stays, in its order,
/// until the peer has made room: it is asked to notify us of that, and then the queue's owner sends it, unless a
/// sender comes first. Until then no other frame is taken. If the driver stops the ring before, it is dropped and counted.
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
        if self.index > 0 && !own.outgoing.there() { &self.ports[0] } else { own }
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
                None => frames.next().map_or(Ok(()), |_| Err(SendError::Down)),
            },
            None => {
                let left = frames.try_for_each(|frame| {
                    count += 1;
                    leave(port, frame)
                });
                port.outgoing.ask();
                left
            }
        };
        send_waiting(port, &mut sent);
        sent.dropped += u64::from(result.is_err());
        self.count(&sent);
        (count - usize::from(result.is_err() && count > 0), result)
    }

    /// Sends what waits at the queue's own pair, for its owner: there may be room now.
    #[inline]
    fn see_to_waiting(&self) {
        let port = &*self.ports[self.index];
        if port.waiting.ready() {
            let mut sent = Sent::default();
            port.outgoing.ask();
            send_waiting(port, &mut sent);
            self.count(&sent);
        }
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

    /// The peer sees all of them at once, and is notified once.
    fn send_all(&self, frames: &[Frame], _now: Ns) -> usize {
        self.carry(frames.iter().map(|frame| &**frame)).0
    }

    /// Who is at the ring meanwhile is about to send one. Without a peer nobody takes any.
    fn under_way(&self) -> usize {
        let port = self.port();
        let Some(mut gate) = port.outgoing.try_enter() else { return 1 };
        let in_ring = gate.as_mut().map_or(0, |ring| with!(ring, it => it.under_way()));
        drop(gate);
        let mut sent = Sent::default();
        send_waiting(port, &mut sent);
        self.count(&sent);
        usize::from(in_ring) + port.waiting.len()
    }
}

/// What happened to frames.
#[derive(Debug, Default)]
struct Sent {
    frames: u64,
    bytes: u64,
    /// Refused, or left by others for a peer that has gone or has no buffer of such a size.
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
            Put::Sent => {
                self.frames += 1;
                self.bytes += frame.len() as u64;
                Ok(())
            }
            Put::Full => Err(SendError::RingFull),
            Put::TooLong => Err(SendError::TooLong),
            Put::Broken => {
                sending.broken();
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

/// Leaves a frame for whoever is at the ring, or comes next.
fn leave(port: &Port, frame: &[u8]) -> Result<(), SendError> {
    checked(frame)?;
    let mut copy = port.pool.take().ok_or(SendError::RingFull)?;
    // Nobody asks when it arrived: the place says for which driver it is.
    copy.set_arrived(port.stops());
    copy.buffer()[..frame.len()].copy_from_slice(frame);
    copy.set_len(frame.len());
    if port.waiting.push(copy) { Ok(()) } else { Err(SendError::RingFull) }
}

/// Sends what others left, if that was asked for.
#[inline]
fn send_waiting(port: &Port, sent: &mut Sent) {
    port.outgoing.answer(|ring| match ring {
        Some(ring) => {
            let _ = send(ring, port, std::iter::empty(), sent);
        }
        None => sent.dropped += port.drop_waiting(),
    });
}

/// Puts into a ring what others left, and then these, until one is refused.
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
        ring.ring();
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
    // Somebody is about to leave a frame, and one of ours may be behind it: what comes after that one does
    // not overtake it.
    let result = match port.waiting.len() {
        0 => frames
            .try_for_each(|frame| checked(frame).and_then(|()| sent.put(ring, sending, frame))),
        _ => frames.try_for_each(|frame| leave(port, frame)),
    };
    (result, notify | ring.publish())
}

/// Puts into a ring what others left; `true` if it is full before the last of them.
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
