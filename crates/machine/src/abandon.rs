//! Giving up runs that are under way, because nobody waits for them any more.
//!
//! A machine unwinds from between two events, with [`Abandoned`] and without a word; whoever runs it on a
//! thread of its own catches that. Nothing else of a run knows of it, and a run that is not given up is
//! the same.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a machine unwinds with that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandoned;

thread_local! {
    static FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Machines that this thread makes from now on are given up once the flag is set.
pub fn give_up_on(flag: Arc<AtomicBool>) {
    FLAG.set(Some(flag));
}

/// The flag of a machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flag(Option<Arc<AtomicBool>>);

impl Flag {
    /// The one that this thread was last given, if any.
    pub(crate) fn of_this_thread() -> Flag {
        Flag(FLAG.with_borrow(Option::clone))
    }

    /// Unwinds if it is set.
    #[inline]
    pub(crate) fn check(&self) {
        if let Some(flag) = &self.0
            && flag.load(Ordering::Relaxed)
        {
            resume_unwind(Box::new(Abandoned));
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
                    give_up_on(Arc::new(AtomicBool::new(flag)));
                }
                catch_unwind(AssertUnwindSafe(|| swarm::run(1))).map_err(|it| it.is::<Abandoned>())
            };
            std::thread::spawn(run).join().unwrap()
        };
        assert!(on_a_thread(Some(true)).unwrap_err(), "given up");
        let clear = on_a_thread(Some(false)).unwrap().unwrap();
        assert_eq!(on_a_thread(None).unwrap().unwrap(), clear);
    }
}
