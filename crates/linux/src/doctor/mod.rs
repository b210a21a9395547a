//! `napkin doctor`: whether everything is so that a mode works, for a device and the programs on
//! it.
//!
//! [`Facts`] are read once ([`gather`]); each check is a function of them that says what it found,
//! how that was seen, and the command that fixes it ([`Finding`]). Checks that a policy does not
//! need say nothing. Nothing here changes anything, and nothing is measured for longer than a
//! short window.
//!
//! A *fault* means that the mode does not work, or not as the policy says. *Advice* is what the
//! published set-ups did, what costs others something, or what cannot profit.

mod beside;
mod checks;
mod facts;
mod finding;
mod fix;
mod gather;
mod go;
mod held;
mod home;
mod intent;
mod observe;
mod target;
mod waits;

pub use checks::{CHECKS, Check, examine};
pub use facts::{
    Epoll, Facts, Held, Host, Known, Measured, Other, PollThread, Polls, Program, Receive, Ring,
    Socket, SocketKind, Support, Thread, Unpolled, Wait, Wish,
};
pub use finding::{Finding, Report, Status};
pub use fix::Fix;
pub use gather::{DoctorError, Request, gather};
pub use home::{Worker, workers};
// For its tests, which need rights and so are shown as ignored without them.
#[doc(hidden)]
pub use waits::Watch;
