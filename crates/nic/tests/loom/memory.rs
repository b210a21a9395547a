//! A stand-in for the memory that two processes share (`src/vhost/memory.rs`): the words of rings are loom's 16-bit
//! atomics, of which wider fields are composed. That is weaker than the processor, which writes wider fields at
//! once: what holds here holds there.
//!
//! Frames are bytes under a lock: the models check that they are there, not what orders them.

use std::cell::Cell;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use loom::sync::atomic::{AtomicU16, AtomicUsize};

thread_local! {
    /// Whether fences do nothing, in the models that must fail without them.
    static WITHOUT_FENCES: Cell<bool> = const { Cell::new(false) };
}

/// Disables fences for the rest of this test.
pub fn take_fences_away() {
    WITHOUT_FENCES.set(true);
}

pub(in crate::vhost) fn fence(order: Ordering) {
    if !WITHOUT_FENCES.get() {
        loom::sync::atomic::fence(order);
    }
}

/// Address of the rings.
pub const START: u64 = 0x1000;
/// Size of all three parts of a ring, in bytes.
pub const RING: usize = 0x80;
/// Address of the frames.
pub const FRAMES: u64 = START + 0x1000;

/// A word of a ring. loom 0.7 remembers only the last access to an atomic, so that a thread's own loads may hide
/// others from its search. Each access therefore first writes to a companion, relaxed, so that every order is tried.
#[derive(Debug, Default)]
struct Word {
    value: AtomicU16,
    turn: AtomicUsize,
}

#[derive(Debug)]
pub struct Memory {
    words: Vec<Word>,
    frames: Mutex<Vec<u8>>,
}

impl Memory {
    /// Memory for a ring at [`START`] and `frames` bytes of frames at [`FRAMES`].
    pub fn new(frames: usize) -> Memory {
        let words = (0..RING / 2).map(|_| Word::default()).collect();
        Memory { words, frames: Mutex::new(vec![0; frames]) }
    }

    fn frames(&self) -> MutexGuard<'_, Vec<u8>> {
        self.frames.lock().expect("no model panics with the lock")
    }

    fn range(guest: u64, len: usize) -> std::ops::Range<usize> {
        let at = (guest - FRAMES) as usize;
        at..at + len
    }

    pub fn read(&self, guest: u64, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.frames()[Memory::range(guest, into.len())]);
        true
    }

    pub fn write(&self, guest: u64, from: &[u8]) -> bool {
        self.frames()[Memory::range(guest, from.len())].copy_from_slice(from);
        true
    }

    pub fn read_parts<const N: usize>(
        &self,
        guest: u64,
        first: &mut [u8; N],
        then: &mut [u8],
    ) -> bool {
        self.read(guest, first) && self.read(guest + N as u64, then)
    }

    pub fn prefetch(&self, _guest: u64) {}

    pub fn area(self: &Arc<Memory>, user: u64, len: usize, _align: usize) -> Option<Area> {
        let base = (user - START) as usize;
        assert!(base + len <= RING, "a ring of a model is small");
        Some(Area { base, memory: Arc::clone(self) })
    }
}

#[derive(Debug)]
pub struct Area {
    base: usize,
    memory: Arc<Memory>,
}

impl Area {
    fn word(&self, offset: usize) -> &AtomicU16 {
        let Word { value, turn } = &self.memory.words[(self.base + offset) / 2];
        turn.fetch_add(1, Relaxed);
        value
    }

    pub fn load16(&self, offset: usize, order: Ordering) -> u16 {
        self.word(offset).load(order)
    }

    pub fn store16(&self, offset: usize, value: u16, order: Ordering) {
        self.word(offset).store(value, order);
    }

    pub fn update16(&self, offset: usize, value: u16) {
        self.store16(offset, value, Relaxed);
    }

    /// For in-flight records, which the models do not use.
    pub fn words(&self, _: usize, _: usize) -> &[std::sync::atomic::AtomicU64] {
        unreachable!("nothing is tracked")
    }

    pub fn load32(&self, offset: usize, order: Ordering) -> u32 {
        u32::from(self.load16(offset, order)) | u32::from(self.load16(offset + 2, order)) << 16
    }

    pub fn store32(&self, offset: usize, value: u32, order: Ordering) {
        self.store16(offset, value as u16, Relaxed);
        self.store16(offset + 2, (value >> 16) as u16, order);
    }

    pub fn update32(&self, offset: usize, value: u32) {
        self.store32(offset, value, Relaxed);
    }

    pub fn load64(&self, offset: usize, order: Ordering) -> u64 {
        u64::from(self.load32(offset, order)) | u64::from(self.load32(offset + 4, order)) << 32
    }

    /// Stores the upper half last, with the requested order: it has a packed descriptor's flags.
    pub fn store64(&self, offset: usize, value: u64, order: Ordering) {
        self.store32(offset, value as u32, Relaxed);
        self.store32(offset + 4, (value >> 32) as u32, order);
    }

    pub fn update64(&self, offset: usize, value: u64) {
        self.store64(offset, value, Relaxed);
    }
}
