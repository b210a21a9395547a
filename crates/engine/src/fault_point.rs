//! Fault points, at which a test can make a context panic.
//!
//! Debug builds only; in a release build neither the points nor this file exist. There are two points in every step
//! that a context takes: before the core is asked, and after it has answered but before the step is taken. The
//! payload of the panic is an [`Injected`], which prints nothing on standard error, so that a test may inject
//! thousands.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::activity::{Activity, Role};

/// The payload of an injected panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injected(pub Role);

/// The points still to pass until a context of each role panics; 0 for never.
#[derive(Debug, Default)]
pub(crate) struct Faults([AtomicU64; Role::ALL.len()]);

impl Faults {
    /// The points that contexts of a role still pass.
    pub(crate) fn left(&self, role: Role) -> &AtomicU64 {
        &self.0[role as usize]
    }

    /// Passes a fault point.
    #[inline]
    pub(crate) fn point(&self, activity: &Activity) {
        let left = self.left(activity.role);
        let mut now = left.load(Ordering::Relaxed);
        // Steps that are not accounted to any thread (enabling, disabling) have no guard that restarts them, and a
        // thread that is already unwinding must not panic again.
        if now == 0 || activity.tid() == 0 || std::thread::panicking() {
            return;
        }
        while now != 0 {
            match left.compare_exchange(now, now - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(1) => resume_unwind(Box::new(Injected(activity.role))),
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panics(faults: &Faults, activity: &Activity) -> bool {
        let point = std::panic::AssertUnwindSafe(|| faults.point(activity));
        std::panic::catch_unwind(point).is_err()
    }

    #[test]
    fn the_chosen_point_panics_once_and_only_in_its_role() {
        let faults = Faults::default();
        let napi = Activity::new(Role::Napi, "napi/a-1".into());
        let irq = Activity::new(Role::Irq, "irq/0".into());
        napi.set_tid(1);
        irq.set_tid(2);
        assert!(!panics(&faults, &napi), "nothing was asked for");
        faults.left(Role::Napi).store(2, Ordering::Relaxed);
        assert!(!panics(&faults, &irq), "another role");
        assert!(!panics(&faults, &napi), "the first point");
        assert!(panics(&faults, &napi), "the second");
        assert!(!panics(&faults, &napi), "once is once");
    }

    #[test]
    fn steps_that_are_in_no_books_are_spared() {
        let faults = Faults::default();
        faults.left(Role::Application).store(1, Ordering::Relaxed);
        let nobody = Activity::new(Role::Application, String::new());
        assert!(!panics(&faults, &nobody));
    }
}
