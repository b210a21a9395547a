//! Aborts runs in progress whose results are no longer wanted.
//!
//! A machine checks its flag between two events and unwinds with [`Aborted`], without a panic message; the code
//! that runs the machine on its own thread catches the unwind. A run that is not aborted is unaffected.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The panic payload of an aborted run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted;

thread_local! {
    static FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Sets the flag of the machines that this thread creates from now on: they abort once it is set.
pub fn abort_by(flag: Arc<AtomicBool>) {
    FLAG.set(Some(flag));
}

/// The abort flag of one machine, if it has one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flag(Option<Arc<AtomicBool>>);

impl Flag {
    /// Returns the flag that was last set for this thread, if any.
    pub(crate) fn of_this_thread() -> Flag {
        Flag(FLAG.with_borrow(Option::clone))
    }

    /// Unwinds if the flag is set.
    #[inline]
    pub(crate) fn check(&self) {
        if let Some(flag) = &self.0
            && flag.load(Ordering::Relaxed)
        {
            resume_unwind(Box::new(Aborted));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::swarm;

    #[test]
    fn a_run_under_a_set_flag_is_given_up_and_others_are_not() {
        let on_a_thread = |flag: Option<bool>| {
            let run = move || {
                if let Some(flag) = flag {
                    abort_by(Arc::new(AtomicBool::new(flag)));
                }
                catch_unwind(AssertUnwindSafe(|| swarm::run(1))).map_err(|it| it.is::<Aborted>())
            };
            std::thread::spawn(run).join().unwrap()
        };
        assert!(on_a_thread(Some(true)).unwrap_err(), "given up");
        let clear = on_a_thread(Some(false)).unwrap().unwrap();
        assert_eq!(on_a_thread(None).unwrap().unwrap(), clear);
    }
}
