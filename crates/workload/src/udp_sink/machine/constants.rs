//! The constants in udp-sink's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "udp-sink",
    what: "the datagram sink and its sender",
    keys: &[
        Key::new("work", ValueKind::TIME, "the program's own work on one datagram, without system calls"),
        Key::new("buffer", ValueKind::Count { min: 1, max: 1_000_000 }, "datagrams that the socket's receive buffer holds"),
        Key::new("jitter", ValueKind::TIME, "mean of the random delay of each frame on the sender's side").or(0.0),
    ],
};
