//! The constants in udp-sink's section of a profile.

use napkin_machine::profile::{Constants, Key, Takes};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "udp-sink",
    what: "the datagram sink and its sender",
    keys: &[
        Key::new("work", Takes::TIME, "the program's own work on one datagram, without system calls"),
        Key::new("buffer", Takes::Count { min: 1, max: 1_000_000 }, "datagrams that the socket's receive buffer holds"),
        Key::new("jitter", Takes::TIME, "mean of the random delay of each frame on the sender's side").or(0.0),
    ],
};
