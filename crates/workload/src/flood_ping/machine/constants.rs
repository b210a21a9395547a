//! The constants in flood-ping's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "flood-ping",
    what: "the pinging program and the host that answers it",
    keys: &[
        Key::new("work", ValueKind::TIME, "the pinging program's own work on one round, without system calls"),
        Key::new("client-delay", ValueKind::TIME, "a round's time outside of the pinging host and the link"),
    ],
};
