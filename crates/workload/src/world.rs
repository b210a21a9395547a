//! The worlds in which a workload can run.

use std::fmt;

/// Where a workload runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Real threads and real packets, on this machine.
    Engine,
    /// A model in virtual time.
    Machine,
    /// The kernel's own NAPI, under programs of the operating system.
    Linux,
}

impl World {
    /// All worlds, each with a one-line description.
    pub const ALL: [(World, &'static str); 3] = [
        (World::Engine, "Real threads and real packets, on this machine"),
        (World::Machine, "A model in virtual time"),
        (World::Linux, "The kernel's own NAPI, under programs of the operating system"),
    ];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            World::Engine => "engine",
            World::Machine => "machine",
            World::Linux => "linux",
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
