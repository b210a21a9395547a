//! What is under way on a store, and who waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use napkin_stack::Flow;

use super::store::{Action, BlockStore, Ended, Operation};

/// A connection's operations that have ended, each with the request that it is of. It goes with the
/// connection.
#[derive(Debug)]
pub(super) struct Inbox {
    flow: Flow,
    ended: Mutex<Vec<(u64, Ended)>>,
    /// Said when it goes.
    left: Arc<AtomicBool>,
}

impl Inbox {
    /// What has ended since it was asked last.
    pub(super) fn take(&self) -> Vec<(u64, Ended)> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.left.store(true, Relaxed);
    }
}

/// Who began an operation.
#[derive(Debug)]
struct Owner {
    inbox: Weak<Inbox>,
    request: u64,
}

/// A store, and who waits for which of its operations.
#[derive(Debug)]
pub(super) struct Operations<S> {
    pub(super) store: S,
    owners: HashMap<u64, Owner>,
    tag: u64,
    /// A connection has gone since the last hand-over.
    left: Arc<AtomicBool>,
}

impl<S: BlockStore> Operations<S> {
    pub(super) fn on(store: S) -> Operations<S> {
        Operations { store, owners: HashMap::new(), tag: 0, left: Arc::default() }
    }

    /// For a connection that is going to begin some.
    pub(super) fn inbox(&self, flow: Flow) -> Arc<Inbox> {
        Arc::new(Inbox { flow, ended: Mutex::default(), left: Arc::clone(&self.left) })
    }

    /// Begins an operation of a request, and gives it back if it has ended already.
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

    /// Leaves the next one that has ended for its connection, and says which that is; `None` once there is no
    /// more of them.
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

    /// Hands over what began, and lets go of what connections that have gone had begun: of a peer who asks,
    /// goes and comes again there would be more and more.
    pub(super) fn submit(&mut self) {
        if self.left.swap(false, Relaxed) {
            let before = self.owners.len();
            self.owners.retain(|_, owner| owner.inbox.strong_count() > 0);
            // Of one that had nothing under way there is nothing to look for.
            if self.owners.len() < before {
                self.store.forget(&|tag| self.owners.contains_key(&tag));
            }
        }
        self.store.submit();
    }
}
