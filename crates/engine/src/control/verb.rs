//! The verbs of control, and the attributes that each takes.

use napkin_policy::INSTANCE_KEYS;

/// A verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `dev-get`: devices and what they can do.
    DevGet,
    /// `queue-get`: queues and the instance of each.
    QueueGet,
    /// Instances and their settings.
    NapiGet,
    /// Change an instance's settings.
    NapiSet,
    /// `qstats-get`: counters of queues and instances.
    QstatsGet,
    /// Change the settings of all instances of a device. Napkin's own: the kernel has sysfs for it.
    DevSet,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 6] =
        [Verb::DevGet, Verb::QueueGet, Verb::NapiGet, Verb::NapiSet, Verb::QstatsGet, Verb::DevSet];

    /// Its name on the wire and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::DevGet => "dev-get",
            Verb::QueueGet => "queue-get",
            Verb::NapiGet => "napi-get",
            Verb::NapiSet => "napi-set",
            Verb::QstatsGet => "qstats-get",
            Verb::DevSet => "dev-set",
        }
    }

    /// The attributes that it takes.
    pub(super) fn takes(self) -> Vec<&'static str> {
        let settings: Vec<&str> = match self {
            Verb::NapiSet | Verb::DevSet => settings(),
            _ => Vec::new(),
        };
        let select: &[_] = match self {
            Verb::DevGet | Verb::DevSet => &["ifindex"],
            Verb::QueueGet => &["ifindex", "type", "id"],
            Verb::NapiGet => &["id", "ifindex"],
            Verb::NapiSet => &["id"],
            Verb::QstatsGet => &["ifindex", "scope"],
        };
        [select, &settings].concat()
    }
}

/// The names of all settings.
pub(super) fn settings() -> Vec<&'static str> {
    INSTANCE_KEYS.iter().map(|key| key.name).chain(["weight"]).collect()
}
