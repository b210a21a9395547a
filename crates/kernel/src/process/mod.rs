//! Access to other processes from outside, without preloading, patching or stopping them.
//!
//! - [`Process`]: one process, identified by a pidfd and its start time, so that a reused id is never taken
//!   for it; its threads, its children, its network namespace.
//! - [`Descriptor`]: its epoll contexts and sockets, found in `/proc/PID/fd` and duplicated into
//!   this process with `pidfd_getfd`.
//! - [`epoll`], [`socket`]: the parameters of such a duplicate, to read and to set. They belong
//!   to the open file, so that they apply to the other process as well.
//! - [`wait`]: which of its threads wait on which epoll context.
//! - [`Ready`]: the members of an epoll context that are always ready ([`Process::always_ready`]).
//! - [`owners()`]: the processes whose sockets have each NAPI id.
//!
//! A duplicate must be closed at once: otherwise it keeps an epoll context (and a suspension of interrupts) or a
//! connection alive after its owner has closed it. All reads are bounded. A process may exit or exec at any moment:
//! then the result is what was read until then, or [`Gone`].
//!
//! Which parameters to set is decided in `attach`; problems are diagnosed in `doctor`.
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
pub use owners::{Inaccessible, Owner, Owners, owners};
pub use ready::Ready;
pub use socket::{Socket, SocketOptions};
pub use wait::{Receive, Timeout, Wait, Waits};
