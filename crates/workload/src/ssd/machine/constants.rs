//! The constants in ssd's section of a profile.

use napkin_machine::profile::{Constants, Key, ValueKind};

/// The section, and each key's name, limits and meaning.
#[rustfmt::skip] // One key, one line.
pub(crate) const CONSTANTS: Constants = Constants {
    section: "ssd",
    what: "the block service and its clients",
    keys: &[
        Key::new("work", ValueKind::TIME, "the program's own work on one request, without system calls"),
        Key::new("work-kib", ValueKind::TIME, "the program's own work on each kibibyte of a request").or(0.0),
        Key::new("threads", ValueKind::Count { min: 1, max: 1024 }, "threads of the program, each with an epoll of its own").or(1.0),
        Key::new("polling-cpus", ValueKind::Count { min: 1, max: 1024 }, "CPUs to which whatever threads poll the queues are pinned").or(1.0),
        Key::new("client-delay", ValueKind::TIME, "a request's time outside of the server and the link").or(0.0),
        Key::new("device", ValueKind::TIME, "the storage device's time for one request"),
        Key::new("device-root", ValueKind::TIME, "its further time for one kibibyte; larger requests use more dies at once, and take the square root of their kibibytes times that").or(0.0),
        Key::new("device-spread", ValueKind::Ratio { min: 0.0, max: 10.0 }, "deviation of the logarithm of its time").or(0.0),
        Key::new("slow-share", ValueKind::Ratio { min: 0.0, max: 1.0 }, "share of requests that meet the device at a program or an erase").or(0.0),
        Key::new("slow", ValueKind::TIME, "mean further time of those").or(0.0),
    ],
};
