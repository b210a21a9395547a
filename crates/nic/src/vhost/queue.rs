//! A ring pair as a [`PacketQueue`] and its [`Transmitter`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::Ns;

use super::control::{Control, Peers};
use super::port::{Kind, Port, with};
use super::ring::{Incoming, TakeResult};
use super::segments::Segments;
use super::transmitter::Wire;
use crate::counters::add;
use crate::{FRAME_CAPACITY, Frame, PacketQueue, QueueCounters, Transmitter};

/// One queue of a virtio device: a ring to receive from and a ring to send to. It outlives its peers: without a
/// peer it receives nothing and cannot send.
#[derive(Debug)]
pub struct VhostQueue {
    port: Arc<Port>,
    wire: Arc<Wire>,
    /// Whether the ring was found broken, and that was reported.
    broken: bool,
    index: usize,
    /// Where problems are reported.
    peers: Arc<Peers>,
    /// Where frames are read to if no buffer is free: their descriptors are returned nevertheless.
    spare: Box<[u8]>,
    /// A packet being segmented, perhaps over several polls.
    segments: Segments,
    /// Keeps the control thread, if there is one, alive as long as a queue.
    _control: Option<Arc<Control>>,
}

impl VhostQueue {
    /// Makes the queue of pair `index`; `ports` are all pairs of the device.
    pub(super) fn new(
        ports: &Arc<[Arc<Port>]>,
        index: usize,
        peers: &Arc<Peers>,
        control: Option<&Arc<Control>>,
    ) -> VhostQueue {
        let (port, peers) = (Arc::clone(&ports[index]), Arc::clone(peers));
        let wire = Arc::new(Wire::new(ports, index));
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

/// The most frames for which buffers are taken from the pool at once.
const BATCH: u16 = 32;

/// The counts of one poll.
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
                    TakeResult::Large => {
                        // Its segments need the buffers, which were taken for the frames in the ring.
                        drop(stash);
                        match ring.take_large(segments) {
                            TakeResult::Large => {
                                self.cut(segments, (budget, now), port, spare, into);
                            }
                            other => self.dropped(other),
                        }
                        break;
                    }
                    TakeResult::Empty => return ring.publish(),
                    TakeResult::Broken => {
                        self.broken = true;
                        break;
                    }
                    TakeResult::Frame(len) => match stash.frame(len, now) {
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

    /// Counts a result that is not a frame.
    #[cold]
    fn dropped(&mut self, taken: TakeResult) {
        let count = match taken {
            TakeResult::Oversized => &mut self.oversized,
            TakeResult::Truncated => &mut self.truncated,
            TakeResult::Malformed => &mut self.malformed,
            TakeResult::Broken => {
                self.broken = true;
                return;
            }
            TakeResult::Empty | TakeResult::Frame(_) | TakeResult::Large => return,
        };
        *count += 1;
        self.taken += 1;
    }

    /// Takes segments of a packet being segmented.
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
        self.wire.send_waiting_frames();
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
                ring.notify();
            }
            if polled.broken {
                until = ring.sending.give_up(why);
            }
        }
        // A poll that did not get the lock does not know whether the ring is broken.
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

    /// While the control thread changes the ring there is nothing to check: it interrupts when it is done.
    fn unmask(&mut self, _now: Ns) -> bool {
        // Clears the descriptor before it checks the rings. If an interrupt whose frame was already polled left it
        // readable, it would interrupt at once, again and again; and checking finds whatever it was readable for.
        self.port.clear_interrupt();
        self.wire.send_waiting_frames();
        if self.segments.pending() {
            return true;
        }
        let Some(mut gate) = self.port.incoming.try_enter() else { return false };
        gate.as_mut().is_some_and(|ring| with!(ring, it => it.unmask()))
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.port.interrupt()
    }

    /// Counts the interrupt. The descriptor is cleared when interrupts are allowed again, where that is necessary
    /// anyway.
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
