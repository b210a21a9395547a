//! `napkin doctor`: checks whether a mode can work on a device and for the programs on it.
//!
//! [`Facts`] are read once ([`gather`]). Each check is a function of them that returns its conclusion, the
//! evidence, and the command that fixes it ([`Finding`]). Checks that a policy does not need return nothing.
//! Nothing is changed, and counting lasts for a short window only.
//!
//! A *fault* means that the mode does not work, or not as the policy says. *Advice* is what the published
//! set-ups did, what costs others something, or what has no effect.

mod checks;
mod facts;
mod finding;
mod fix;
mod gather;
mod go_build_id;
mod home;
mod intent;
mod locks;
mod observe;
mod target;
mod waits;
mod without_napi_id;

pub use checks::{CHECKS, Check, examine};
pub use facts::{
    Epoll, Facts, Host, Known, Locks, Measured, Other, PollThread, Polls, Program, Receive, Ring,
    Socket, SocketKind, Support, Thread, Unpolled, Wait, Wish,
};
pub use finding::{Finding, Report, Status};
pub use fix::Fix;
pub use gather::{DoctorError, Request, gather};
pub use home::{Worker, workers};
// For its tests, which need privileges, and are shown as ignored without them.
#[doc(hidden)]
pub use waits::Watch;
