//! Scheduling classes and their text form: `fair`, `fair -20`, `fifo 10`.

use std::fmt;
use std::str::FromStr;

/// A scheduling class.
///
/// A thread keeps a nice value in every class, but it is reported and set here only for the fair ones. So a thread
/// that was made nice and then put into another class (`renice -20`, `chrt -f 50`) is reported as that class alone.
/// Making it [`Fair`](Class::Fair) or [`Nice`](Class::Nice) overwrites its nice value, which restoring the class
/// does not bring back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// `SCHED_OTHER`, nice 0.
    #[default]
    Fair,
    /// `SCHED_OTHER` with a nice value from -20 to 19 other than 0.
    Nice(i8),
    /// `SCHED_BATCH`: fair, for throughput work without latency needs. A thread keeps its nice value in it.
    Batch,
    /// `SCHED_IDLE`: runs in the time that all others leave.
    Idle,
    /// `SCHED_FIFO` with a priority from 1 to 99. Unsuitable for threads that spin: by default the kernel throttles
    /// spinning real-time threads for 50 ms in every second.
    Fifo(u8),
    /// `SCHED_RR` with a priority from 1 to 99: as FIFO, but round-robin among threads of the same priority.
    Rr(u8),
    /// Any other class, by the kernel's number, such as `SCHED_DEADLINE` (6). It is reported but never set: it has
    /// further parameters, which could not be restored.
    Other(i32),
}

impl Class {
    /// Returns the kernel's number and the priority; `None` for a class that is never set.
    pub(super) const fn policy(self) -> Option<(i32, u8)> {
        match self {
            Class::Fair | Class::Nice(_) => Some((libc::SCHED_OTHER, 0)),
            Class::Batch => Some((libc::SCHED_BATCH, 0)),
            Class::Idle => Some((libc::SCHED_IDLE, 0)),
            Class::Fifo(priority) => Some((libc::SCHED_FIFO, priority)),
            Class::Rr(priority) => Some((libc::SCHED_RR, priority)),
            Class::Other(_) => None,
        }
    }

    /// Returns the nice value that the class includes, if any.
    pub(super) const fn nice(self) -> Option<i8> {
        match self {
            Class::Fair => Some(0),
            Class::Nice(nice) => Some(nice),
            _ => None,
        }
    }

    /// Whether it is `SCHED_OTHER`, with any nice value.
    pub const fn is_fair(self) -> bool {
        self.nice().is_some()
    }

    /// Returns the class of the kernel's number; `priority` and `nice` are used if the class has one.
    pub(super) const fn of(policy: i32, priority: u8, nice: i8) -> Class {
        match policy {
            libc::SCHED_OTHER if nice == 0 => Class::Fair,
            libc::SCHED_OTHER => Class::Nice(nice),
            libc::SCHED_BATCH => Class::Batch,
            libc::SCHED_IDLE => Class::Idle,
            libc::SCHED_FIFO => Class::Fifo(priority),
            libc::SCHED_RR => Class::Rr(priority),
            other => Class::Other(other),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Fair => f.pad("fair"),
            Class::Nice(nice) => f.pad(&format!("fair {nice}")),
            Class::Batch => f.pad("batch"),
            Class::Idle => f.pad("idle"),
            Class::Fifo(priority) => f.pad(&format!("fifo {priority}")),
            Class::Rr(priority) => f.pad(&format!("rr {priority}")),
            Class::Other(policy) => f.pad(&format!("other {policy}")),
        }
    }
}

impl FromStr for Class {
    type Err = String;

    /// Parses the output of [`Display`](fmt::Display).
    fn from_str(text: &str) -> Result<Class, String> {
        let number = |name: &str| text.strip_prefix(name)?.strip_prefix(' ');
        let priority = |name: &str| {
            let priority: u8 = number(name)?.parse().ok()?;
            (1..=99).contains(&priority).then_some(priority)
        };
        let nice = || {
            let nice: i8 = number("fair")?.parse().ok()?;
            (-20..=19).contains(&nice).then(|| Class::of(libc::SCHED_OTHER, 0, nice))
        };
        let class = match text {
            "fair" => Some(Class::Fair),
            "batch" => Some(Class::Batch),
            "idle" => Some(Class::Idle),
            _ => priority("fifo")
                .map(Class::Fifo)
                .or_else(|| priority("rr").map(Class::Rr))
                .or_else(nice)
                .or_else(|| number("other")?.parse().ok().map(Class::Other)),
        };
        class.ok_or_else(|| format!("no scheduling class: {text:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_read_as_it_is_written_and_known_by_its_number() {
        for (class, text) in [
            (Class::Fair, "fair"),
            (Class::Nice(-20), "fair -20"),
            (Class::Nice(19), "fair 19"),
            (Class::Batch, "batch"),
            (Class::Idle, "idle"),
            (Class::Fifo(10), "fifo 10"),
            (Class::Rr(99), "rr 99"),
            (Class::Other(6), "other 6"),
        ] {
            assert_eq!((class.to_string().as_str(), text.parse::<Class>()), (text, Ok(class)));
            let nice = class.nice().unwrap_or(5);
            let parsed = class.policy().map(|(policy, priority)| Class::of(policy, priority, nice));
            assert_eq!(parsed.unwrap_or(Class::of(6, 0, nice)), class, "{text}");
        }
        assert_eq!("fair 0".parse::<Class>(), Ok(Class::Fair));
        for wrong in [
            "", "fifo", "fifo 0", "rr 100", "rr", "fair 20", "fair x", "other", "other x", "fifo10",
        ] {
            assert!(wrong.parse::<Class>().is_err(), "{wrong}");
        }
    }
}
