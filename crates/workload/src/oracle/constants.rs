//! The constants in the oracle's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "oracle",
    what: "the sink and the generator of the emulated machine",
    keys: &[
        Key::new("work", ValueKind::TIME, "the sink's own work on one datagram beside the scenario's"),
        Key::new("send", ValueKind::TIME, "the generator's time from a frame's stamp to its arrival at the receiver's card"),
        Key::new("send-next", ValueKind::TIME, "the generator's time from there to the arrival of the next frame of a burst"),
        Key::new("sleep", ValueKind::TIME, "the generator going to sleep after its last frame, without the switch"),
        Key::new("wake", ValueKind::TIME, "the generator's time from its waking to its frame's stamp, without the switch"),
        Key::new("exit", ValueKind::TIME, "the sink's exit until its descriptors are closed; half as long again after it"),
        Key::new("truesize", ValueKind::Count { min: 1, max: 65_536 }, "bytes of a receive buffer that one frame takes"),
    ],
};
