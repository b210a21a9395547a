//! A modelled device: a ring, a one-shot interrupt line, and the sockets behind it.
//!
//! The interrupt is a one-shot: firing masks it. Unmasking checks the ring again and returns what it saw; whether
//! an interrupt comes for work that was waiting depends on the device (`kicks`), since real ones differ. What
//! belongs to the world (sockets, statistics) is shared with it; what belongs to the owner (the batch between poll
//! and delivery) is checked here on every call.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use napkin_core::{Ns, Pressure, Queue, Work};

/// One receiver.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    pub(crate) frames: u32,
    pub(crate) capacity: u32,
    pub(crate) dropped: u64,
    pub(crate) read: u64,
    /// Whether it is open: closed ones take no part in pressure.
    pub(crate) active: bool,
}

impl Socket {
    pub(crate) fn new(capacity: u32) -> Self {
        Socket { frames: 0, capacity, dropped: 0, read: 0, active: true }
    }

    fn full(&self) -> bool {
        self.frames * 4 >= self.capacity * 3
    }

    /// Whether it has drained far enough to have a parked queue polled again.
    pub(crate) fn drained(&self) -> bool {
        self.frames * 4 <= self.capacity
    }

    pub(crate) fn read(&mut self, most: u32) -> u32 {
        let n = self.frames.min(most);
        self.frames -= n;
        self.read += u64::from(n);
        n
    }
}

pub(crate) type Sockets = Rc<RefCell<Vec<Socket>>>;

/// The device's side of a queue. A frame is the number of the socket it is for.
#[derive(Debug)]
pub(crate) struct Device {
    ring: VecDeque<usize>,
    pub(crate) ring_size: usize,
    batch: Vec<usize>,
    sockets: Sockets,
    pub(crate) receivers: Vec<usize>,
    pub(crate) completions: u16,
    pub(crate) masked: bool,
    /// Whether the interrupt has fired and its context has not taken it yet.
    pub(crate) line: bool,
    /// Whether unmasking with work in the ring fires the interrupt.
    pub(crate) kicks: bool,
    /// Whether a context may have been abandoned between poll and delivery.
    pub(crate) tolerates_abandonment: bool,
    /// Sockets that got a frame in the last delivery.
    pub(crate) woken: Vec<usize>,
    /// The last answer of a delivery.
    pub(crate) pressure: Pressure,
    pub(crate) arrivals: u64,
    pub(crate) ring_drops: u64,
    pub(crate) delivered: u64,
    pub(crate) socket_drops: u64,
    /// Frames lost with a context that was abandoned between poll and delivery.
    pub(crate) abandoned: u64,
    pub(crate) unmasks: u64,
    /// The first violation of the queue's contract, if any.
    pub(crate) broken: Option<String>,
}

impl Device {
    pub(crate) fn new(sockets: Sockets, receivers: Vec<usize>, ring_size: usize) -> Self {
        Device {
            ring: VecDeque::new(),
            ring_size,
            batch: Vec::new(),
            sockets,
            receivers,
            completions: 0,
            masked: true,
            line: false,
            kicks: false,
            tolerates_abandonment: false,
            woken: Vec::new(),
            pressure: Pressure::Room,
            arrivals: 0,
            ring_drops: 0,
            delivered: 0,
            socket_drops: 0,
            abandoned: 0,
            unmasks: 0,
            broken: None,
        }
    }

    /// A frame for one of the receivers comes off the wire.
    pub(crate) fn arrive(&mut self, receiver: usize) {
        self.arrivals += 1;
        if self.ring.len() == self.ring_size {
            self.ring_drops += 1;
            return;
        }
        self.ring.push_back(receiver);
        if !self.masked {
            self.masked = true;
            self.line = true;
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn in_batch(&self) -> usize {
        self.batch.len()
    }

    /// Whether every frame that arrived is accounted for.
    pub(crate) fn conserves(&self) -> bool {
        let queued = (self.ring.len() + self.batch.len()) as u64;
        self.arrivals == self.ring_drops + self.delivered + self.abandoned + queued
    }

    fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

/// What the instance owns: a handle on the device.
#[derive(Debug, Clone)]
pub(crate) struct Port(pub(crate) Rc<RefCell<Device>>);

impl Queue for Port {
    fn poll(&mut self, budget: u16, _: Ns) -> Work {
        let device = &mut *self.0.borrow_mut();
        if !device.batch.is_empty() {
            if !device.tolerates_abandonment {
                device.breaks(format!("polled with {} frames undelivered", device.batch.len()));
            }
            device.abandoned += device.batch.len() as u64;
            device.batch.clear();
        }
        let take = usize::from(budget).min(device.ring.len());
        device.batch.extend(device.ring.drain(..take));
        Work { rx: take as u16, tx: std::mem::take(&mut device.completions) }
    }

    fn deliver(&mut self, _: Ns) -> Pressure {
        let device = &mut *self.0.borrow_mut();
        if device.batch.is_empty() {
            device.breaks("delivery without frames".into());
        }
        let mut sockets = device.sockets.borrow_mut();
        for receiver in device.batch.drain(..) {
            let socket = &mut sockets[receiver];
            device.delivered += 1;
            if socket.frames < socket.capacity {
                socket.frames += 1;
            } else {
                socket.dropped += 1;
                device.socket_drops += 1;
            }
            if !device.woken.contains(&receiver) {
                device.woken.push(receiver);
            }
        }
        let mut active = device.receivers.iter().map(|&r| &sockets[r]).filter(|s| s.active);
        let full = match active.next() {
            None => false,
            Some(first) => first.full() && active.all(Socket::full),
        };
        device.pressure = if full { Pressure::Full } else { Pressure::Room };
        device.pressure
    }

    fn mask(&mut self) {
        self.0.borrow_mut().masked = true;
    }

    fn unmask(&mut self, _: Ns) -> bool {
        let device = &mut *self.0.borrow_mut();
        device.unmasks += 1;
        let waits = !device.ring.is_empty();
        device.masked = waits && device.kicks;
        device.line |= device.masked;
        waits
    }
}
