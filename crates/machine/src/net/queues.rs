//! The queues of the NIC, and which of them something has happened to.

use std::ops::{Deref, Index, IndexMut};

use crate::net::NicQueue;

/// All queues, by index. Whoever takes one to change it marks it, so that the invariants are checked
/// where something may have broken them.
#[derive(Debug)]
pub(crate) struct Queues {
    all: Vec<NicQueue>,
    /// Bit `index % 64` of each queue that was touched since the last look.
    touched: u64,
}

impl Queues {
    pub(crate) fn new(all: Vec<NicQueue>) -> Self {
        Queues { all, touched: 0 }
    }

    /// Something has happened to a queue or to its instance.
    #[inline]
    pub(crate) fn touch(&mut self, index: usize) {
        self.touched |= 1 << (index % 64);
    }

    /// Something may have happened to any.
    pub(crate) fn touch_all(&mut self) {
        self.touched = u64::MAX;
    }

    /// What was touched since the last call, as a mask of `index % 64`.
    #[inline]
    pub(crate) fn take_touched(&mut self) -> u64 {
        std::mem::take(&mut self.touched)
    }

    /// One, for a change of what no invariant is about: what is sent, and what becomes of it.
    #[inline]
    pub(crate) fn unmarked(&mut self, index: usize) -> &mut NicQueue {
        &mut self.all[index]
    }

    /// All of them, for such a change.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, NicQueue> {
        self.all.iter_mut()
    }
}

impl Deref for Queues {
    type Target = [NicQueue];

    #[inline]
    fn deref(&self) -> &[NicQueue] {
        &self.all
    }
}

impl Index<usize> for Queues {
    type Output = NicQueue;

    #[inline]
    fn index(&self, index: usize) -> &NicQueue {
        &self.all[index]
    }
}

impl IndexMut<usize> for Queues {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut NicQueue {
        self.touch(index);
        &mut self.all[index]
    }
}
