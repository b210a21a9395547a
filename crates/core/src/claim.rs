//! Ownership of an instance, as a value.
//!
//! The context that wins the `SCHED` bit gets a [`Claim`], which can be neither copied nor cloned and is the only
//! way to the queue. A claim ends in one of three ways: it is released; it is handed to another owner (by
//! [`Host::route`]); or a context unwinds and drops it. The drop leaves the instance to its CPU's softirq, so that
//! a panic in one context strands no queue.
//!
//! This module and [`Host`] depend on each other: a host makes claims, and a dropped claim goes back to its host. A
//! trait between them would have a single implementation. `contract.rs` is part of the same cycle: a host contains
//! one, which reads the host.
#![allow(unsafe_code)]

use core::mem;

use crate::host::Host;
use crate::instance::{Id, Instance, Owned};
use crate::state::Release;

/// Proof of owning an instance, and the only way to its queue.
#[derive(Debug)]
#[must_use = "a claim is released or handed over; dropping it costs a softirq"]
pub(crate) struct Claim<'a, Q> {
    instance: &'a Instance<Q>,
    host: &'a Host<Q>,
}

impl<'a, Q> Claim<'a, Q> {
    /// The claim for a token that the caller has just won, adopted or taken off a list.
    #[inline]
    pub(crate) fn from_token(host: &'a Host<Q>, instance: &'a Instance<Q>) -> Self {
        Claim { host, instance }
    }

    /// Turns the claim into a token, for a list or for a thread that will adopt it.
    #[inline]
    pub(crate) fn into_token(self) -> &'a Instance<Q> {
        let instance = self.instance;
        mem::forget(self);
        instance
    }

    #[inline]
    pub(crate) fn id(&self) -> Id {
        self.instance.id
    }

    #[inline]
    pub(crate) fn instance(&self) -> &'a Instance<Q> {
        self.instance
    }

    #[inline]
    pub(crate) fn owned(&mut self) -> &mut Owned<Q> {
        // SAFETY: this claim is the token's only holder, and it is borrowed mutably for as long as
        // the reference lives.
        unsafe { self.instance.owned.open() }
    }

    /// Releases the instance; `Err` returns the claim if a schedule was missed meanwhile.
    #[inline]
    pub(crate) fn release(self) -> Result<(), Self> {
        match self.instance.state.release() {
            Release::Free => {
                mem::forget(self);
                Ok(())
            }
            Release::Missed => {
                self.instance.counters.repolls.add(1);
                Err(self)
            }
        }
    }

    /// The same in place: empties the slot, or returns `false` and leaves the claim in it.
    #[inline]
    pub(crate) fn release_from(slot: &mut Option<Self>) -> bool {
        let Some(claim) = slot else { return true };
        match claim.instance.state.release() {
            Release::Free => {
                mem::forget(slot.take());
                true
            }
            Release::Missed => {
                claim.instance.counters.repolls.add(1);
                false
            }
        }
    }
}

impl<Q> Drop for Claim<'_, Q> {
    /// Runs if a context unwinds or is abandoned between two steps (and in `Host::with_claim`).
    fn drop(&mut self) {
        self.instance.state.take_from_thread();
        self.host.leave_to_softirq(self.instance);
    }
}
