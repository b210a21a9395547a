//! The constants in xsk-rr's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// A time that must not be 0: otherwise a thread could repeat an empty look for ever without time passing.
const REPEATED: ValueKind = ValueKind::Time { min: 1.0 };

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "xsk-rr",
    what: "the AF_XDP program and its sender",
    keys: &[
        Key::new("work", ValueKind::TIME, "the program's own work on one descriptor, without system calls"),
        Key::new("kick", ValueKind::TIME, "one receive call that only makes the kernel poll"),
        Key::new("look", REPEATED, "one look at an empty ring and at the clock"),
        Key::new("send", ValueKind::TIME, "from a frame's stamp to its descriptor in the ring"),
        Key::new("jitter", ValueKind::Ratio { min: 0.0, max: 1.0 }, "how much each of the program's steps varies, either way").or(0.0),
    ],
};
