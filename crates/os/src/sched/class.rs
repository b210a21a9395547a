//! Scheduling classes, and how they are written: `fair`, `fair -20`, `fifo 10`.

use std::fmt;
use std::str::FromStr;

/// A scheduling class.
///
/// A thread has a nice value in every class, which is told and set of the fair ones alone. So one that was
/// made nice and then put into another class (`renice -20`, `chrt -f 50`) is told by that class, and if it is
/// made [`Fair`](Class::Fair) or [`Nice`](Class::Nice) it loses the nice value that it had beside it: who
/// gives the class back does not know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// `SCHED_OTHER`, nice 0.
    #[default]
    Fair,
    /// `SCHED_OTHER` with another nice value, from -20 to 19, never 0.
    Nice(i8),
    /// `SCHED_BATCH`: fair, for work that nobody waits for. Who is put into it stays as nice as it was.
    Batch,
    /// `SCHED_IDLE`: what is left by all others.
    Idle,
    /// `SCHED_FIFO` with a priority from 1 to 99. Not for anything that spins: the operating system
    /// stops a spinning real-time thread for 50 ms in every second.
    Fifo(u8),
    /// `SCHED_RR` with a priority from 1 to 99: the same, in turns with others of that priority.
    Rr(u8),
    /// Any other, by the kernel's number, as `SCHED_DEADLINE` (6). There is more to it than that, so
    /// that it is only seen: who overwrote it could not give it back.
    Other(i32),
}

impl Class {
    /// The kernel's number for it, and its priority; `None` if it is never set.
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

    /// The nice value that is part of it; `None` if none is.
    pub(super) const fn nice(self) -> Option<i8> {
        match self {
            Class::Fair => Some(0),
            Class::Nice(nice) => Some(nice),
            _ => None,
        }
    }

    /// Whether it is `SCHED_OTHER`, however nice.
    pub const fn is_fair(self) -> bool {
        self.nice().is_some()
    }

    /// The class of the kernel's number; `priority` and `nice` count where the class has one.
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

    /// Reads what [`Display`](fmt::Display) writes.
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
            let again = class.policy().map(|(policy, priority)| Class::of(policy, priority, nice));
            assert_eq!(again.unwrap_or(Class::of(6, 0, nice)), class, "{text}");
        }
        assert_eq!("fair 0".parse::<Class>(), Ok(Class::Fair));
        for wrong in [
            "", "fifo", "fifo 0", "rr 100", "rr", "fair 20", "fair x", "other", "other x", "fifo10",
        ] {
            assert!(wrong.parse::<Class>().is_err(), "{wrong}");
        }
    }
}
