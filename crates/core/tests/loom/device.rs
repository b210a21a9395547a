//! The device of the models: every access to it is a point where threads interleave.
//!
//! Its own word is accessed with relaxed operations: it must not order memory accesses that the core fails to
//! order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32 as Plain, Ordering::SeqCst};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};
use napkin_core::{Ns, Pressure, Queue, Work};

const MASKED: u32 = 1 << 31;
const COUNT: u32 = MASKED - 1;

/// The device's side: packets in the ring and the interrupt's mask in one word, so that an arrival
/// and an unmasking are each one point in time, as in hardware.
#[derive(Debug)]
pub(crate) struct Line {
    word: AtomicU32,
    /// Written before each access to the word, so that loom tries every order of them (see
    /// `src/sync.rs`).
    turn: AtomicU32,
    one_shot: bool,
    /// Set once a disable has ended: a poll is an error from then on.
    pub(crate) disabled: AtomicBool,
    /// Frames delivered to the socket.
    pub(crate) socket: AtomicU32,
    pub(crate) arrived: Plain,
}

impl Line {
    /// A masked line of a device that is out of service, and the device.
    pub(crate) fn new(one_shot: bool) -> (Arc<Line>, Nic) {
        let line = Arc::new(Line {
            word: AtomicU32::new(MASKED),
            turn: AtomicU32::new(0),
            one_shot,
            disabled: AtomicBool::new(true),
            socket: AtomicU32::new(0),
            arrived: Plain::new(0),
        });
        (line.clone(), Nic { line, alone: UnsafeCell::new(()), taken: 0 })
    }

    fn word(&self) -> &AtomicU32 {
        self.turn.fetch_add(1, Relaxed);
        &self.word
    }

    /// A packet arrives. `true`: the line was unmasked, and an interrupt is on its way. A one-shot
    /// line masks itself by that; an edge is never repeated.
    pub(crate) fn arrive(&self) -> bool {
        self.arrived.fetch_add(1, SeqCst);
        let change = |word| {
            let shot = if self.one_shot { MASKED } else { 0 };
            Some(if word & MASKED == 0 { (word + 1) | shot } else { word + 1 })
        };
        let old = if self.one_shot {
            self.word().fetch_update(Relaxed, Relaxed, change).unwrap_or_default()
        } else {
            self.word().fetch_add(1, Relaxed)
        };
        old & MASKED == 0
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.word().load(Relaxed) & COUNT
    }

    pub(crate) fn masked(&self) -> bool {
        self.word().load(Relaxed) & MASKED != 0
    }
}

/// The driver's side, which only the owner touches.
#[derive(Debug)]
pub(crate) struct Nic {
    line: Arc<Line>,
    /// loom fails the model where two accesses overlap or are not ordered.
    alone: UnsafeCell<()>,
    taken: u16,
}

impl Queue for Nic {
    fn poll(&mut self, budget: u16, _: Ns) -> Work {
        assert!(!self.line.disabled.load(SeqCst), "polled while disabled");
        let line = &self.line;
        let rx = self.alone.with_mut(|_| {
            let rx = line.waiting().min(u32::from(budget));
            if rx > 0 {
                let old = line.word().fetch_sub(rx, Relaxed);
                assert!(old & COUNT >= rx, "two owners took the same packet");
            }
            rx as u16
        });
        self.taken += rx;
        Work { rx, tx: 0 }
    }

    fn deliver(&mut self, _: Ns) -> Pressure {
        self.alone.with_mut(|_| self.line.socket.fetch_add(u32::from(self.taken), AcqRel));
        self.taken = 0;
        Pressure::Room
    }

    fn mask(&mut self) {
        self.alone.with_mut(|_| self.line.word().fetch_or(MASKED, Relaxed));
    }

    fn unmask(&mut self, _: Ns) -> bool {
        let old = self.alone.with_mut(|_| self.line.word().fetch_and(!MASKED, Relaxed));
        old & COUNT > 0
    }
}
