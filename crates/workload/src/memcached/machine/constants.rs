//! The constants in memcached's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "memcached",
    what: "the memcached workers and their clients",
    keys: &[
        Key::new("work", ValueKind::TIME, "the program's own work on one request, without system calls"),
        Key::new("client-delay", ValueKind::TIME, "a request's time outside of the server and the link"),
        Key::new("client-moderation", ValueKind::TIME, "least time between two interrupts of a client's receive queue").or(0.0),
        Key::new("client-queues", ValueKind::Count { min: 1, max: 1024 }, "receive queues of a client machine").or(1.0),
        Key::new("client-slow", ValueKind::Ratio { min: 0.0, max: 1.0 }, "share of a client's receive queues that interrupt at that period only, busy or not").or(0.0),
        Key::new("hottest-queue", ValueKind::Ratio { min: 0.0, max: 0.5 }, "how much more connections than the mean the fullest queue has; the others have evenly spaced shares, down to as much less").or(0.0),
        Key::new("always-ready", ValueKind::OFF_ON, "each worker's epoll context also has a descriptor that is always ready, such as a writable pipe (race R18)").or(0.0),
        Key::new("connections", ValueKind::Count { min: 1, max: 1_000_000 }, "connections of all clients together").or(4480.0),
        Key::new("client-machines", ValueKind::Count { min: 1, max: 1024 }, "client machines, of which the first measures").or(7.0),
        Key::new("client-acks", ValueKind::OFF_ON, "a client acknowledges each answer by a frame of its own, at once, instead of with its next request").or(1.0),
    ],
};
