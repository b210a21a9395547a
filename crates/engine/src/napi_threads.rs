//! The threads that come and go with the settings: instances' own, and the workers of the shared
//! pool.
//!
//! They change under the engine's lock of changes, which is held for the whole change, the end of a thread
//! included. The id of an instance's thread is in its [`ThreadTid`], so that readers do not wait for a change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;

use napkin_core::Id;
use napkin_policy::Threaded;

use crate::activity::{Activity, Role};
use crate::config::{Contexts, EngineError};
use crate::contexts;
use crate::refusals::Refusals;
use crate::shared::Shared;
use crate::thread::{join, spawn};

/// The part of an instance's thread that can be read at any time.
#[derive(Debug, Default)]
pub(crate) struct ThreadTid {
    /// The id of its thread; 0 for none.
    tid: AtomicI32,
}

impl ThreadTid {
    /// The id of the instance's thread, if it has one.
    pub(crate) fn tid(&self) -> Option<i32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|tid| *tid != 0)
    }
}

/// Whether an instance in this mode has a thread of its own.
pub(crate) const fn has_thread(mode: Threaded) -> bool {
    matches!(mode, Threaded::Enabled | Threaded::BusyPoll)
}

/// The name of an instance's thread.
fn napi_name(shared: &Shared, id: Id) -> String {
    let device = &shared.devices[shared.napi(id).device].name;
    format!("napi/{device}-{}", Shared::napi_id(id))
}

/// What starting and ending threads needs besides the threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpawnContext<'e> {
    pub(crate) shared: &'e Arc<Shared>,
    pub(crate) contexts: &'e Contexts,
    pub(crate) refusals: &'e Refusals,
}

/// The scheduling classes that were refused to the threads that poll `napis` in `mode`, as sentences.
pub(crate) fn refused(context: SpawnContext<'_>, napis: &[Id], mode: Threaded) -> Vec<String> {
    let own = if has_thread(mode) { napis } else { &[] };
    let names: BTreeSet<String> = own.iter().map(|id| napi_name(context.shared, *id)).collect();
    context.refusals.sentences(|role, thread| match role {
        Role::Napi => names.contains(thread),
        Role::Worker => mode == Threaded::Workqueue,
        _ => false,
    })
}

#[derive(Debug, Default)]
pub(crate) struct NapiThreads {
    napi: Vec<Option<(Arc<Activity>, JoinHandle<()>)>>,
    workers: Vec<JoinHandle<()>>,
    /// Whether the engine is stopping, so that no thread may be started any more.
    pub(crate) stopped: bool,
}

impl NapiThreads {
    pub(crate) fn new(instances: usize) -> NapiThreads {
        NapiThreads { napi: (0..instances).map(|_| None).collect(), ..NapiThreads::default() }
    }

    /// Starts the threads that a mode needs and that do not exist yet.
    pub(crate) fn start_missing(
        &mut self,
        context: SpawnContext<'_>,
        (id, thread_id): (Id, &ThreadTid),
        mode: Threaded,
    ) -> Result<(), EngineError> {
        let place = &mut self.napi[usize::from(id.0)];
        if has_thread(mode) && place.is_none() {
            let name = napi_name(context.shared, id);
            let placement = &context.contexts.napi;
            let (activity, handle, refused) = spawn(
                context.shared,
                Role::Napi,
                name.clone(),
                placement,
                move |shared, meter| {
                    contexts::napi(shared, id, meter);
                },
            )?;
            context.refusals.note(Role::Napi, &name, refused);
            thread_id.tid.store(activity.tid(), Ordering::Relaxed);
            *place = Some((activity, handle));
        }
        if mode == Threaded::Workqueue {
            // Only the missing ones: an earlier call may have started some of them and then failed.
            for index in self.workers.len()..context.shared.workers.parkers.len() {
                let name = format!("kworker/u:{index}");
                let placement = &context.contexts.worker;
                let body = move |shared: &Shared, meter: &mut _| {
                    contexts::worker(shared, index, meter);
                };
                let (_, handle, refused) =
                    spawn(context.shared, Role::Worker, name.clone(), placement, body)?;
                context.refusals.note(Role::Worker, &name, refused);
                self.workers.push(handle);
            }
        }
        Ok(())
    }

    /// Waits for the end of an instance's thread, after the mode has been set to another owner's: the thread sees
    /// that after its poll, hands the instance over and ends.
    pub(crate) fn end_thread(
        &mut self,
        context: SpawnContext<'_>,
        (id, thread_id): (Id, &ThreadTid),
    ) {
        let Some((activity, handle)) = self.napi[usize::from(id.0)].take() else { return };
        let napi = context.shared.napi(id);
        napi.leaving.store(true, Ordering::Release);
        napi.parker.unpark();
        join(handle);
        napi.leaving.store(false, Ordering::Release);
        activity.set_tid(0);
        thread_id.tid.store(0, Ordering::Relaxed);
        context.refusals.forget(&napi_name(context.shared, id));
    }

    /// Takes the handles of all threads, to be joined.
    pub(crate) fn take_handles(&mut self) -> Vec<JoinHandle<()>> {
        let napi = self.napi.iter_mut().filter_map(Option::take).map(|(_, handle)| handle);
        let all = napi.chain(std::mem::take(&mut self.workers));
        all.collect()
    }
}
