//! Ownership of an instance, as a value.
//!
//! Whoever wins the `SCHED` bit gets a [`Claim`], which can be neither copied nor cloned. Only it
//! reaches the queue. It ends in one of three ways: it is released, it is handed to another owner
//! (by [`Host::route`]), or, when a context unwinds, its drop leaves the instance where the next
//! softirq (or the instance's thread) finds it, so that a panic in one context strands no queue.
//!
//! This file and the [host](Host)'s use each other: a host gives claims, and a claim that is dropped goes
//! back to its host. A trait between them would have one implementation. The host's contract with its world
//! (`contract.rs`) is in this circle, too: a host has one, and it looks at the host.
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

    /// The token, for a list or for a thread that will adopt it.
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

    /// Gives the instance back, or stays its owner because somebody wanted it meanwhile.
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

    /// The same where the claim lies; afterwards the slot is empty, or (`false`) still holds it.
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
    /// Only a context that unwinds, or that was abandoned between two steps, gets here.
    fn drop(&mut self) {
        self.instance.state.take_from_thread();
        self.host.strand(self.instance);
    }
}
