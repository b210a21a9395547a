//! The cell that only an instance's owner may open. It and `Claim::owned`, which opens it, are all of the core's
//! `unsafe` code.
//!
//! An instance's queue and its owner's private state are reached only through a claim (`claim.rs`). A claim is made
//! only where `SCHED` was won, and it can be neither copied nor cloned, so a `&mut Claim` proves that no other
//! reference to the contents exists.
#![allow(unsafe_code)]

#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(loom)]
use loom::cell::UnsafeCell;

/// Contents that only the holder of the instance's token may touch.
#[derive(Debug)]
pub(crate) struct OwnedCell<T>(UnsafeCell<T>);

// SAFETY: only the thread that holds the token touches the contents; the token is passed on with release and taken
// with acquire ordering (`StateWord`), so `T: Send` is enough.
unsafe impl<T: Send> Sync for OwnedCell<T> {}

impl<T> OwnedCell<T> {
    pub(crate) fn new(contents: T) -> Self {
        OwnedCell(UnsafeCell::new(contents))
    }

    #[cfg(not(loom))]
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the token, not the borrow, is what excludes others")]
    /// The contents, for as long as the claim is borrowed.
    ///
    /// # Safety
    /// The caller holds the instance's token, and no other reference to the contents lives.
    pub(crate) unsafe fn open(&self) -> &mut T {
        // SAFETY: the caller's promise, above.
        unsafe { &mut *self.0.get() }
    }

    #[cfg(loom)]
    #[allow(clippy::mut_from_ref, reason = "the token, not the borrow, is what excludes others")]
    /// The contents, for as long as the claim is borrowed.
    ///
    /// # Safety
    /// The caller holds the instance's token, and no other reference to the contents lives.
    pub(crate) unsafe fn open(&self) -> &mut T {
        // loom checks, at this point of the schedule, that no other access overlaps.
        let pointer = self.0.with_mut(|pointer| pointer);
        // SAFETY: the caller's promise, above.
        unsafe { &mut *pointer }
    }
}
