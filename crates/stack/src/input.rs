//! The receive side of a queue: where its frames enter the stack.
//!
//! An [`Input`] belongs to the owner of its queue, which alone has `&mut` access; any number of them deliver
//! concurrently without a lock between them. Per-batch state is allocated when sockets open, not when frames
//! arrive.

use std::sync::Arc;

use napkin_core::Pressure;
use napkin_nic::{Frame, Transmitter};
use napkin_policy::{MILLISECOND, Ns};

use crate::emit::{self, Addressing};
use crate::queues::Entry;
use crate::receiver::Arrival;
use crate::tables::Tables;
use crate::tcp::flow_hash;
use crate::wire::{self, Received};
use crate::{Address, FrameOutcome, Receiver, Stack};

/// How long a receiver counts as active for a queue after that queue last had a frame for it. The queue is full if
/// all its active receivers are full; a receiver that has had no frame for this long is no longer considered.
pub const ACTIVE: Ns = 100 * MILLISECOND;

/// One queue's entry point into the stack.
#[derive(Debug)]
pub struct Input {
    stack: Arc<Stack>,
    queue: Arc<Entry>,
    /// Per-receiver state of this queue, indexed by the receiver's slot.
    slots: Vec<Slot>,
    /// The slots of receivers that were active at the last check.
    active: Vec<usize>,
    /// The slots of receivers that had a frame in the current batch; empty between batches.
    touched: Vec<usize>,
    /// The generation of the tables for which `slots` is sized.
    generation: u64,
}

#[derive(Debug, Default)]
struct Slot {
    receiver: Option<Arc<Receiver>>,
    /// When this queue last had a frame for the receiver.
    last: Ns,
    /// Whether the slot is in `active`.
    active: bool,
    /// Whether the slot is in `touched`.
    touched: bool,
    /// Whether the current batch put a frame into the receiver.
    added: bool,
}

impl Input {
    /// Registers a queue with a stack until the value is dropped. `napi_id` is what sockets report as the queue
    /// that feeds them; it must not be 0, which means none. `transmitter` sends the stack's own answers and what
    /// those sockets send.
    pub fn new(stack: Arc<Stack>, napi_id: u32, transmitter: Arc<dyn Transmitter>) -> Input {
        let queue = stack.queues.register(napi_id, transmitter);
        let mut input = Input {
            stack,
            queue,
            slots: Vec::new(),
            active: Vec::new(),
            touched: Vec::new(),
            generation: 0,
        };
        let tables = input.stack.tables.load_full();
        input.refresh(&tables);
        input
    }

    /// The queue's NAPI id.
    pub fn napi_id(&self) -> u32 {
        self.queue.napi_id
    }

    /// The stack that the queue feeds.
    pub fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    /// Drains `frames`: each is put into a receive buffer, answered, or dropped and counted. The listener of each
    /// socket that got frames is called once for the batch.
    ///
    /// Returns `Full` if the batch met a full receiver and every active receiver of this queue is full; otherwise
    /// `Room`. A receiver is active if it is open and this queue had a frame for it within [`ACTIVE`]. After
    /// `Full`, each of those receivers calls [`Listener::drained`](crate::Listener::drained) with this queue's id
    /// once it is drained to 25 %, possibly before this call returns.
    pub fn deliver(&mut self, frames: &mut Vec<Frame>, now: Ns) -> Pressure {
        let tables = self.stack.tables.load();
        if tables.generation != self.generation {
            self.refresh(&tables);
        }
        let mut answered = false;
        for frame in frames.drain(..) {
            self.queue.tally.frame();
            let fate = self.receive(&tables, frame, now);
            answered |= matches!(
                fate,
                FrameOutcome::AnsweredPing
                    | FrameOutcome::AnsweredArp
                    | FrameOutcome::AnsweredNdisc
            );
            self.queue.tally.fate(fate);
        }
        if answered {
            self.queue.transmitter.flush();
        }
        if self.end_batch() { self.pressure(now) } else { Pressure::Room }
    }

    /// Processes one frame and returns its fate.
    fn receive(&mut self, tables: &Tables, mut frame: Frame, now: Ns) -> FrameOutcome {
        if let Some(receiver) = tables.raw(&frame) {
            let end = frame.len();
            return self.feed(receiver, Arrival { frame, end }, now);
        }
        let us = self.stack.addresses();
        match wire::classify(&frame, us) {
            Err(fate) => fate,
            Ok(Received::Udp { port, end }) => match tables.udp(port) {
                Some(receiver) => self.feed(receiver, Arrival { frame, end }, now),
                None => FrameOutcome::NoPort,
            },
            Ok(Received::Tcp { end }) => {
                let hash = || flow_hash(&self.stack.flow_key, &frame);
                match tables.tcp(self.queue.napi_id, hash) {
                    Some(receiver) => self.feed(receiver, Arrival { frame, end }, now),
                    None => FrameOutcome::NoPort,
                }
            }
            Ok(Received::Echo { end }) => {
                frame.set_len(end);
                match emit::turn_echo(&mut frame, us) {
                    true => self.answer(&frame, now, FrameOutcome::AnsweredPing),
                    false => FrameOutcome::AnswerFailed,
                }
            }
            Ok(Received::AddressQuery { mac, ip, target, states_source }) => {
                if states_source {
                    self.stack.neighbours.learn(ip, mac);
                }
                let from = Address::single(us.mac(), target);
                let addressing = Addressing { from, to: Address::single(mac, ip), tag: us.vlan() };
                let mut reply = [0; wire::RESOLVE_FRAME];
                let sent = match target.is_ipv4() {
                    true => FrameOutcome::AnsweredArp,
                    false => FrameOutcome::AnsweredNdisc,
                };
                match emit::write_reply(&mut reply, &addressing) {
                    Ok(length) => self.answer(&reply[..length], now, sent),
                    Err(_) => FrameOutcome::AnswerFailed,
                }
            }
            Ok(Received::AddressClaim { mac, ip, overrides, update_only }) => {
                match update_only {
                    true => self.stack.neighbours.advertised(ip, mac, overrides),
                    false => self.stack.neighbours.learn(ip, mac),
                }
                FrameOutcome::Learned
            }
        }
    }

    /// Posts an answer of the stack itself on the queue that the request came from; it leaves when the batch is
    /// flushed. Returns `sent` if the queue took it.
    fn answer(&self, frame: &[u8], now: Ns, sent: FrameOutcome) -> FrameOutcome {
        match self.queue.transmitter.post(frame, now) {
            Ok(()) => sent,
            Err(_) => FrameOutcome::AnswerFailed,
        }
    }

    /// Puts a frame into a receive buffer and records that this queue feeds the receiver.
    fn feed(&mut self, receiver: &Arc<Receiver>, arrival: Arrival, now: Ns) -> FrameOutcome {
        let at = receiver.slot();
        // The slot always exists: `refresh` sizes `slots` for the tables that named the receiver.
        let Some(slot) = self.slots.get_mut(at) else { return FrameOutcome::NoPort };
        if !slot.touched {
            slot.touched = true;
            slot.added = false;
            slot.last = now;
            self.touched.push(at);
            if !slot.receiver.as_ref().is_some_and(|known| Arc::ptr_eq(known, receiver)) {
                slot.receiver = Some(Arc::clone(receiver));
            }
            if !slot.active {
                slot.active = true;
                self.active.push(at);
            }
        }
        let fate = receiver.push(arrival);
        slot.added |= fate == FrameOutcome::Delivered;
        fate
    }

    /// Ends the batch at every receiver that had a frame. Returns whether any of them is full.
    fn end_batch(&mut self) -> bool {
        let mut full = false;
        for at in self.touched.drain(..) {
            let Some(slot) = self.slots.get_mut(at) else { continue };
            slot.touched = false;
            if let Some(receiver) = &slot.receiver {
                full |= receiver.end_batch(&self.queue, slot.added);
            }
        }
        full
    }

    /// Returns `Full` if every active receiver is full, and drops inactive and closed receivers from the list.
    /// [`deliver`](Self::deliver) returns this value if its batch met a full receiver; it is public for a caller
    /// that delivers a batch in parts.
    pub fn pressure(&mut self, now: Ns) -> Pressure {
        let mut next = 0;
        while let Some(slot) = self.active.get(next).and_then(|at| self.slots.get_mut(*at)) {
            let recent = now.saturating_sub(slot.last) <= ACTIVE;
            match &slot.receiver {
                Some(receiver) if recent && !receiver.is_closed() => {
                    if !receiver.is_full_for(&self.queue) {
                        return Pressure::Room;
                    }
                    next += 1;
                }
                _ => {
                    slot.receiver = None;
                    slot.active = false;
                    self.active.swap_remove(next);
                }
            }
        }
        if self.active.is_empty() { Pressure::Room } else { Pressure::Full }
    }

    /// Resizes the per-receiver state for new tables, so that no frame has to, and releases closed receivers.
    fn refresh(&mut self, tables: &Tables) {
        self.generation = tables.generation;
        if self.slots.len() < tables.slots {
            self.slots.resize_with(tables.slots, Slot::default);
        }
        self.active.clear();
        self.active.reserve(self.slots.len());
        self.touched.reserve(self.slots.len());
        for (at, slot) in self.slots.iter_mut().enumerate() {
            slot.receiver.take_if(|receiver| receiver.is_closed());
            slot.active &= slot.receiver.is_some();
            if slot.active {
                self.active.push(at);
            }
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.stack.queues.unregister(&self.queue);
    }
}
