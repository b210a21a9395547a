//! Starting the engine's threads: named, in their place, in their class.
//!
//! Not what they do (`contexts`), nor which of them there are (`engine` for those of the CPUs, `napi_threads`
//! for those that come and go).

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::activity::{Activity, Meter, Role};
use crate::config::EngineError;
use crate::contexts;
use crate::shared::Shared;
use napkin_os::sched::{self as sched, Class, Placement, SchedError};

/// A thread that runs, and why it has not the class that it should have.
pub(crate) type Spawned = (Arc<Activity>, JoinHandle<()>, Option<SchedError>);

/// Starts a named thread in its place, and returns once it is there. A CPU that is not there is an
/// error; a class that was refused is returned beside the thread. Where and in which class the calling
/// thread runs makes no difference, as it may be any that changes a setting: what is to be fair has the class
/// of the thread that started the engine, as far as the rights go. (Who is nicer, or idle, and makes one that is to
/// be less so may lack the right to that: then it is as nice as its maker, which is returned as a refusal.)
pub(crate) fn spawn(
    shared: &Arc<Shared>,
    role: Role,
    name: String,
    placement: &Placement,
    body: impl Fn(&Shared, &mut Meter) + Send + 'static,
) -> Result<Spawned, EngineError> {
    let activity = Activity::new(role, name.clone());
    let (told, hear) = mpsc::sync_channel(1);
    let thread = (Arc::clone(shared), Arc::clone(&activity), placement.clone());
    let handle = std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            let (shared, activity, placement) = thread;
            activity.set_tid(current_tid());
            exact_timers();
            if placement.cpus.is_empty() {
                // Where none of them is left it stays where it is.
                let _ = sched::unpin(None, &shared.usable);
            }
            let place = sched::pin(None, &placement.cpus);
            let failed = place.is_err();
            let refused = match placement.class {
                // As most are born: how nice they are stays, too.
                Class::Fair if sched::class(None).is_ok_and(|born| born == shared.class) => None,
                Class::Fair => sched::classify(None, shared.class).err(),
                class => sched::classify(None, class).err(),
            };
            // The receiver waits for exactly this.
            let _ = told.send(place.map(|()| refused));
            if !failed {
                contexts::guard(&shared, &activity, |meter| body(&shared, meter));
            }
        })
        .map_err(|e| EngineError::os("a thread", e))?;
    match hear.recv() {
        Ok(Ok(refused)) => {
            shared.enter(&activity);
            Ok((activity, handle, refused))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            Err(EngineError::os("a thread", std::io::Error::other("it ended before it began")))
        }
    }
}

/// Waits for the end of a thread.
pub(crate) fn join(handle: JoinHandle<()>) {
    // The body catches panics itself.
    let _ = handle.join();
}

/// Timers of this thread fire as exactly as the machine can (the default slack is 50 us).
pub(crate) fn exact_timers() {
    // It cannot fail for the calling thread; if it did, timers would only be later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}

/// The calling thread's id: a system call the first time, because waits ask for it again and again.
pub(crate) fn current_tid() -> i32 {
    thread_local! {
        static TID: i32 = rustix::thread::gettid().as_raw_nonzero().get();
    }
    TID.with(|tid| *tid)
}
