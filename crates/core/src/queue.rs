//! The driver's side of the NAPI contract: the operations that the core needs of a packet queue.
//!
//! A queue is touched only through a claim, so an implementation needs no locks
//! of its own for anything these four calls use.

use crate::Ns;

/// The work of one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Frames received; never more than the budget of the poll.
    pub rx: u16,
    /// Transmit completions reaped; not limited by the budget.
    pub tx: u16,
}

impl Work {
    /// A poll that found nothing.
    pub const NONE: Work = Work { rx: 0, tx: 0 };

    /// Whether the poll found anything at all. Transmit completions count: for *hold* a queue whose
    /// transmissions still complete is not idle.
    pub const fn any(self) -> bool {
        self.rx | self.tx != 0
    }
}

/// The fill level of the receivers after a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pressure {
    /// At least one active receiver of this queue has room.
    #[default]
    Room,
    /// Every active receiver of this queue is filled to at least 75 % of its buffer. Under the
    /// *feedback* policy polling stops until one of them has drained to 25 %.
    Full,
}

/// One receive queue together with its transmit completions, as a driver sees them.
pub trait Queue {
    /// Takes up to `budget` frames off the ring and reaps finished transmissions. Less than
    /// `budget` frames means that the ring was found empty. With a budget of 0 only transmissions
    /// are reaped.
    fn poll(&mut self, budget: u16, now: Ns) -> Work;

    /// Hands the frames of the last poll to their receivers.
    fn deliver(&mut self, now: Ns) -> Pressure;

    /// Masks the interrupt. Idempotent; a one-shot interrupt that has fired is masked already.
    fn mask(&mut self);

    /// Unmasks the interrupt and then checks the ring once more. Returns `true` if work was already waiting, for
    /// which an interrupt may or may not come.
    fn unmask(&mut self, now: Ns) -> bool;
}
