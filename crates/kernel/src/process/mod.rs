//! Other processes, seen and reached from outside: no preload, no patch, no stop.
//!
//! - [`Process`]: one process, held by a pidfd and its start time, so that an id that was used again
//!   is never taken for it; its threads, its children, its network namespace.
//! - [`Descriptor`]: its epoll contexts and sockets, found in `/proc/PID/fd` and duplicated into
//!   this process by `pidfd_getfd`.
//! - [`epoll`], [`socket`]: what can be read from and set on such a duplicate: the parameters belong
//!   to the open file, so that they are the other process's as well.
//! - [`wait`]: which of its threads wait on which epoll context.
//! - [`Ready`]: what of an epoll context is always ready ([`Process::always_ready`]).
//! - [`owners()`]: whose sockets have which NAPI id.
//!
//! A duplicate is let go at once: one that is kept would keep an epoll context (and a suspension of
//! interrupts) or a connection alive after its owner closed it. Everything is read with a bound, and
//! a process may exit or exec at any moment: what was seen until then is told, or [`Gone`].
//!
//! Not here: what to set (`attach`), and what is wrong with it (`doctor`).
//!
//! [`Gone`]: ProcessError::Gone

mod descriptor;
pub mod epoll;
mod error;
mod handle;
mod owners;
mod procfile;
mod ready;
pub mod socket;
pub mod wait;

pub use descriptor::same_file;
pub use descriptor::{Descriptor, Descriptors, Kind, Tables};
pub use epoll::{Member, Members, Params};
pub use error::ProcessError;
pub use handle::{Descendants, descendants_of};
pub use handle::{Process, all};
pub use owners::{Owner, Owners, Unseen, owners};
pub use ready::Ready;
pub use socket::{Socket, SocketOptions};
pub use wait::{Receive, Timeout, Wait, Waits};
