//! The constants in tcp-rr's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "tcp-rr",
    what: "the request-response program and its peers",
    keys: &[
        Key::new("work", ValueKind::TIME, "the program's own work on one request, without system calls"),
        Key::new("client-delay", ValueKind::TIME, "a request's time outside of the server and the link"),
        Key::new("client-frame", ValueKind::TIME, "the client host's time for a request on the CPU of its receive queue").or(0.0),
        Key::new("threads", ValueKind::Count { min: 1, max: 1024 }, "threads of the program, each with an epoll of its own").or(1.0),
        Key::new("share-spread", ValueKind::Ratio { min: 0.0, max: 10.0 }, "deviation of the logarithm of the wire's share that one long transfer gets").or(0.0),
    ],
};
