//! Operations in flight on a store, and the connections that wait for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use napkin_stack::Flow;

use super::store::{Action, BlockStore, Ended, Operation};

/// Completed operations of a connection, each with its request's number. It lives as long as the connection.
#[derive(Debug)]
pub(super) struct Inbox {
    flow: Flow,
    ended: Mutex<Vec<(u64, Ended)>>,
    /// Set when it is dropped.
    closed: Arc<AtomicBool>,
}

impl Inbox {
    /// Takes the operations that completed since the last call.
    pub(super) fn take(&self) -> Vec<(u64, Ended)> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.closed.store(true, Relaxed);
    }
}

/// The request that began an operation.
#[derive(Debug)]
struct Owner {
    inbox: Weak<Inbox>,
    request: u64,
}

/// A store, and the owners of its operations in flight.
#[derive(Debug)]
pub(super) struct Operations<S> {
    pub(super) store: S,
    owners: HashMap<u64, Owner>,
    tag: u64,
    /// Whether a connection has closed since the last [`submit`](Operations::submit).
    closed: Arc<AtomicBool>,
}

impl<S: BlockStore> Operations<S> {
    pub(super) fn on(store: S) -> Operations<S> {
        Operations { store, owners: HashMap::new(), tag: 0, closed: Arc::default() }
    }

    /// Creates the inbox of a new connection.
    pub(super) fn inbox(&self, flow: Flow) -> Arc<Inbox> {
        Arc::new(Inbox { flow, ended: Mutex::default(), closed: Arc::clone(&self.closed) })
    }

    /// Begins an operation of a request; returns it if it completed at once.
    pub(super) fn begin(
        &mut self,
        offset: u64,
        action: Action,
        inbox: &Arc<Inbox>,
        request: u64,
    ) -> Option<Ended> {
        let tag = self.tag;
        self.tag += 1;
        let ended = self.store.begin(Operation { tag, offset, action });
        if ended.is_none() {
            self.owners.insert(tag, Owner { inbox: Arc::downgrade(inbox), request });
        }
        ended
    }

    /// Puts the next completed operation into its connection's inbox, and returns that connection's flow; `None` if
    /// no more have completed.
    pub(super) fn collect(&mut self) -> Option<Flow> {
        loop {
            let ended = self.store.ended()?;
            let Some(owner) = self.owners.remove(&ended.0.tag) else { continue };
            let Some(inbox) = owner.inbox.upgrade() else { continue };
            let mut all = inbox.ended.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((owner.request, ended));
            return Some(inbox.flow);
        }
    }

    /// Submits new operations, and forgets those of closed connections. Otherwise a peer that sends requests,
    /// disconnects and reconnects would make them pile up.
    pub(super) fn submit(&mut self) {
        if self.closed.swap(false, Relaxed) {
            let before = self.owners.len();
            self.owners.retain(|_, owner| owner.inbox.strong_count() > 0);
            // A connection without operations in flight left nothing to forget.
            if self.owners.len() < before {
                self.store.forget(&|tag| self.owners.contains_key(&tag));
            }
        }
        self.store.submit();
    }
}
