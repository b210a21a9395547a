//! Fault injection for tests: makes a context panic at a [fault point](Injected). Debug builds only.

use std::sync::atomic::Ordering;

use napkin_core::Counts;
use napkin_policy::InstancePolicy;

use crate::activity::Role;
pub use crate::fault_point::Injected;
use crate::{Engine, EngineError};

impl Engine {
    /// Makes the context of this role that passes the `points`-th fault point from now on panic, once; 0 cancels
    /// that.
    #[doc(hidden)]
    pub fn inject_panic(&self, role: Role, points: u64) {
        self.waiters().shared.faults.left(role).store(points, Ordering::Relaxed);
    }

    /// Whether an injected panic is still to come.
    #[doc(hidden)]
    pub fn panic_pending(&self, role: Role) -> bool {
        self.waiters().shared.faults.left(role).load(Ordering::Relaxed) != 0
    }

    /// Changes an instance's settings; returns its counts at the moment before, so that a test can
    /// count what followed.
    ///
    /// # Errors
    /// As [`Engine::change`].
    #[doc(hidden)]
    pub fn set_counting(
        &self,
        napi_id: u32,
        settings: &InstancePolicy,
    ) -> Result<Counts, EngineError> {
        self.apply(self.id(napi_id)?, settings)
    }
}
