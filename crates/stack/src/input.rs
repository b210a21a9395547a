//! One queue's entrance into the stack.
//!
//! An [`Input`] belongs to whoever owns its queue (only an owner has `&mut` to it), and any number
//! of them deliver at the same time without a lock between them. What one batch needs is allocated
//! when sockets open, not when frames come.

use std::sync::Arc;

use napkin_core::Pressure;
use napkin_nic::{Frame, Transmitter};
use napkin_policy::{MILLISECOND, Ns};

use crate::emit::{self, Way};
use crate::queues::Entry;
use crate::receiver::Arrival;
use crate::tables::Tables;
use crate::tcp::flow_hash;
use crate::wire::{self, Seen};
use crate::{Address, Fate, Receiver, Stack};

/// How long a receiver counts as active for a queue after that queue last had a frame for it. Only
/// active receivers can keep a queue from being full: one that was served once, long ago, is not
/// waiting for anything.
pub const ACTIVE: Ns = 100 * MILLISECOND;

/// One queue's way into the stack.
#[derive(Debug)]
pub struct Input {
    stack: Arc<Stack>,
    queue: Arc<Entry>,
    /// What this queue knows of each receiver, by the receiver's slot.
    slots: Vec<Slot>,
    /// The slots of receivers that were active when last looked at.
    active: Vec<usize>,
    /// The slots of receivers that had a frame in this batch; empty between batches.
    touched: Vec<usize>,
    /// The state of the tables that `slots` is made for.
    generation: u64,
}

#[derive(Debug, Default)]
struct Slot {
    receiver: Option<Arc<Receiver>>,
    /// When this queue last had a frame for it.
    last: Ns,
    /// Whether it is in `active`.
    active: bool,
    /// Whether it is in `touched`.
    touched: bool,
    /// Whether this batch put a frame into it.
    added: bool,
}

impl Input {
    /// Registers a queue with a stack until the value is dropped. `napi_id` is what sockets report
    /// as the queue that feeds them and must not be 0, which means none; `transmitter` sends the
    /// stack's own answers and what those sockets send.
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

    /// The stack it feeds.
    pub fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    /// Takes every frame out of `frames` and brings it to its end: into a receive buffer, answered,
    /// or dropped and counted. Sockets that got frames are announced to their listeners once each.
    ///
    /// `Full` says that every active receiver of this queue is full, that is, each open one for
    /// which a frame came from this queue within [`ACTIVE`]. A receiver that is not full, or a batch
    /// that met no full receiver, means `Room`. After `Full` each of those receivers will call
    /// [`Listener::drained`](crate::Listener::drained) with this queue's id when it is drained to
    /// 25 %, perhaps before this call returns.
    pub fn deliver(&mut self, frames: &mut Vec<Frame>, now: Ns) -> Pressure {
        let tables = self.stack.tables.load();
        if tables.generation != self.generation {
            self.refresh(&tables);
        }
        let mut answered = false;
        for frame in frames.drain(..) {
            self.queue.tally.frame();
            let fate = self.receive(&tables, frame, now);
            answered |=
                matches!(fate, Fate::AnsweredPing | Fate::AnsweredArp | Fate::AnsweredNdisc);
            self.queue.tally.fate(fate);
        }
        if answered {
            self.queue.transmitter.flush();
        }
        if self.settle() { self.pressure(now) } else { Pressure::Room }
    }

    /// Brings one frame to its end.
    fn receive(&mut self, tables: &Tables, mut frame: Frame, now: Ns) -> Fate {
        if let Some(receiver) = tables.raw(&frame) {
            let end = frame.len();
            return self.feed(receiver, Arrival { frame, end }, now);
        }
        let us = self.stack.addresses();
        match wire::classify(&frame, us) {
            Err(fate) => fate,
            Ok(Seen::Udp { port, end }) => match tables.udp(port) {
                Some(receiver) => self.feed(receiver, Arrival { frame, end }, now),
                None => Fate::NoPort,
            },
            Ok(Seen::Tcp { end }) => {
                let hash = || flow_hash(&self.stack.flow_key, &frame);
                match tables.tcp(self.queue.napi_id, hash) {
                    Some(receiver) => self.feed(receiver, Arrival { frame, end }, now),
                    None => Fate::NoPort,
                }
            }
            Ok(Seen::Echo { end }) => {
                frame.set_len(end);
                match emit::turn_echo(&mut frame, us) {
                    true => self.answer(&frame, now, Fate::AnsweredPing),
                    false => Fate::AnswerFailed,
                }
            }
            Ok(Seen::Asked { mac, ip, target, told }) => {
                if told {
                    self.stack.neighbours.learn(ip, mac);
                }
                let from = Address::single(us.mac(), target);
                let way = Way { from, to: Address::single(mac, ip), tag: us.vlan() };
                let mut reply = [0; wire::RESOLVE_FRAME];
                let sent = match target.is_ipv4() {
                    true => Fate::AnsweredArp,
                    false => Fate::AnsweredNdisc,
                };
                match emit::write_reply(&mut reply, &way) {
                    Ok(length) => self.answer(&reply[..length], now, sent),
                    Err(_) => Fate::AnswerFailed,
                }
            }
            Ok(Seen::Told { mac, ip, overrides, asked }) => {
                match asked {
                    true => self.stack.neighbours.advertised(ip, mac, overrides),
                    false => self.stack.neighbours.learn(ip, mac),
                }
                Fate::Learned
            }
        }
    }

    /// Sends an answer of the stack itself back where the question came from, with the batch; `sent` is the
    /// fate of the question then.
    fn answer(&self, frame: &[u8], now: Ns, sent: Fate) -> Fate {
        match self.queue.transmitter.post(frame, now) {
            Ok(()) => sent,
            Err(_) => Fate::AnswerFailed,
        }
    }

    /// Puts a frame into a receive buffer and remembers that this queue feeds it.
    fn feed(&mut self, receiver: &Arc<Receiver>, arrival: Arrival, now: Ns) -> Fate {
        let at = receiver.slot();
        // There is always one: `refresh` has made as many as the tables that named the receiver.
        let Some(slot) = self.slots.get_mut(at) else { return Fate::NoPort };
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
        slot.added |= fate == Fate::Delivered;
        fate
    }

    /// Ends the batch at every receiver that had a frame. Says whether one of them is full.
    fn settle(&mut self) -> bool {
        let mut full = false;
        for at in self.touched.drain(..) {
            let Some(slot) = self.slots.get_mut(at) else { continue };
            slot.touched = false;
            if let Some(receiver) = &slot.receiver {
                full |= receiver.settle(&self.queue, slot.added);
            }
        }
        full
    }

    /// Whether every active receiver is full; forgets those that are active no longer. What
    /// [`deliver`](Self::deliver) answers if its batch met a full receiver; for whoever delivers a
    /// batch in parts.
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

    /// Makes room for what the tables name, so that no frame has to, and lets closed receivers go.
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
