//! Starts the engine's threads, each with its name, CPUs and scheduling class.
//!
//! What they do is in `contexts`; which of them there are is in `engine` (those of the CPUs) and `napi_threads`
//! (those that come and go).

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::activity::{Activity, Meter, Role};
use crate::config::EngineError;
use crate::contexts;
use crate::shared::Shared;
use napkin_os::sched::{self as sched, Class, Placement, SchedError};

/// A running thread, and the error if it did not get its scheduling class.
pub(crate) type Spawned = (Arc<Activity>, JoinHandle<()>, Option<SchedError>);

/// Starts a named thread on its CPUs, and returns once it runs there. A CPU that does not exist is an error; a
/// class that was refused is returned beside the thread. The CPUs and the class of the calling thread make no
/// difference, since any thread may change a setting: a fair thread gets the class of the thread that started the
/// engine, as far as the rights go. (A caller that is nicer, or idle, may lack the right to start a thread that is
/// less so. The new thread is then as nice as the caller, and a refusal is returned.)
pub(crate) fn spawn(
    shared: &Arc<Shared>,
    role: Role,
    name: String,
    placement: &Placement,
    body: impl Fn(&Shared, &mut Meter) + Send + 'static,
) -> Result<Spawned, EngineError> {
    let activity = Activity::new(role, name.clone());
    let (report, started) = mpsc::sync_channel(1);
    let thread = (Arc::clone(shared), Arc::clone(&activity), placement.clone());
    let handle = std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            let (shared, activity, placement) = thread;
            activity.set_tid(current_tid());
            exact_timers();
            if placement.cpus.is_empty() {
                // If none of these CPUs is left, the thread stays where it is.
                let _ = sched::unpin(None, &shared.usable);
            }
            let place = sched::pin(None, &placement.cpus);
            let failed = place.is_err();
            let refused = match placement.class {
                // The usual case: the class was inherited, and the nice value with it.
                Class::Fair if sched::class(None).is_ok_and(|born| born == shared.class) => None,
                Class::Fair => sched::classify(None, shared.class).err(),
                class => sched::classify(None, class).err(),
            };
            // The receiver waits for exactly this.
            let _ = report.send(place.map(|()| refused));
            if !failed {
                contexts::guard(&shared, &activity, |meter| body(&shared, meter));
            }
        })
        .map_err(|e| EngineError::os("a thread", e))?;
    match started.recv() {
        Ok(Ok(refused)) => {
            shared.add_activity(&activity);
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

/// Makes the calling thread's timers fire as exactly as the machine can (the default slack is 50 us).
pub(crate) fn exact_timers() {
    // It cannot fail for the calling thread; if it did, timers would only be later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}

/// The calling thread's id, cached after the first system call, because every wait needs it.
pub(crate) fn current_tid() -> i32 {
    thread_local! {
        static TID: i32 = rustix::thread::gettid().as_raw_nonzero().get();
    }
    TID.with(|tid| *tid)
}
