//! Control of a running engine over a unix socket, in the words of the kernel.
//!
//! Verbs and attributes are those of the kernel's generic netlink family `netdev`, so that what is learnt here
//! works there. Each line in, and each line out, is one JSON object:
//!
//! ```text
//! > {"version":1,"verb":"napi-set","attributes":{"id":3,"threaded":"busy-poll"}}
//! < {"version":1,"result":[]}
//! > {"version":1,"verb":"napi-set","attributes":{"id":3,"defer-hard-irqs":100}}
//! < {"version":1,"result":[],"warnings":["defer-hard-irqs does nothing without ..."]}
//! > {"version":1,"verb":"napi-get","attributes":{"id":30}}
//! < {"version":1,"error":{"code":"ENOENT","errno":2,"attribute":"id","message":"no NAPI ..."}}
//! ```
//!
//! | verb | takes | answers |
//! |---|---|---|
//! | `dev-get` | `ifindex` | devices |
//! | `queue-get` | `ifindex`, `type` (`rx`, `tx`), `id` | queues, each with its `napi-id` |
//! | `napi-get` | `id`, `ifindex` | instances with their settings |
//! | `napi-set` | `id` and the settings to change | nothing but warnings |
//! | `qstats-get` | `ifindex`, `scope` (`device`, `queue`) | counters |
//! | `dev-set` | `ifindex` and the settings to change | nothing but warnings |
//!
//! `dev-set` is napkin's own: it writes all instances of a device, for which the kernel has files in sysfs. Also
//! napkin's own are the settings that no Linux has ([`Key::is_napkin_only`](napkin_policy::Key::is_napkin_only)), `weight`, the
//! value `workqueue` of `threaded`, and in the answers what a kernel would not count or show (`polls`, `mac`,
//! `gone` ...). `irq` is always absent: user space has no interrupt numbers. Times are in nanoseconds, as on the
//! kernel's netlink.
//!
//! Only the owner may use the socket (mode 0600), and a peer of another user, root excepted, is refused. There are
//! [`MAX_CLIENTS`] places. A connection keeps its place for at most [`CLIENT_TIMEOUT`] without a request, or without
//! taking its answer. One that goes on sending requests keeps it for as long as it does; but if all places are
//! taken and another connection waits, the oldest one is closed once it has had its [`MIN_SESSION`]. So no client can keep
//! others out, and no peer can make the engine buffer more than a line.
//!
//! `warnings`, in an answer, are sentences: after a set, about settings now in force that do not have the effect
//! they seem to have, and about threads that did not get their priority; after `dev-get`, about all such threads.

mod answer;
mod client;
mod credentials;
mod error;
mod listener;
mod message;
mod path;
mod request;
mod server;
pub mod setting;
mod verb;

pub use client::{ClientError, choose, request};
pub use error::{Code, ControlError, Refusal};
pub use message::{Answer, MAX_ANSWER, MAX_LINE, Record, Reply, Request, VERSION};
pub use path::{Running, default_path};
pub use request::Kind;
pub use server::{CLIENT_TIMEOUT, Control, MAX_CLIENTS, MIN_SESSION};
pub use verb::Verb;
