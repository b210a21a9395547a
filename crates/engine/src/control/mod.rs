//! Control of a running engine over a unix socket, in the words of the kernel.
//!
//! Verbs and attributes are those of the kernel's generic netlink family `netdev`, so that what is
//! learnt here works there. One JSON object a line goes in, and one a line comes out:
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
//! `dev-set` is ours: where it writes all instances of a device, the kernel has files in sysfs. Ours
//! are also the settings that no Linux has ([`Key::is_ours`](napkin_policy::Key::is_ours)), `weight`, the
//! value `workqueue` of `threaded`, and in the answers what a kernel would not count or show (`polls`,
//! `mac`, `gone` ...). `irq` is never there: user space has no interrupt numbers.
//! Times are in nanoseconds, as on the kernel's netlink.
//!
//! The socket is the owner's alone (mode 0600), and a peer of another user, root excepted, is
//! refused. Of [`MAX_CLIENTS`] places a connection has one: for [`PATIENCE`] at most without a
//! request, or without taking its answer; and for as long as it goes on asking, but when all are
//! taken and somebody waits, the oldest connection is closed once it has had its [`TURN`]. So nobody
//! keeps others out, and nothing that a peer sends makes the engine keep more than a line of it.
//!
//! `warnings`, in an answer, are sentences: after a set, what of the settings now in force does not
//! do what it seems to say, and which threads have not the priority that they should have; after
//! `dev-get` all of the latter.

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
pub use server::{Control, MAX_CLIENTS, PATIENCE, TURN};
pub use verb::Verb;
