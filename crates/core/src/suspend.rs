//! Suspension of interrupts, shared by any number of epoll contexts.
//!
//! The kernel has one timer and no memory of who suspended, so that one idle context's resume ends every other
//! context's suspension (race R14). Here an instance counts the contexts that suspend it, in one word with an
//! epoch: when the safety timeout expires the epoch advances, which voids the registrations of stalled contexts.
//! There is no list, no lock and no limit on the number of contexts.
//!
//! Suspension masks nothing: masking is inherited from deferral, and without deferral suspension
//! has no effect on interrupts, as in the kernel.

use crate::Ns;
use crate::race::{self, Race};
use crate::sync::{Ordering, Word64};

const COUNT: u64 = u32::MAX as u64;
const EPOCH: u64 = COUNT + 1;

/// A context's registration with an instance's suspension: the epoch in which it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registration(pub(crate) u32);

/// Whether any context still suspends the instance after one has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterLeave {
    /// No context suspends the instance any more: poll it at once.
    Last,
    /// Other contexts still do.
    Others,
}

/// The number of contexts that suspend one instance, and until when at the latest.
#[derive(Debug)]
pub(crate) struct Suspension {
    word: Word64,
    /// Only ever raised: at most one timeout after the start of some suspension. Read only while a context suspends
    /// the instance.
    until: Word64,
}

impl Suspension {
    pub(crate) fn new() -> Self {
        Suspension { word: Word64::new(0), until: Word64::new(0) }
    }

    /// Suspends, or prolongs, until `until`.
    #[inline]
    pub(crate) fn enter(&self, held: Option<Registration>, until: Ns) -> Registration {
        self.until.fetch_max(until, Ordering::AcqRel);
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let epoch = (word / EPOCH) as u32;
            if held == Some(Registration(epoch)) {
                return Registration(epoch);
            }
            let new = word + 1;
            match self.word.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Registration(epoch),
                Err(now) => word = now,
            }
        }
    }

    /// Ends one context's registration.
    #[inline]
    pub(crate) fn leave(&self, held: Registration) -> AfterLeave {
        if race::on(Race::ResumeCancelsAll) {
            self.expire();
            return AfterLeave::Last;
        }
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if (word / EPOCH) as u32 != held.0 || word & COUNT == 0 {
                // Expired meanwhile. Others may have suspended anew since.
                return if word & COUNT == 0 { AfterLeave::Last } else { AfterLeave::Others };
            }
            match self.word.compare_exchange(word, word - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if (word - 1) & COUNT == 0 => return AfterLeave::Last,
                Ok(_) => return AfterLeave::Others,
                Err(now) => word = now,
            }
        }
    }

    /// Voids every registration, as the safety timeout does. The common case is that there is none.
    #[inline]
    pub(crate) fn expire(&self) {
        let word = self.word.load(Ordering::Acquire);
        if word & COUNT != 0 {
            self.void(word);
        }
    }

    /// The slow path of `expire`: there are registrations in `word`, which was just read.
    #[cold]
    fn void(&self, mut word: u64) {
        while word & COUNT != 0 {
            let new = (word / EPOCH).wrapping_add(1) % EPOCH * EPOCH;
            match self.word.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
    }

    /// When the suspension ends at the latest; 0 if the instance is not suspended.
    #[inline]
    pub(crate) fn until(&self) -> Ns {
        if self.word.load(Ordering::Acquire) & COUNT == 0 {
            0
        } else {
            self.until.load(Ordering::Acquire)
        }
    }

    /// The number of contexts that suspend the instance.
    pub(crate) fn contexts(&self) -> u32 {
        (self.word.load(Ordering::Acquire) & COUNT) as u32
    }
}
