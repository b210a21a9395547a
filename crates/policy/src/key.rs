//! The keys of the spelled-out form: one row for each value of a policy.
//!
//! Parser, printer, limits and help all use this one table, so no key can be parsed but not printed, or
//! documented but not checked. Every value is carried as a `u64`: a count, a time in nanoseconds, or the index
//! of a word among the key's choices. The table knows nothing of presets, nor of the effect of a value in the
//! core.

use alloc::string::ToString;
use core::fmt;

use Field::{Budget, Choice, Count, Switch};

use super::{NetSoftirq, Policy, PolicyError, SocketPoller, Threaded};
use crate::value_kind::{MAX_COUNT, ValueKind};
use crate::{Ns, Time};

/// One key of the spelled-out form.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name: the kernel's, if the kernel has the setting.
    pub name: &'static str,
    /// The kind and range of its values.
    pub takes: ValueKind,
    /// What it does, in one line.
    pub what: &'static str,
    /// The largest value that any Linux accepts; 0 where none has the key.
    linux: u64,
    field: Field,
}

/// Accessors to a key's value in a policy.
#[derive(Debug, Clone, Copy)]
enum Field {
    Switch(fn(&mut Policy) -> &mut bool),
    Budget(fn(&mut Policy) -> &mut u16),
    Count(fn(&mut Policy) -> &mut u32),
    Time(fn(&mut Policy) -> &mut Ns),
    Choice(&'static [&'static str], fn(&Policy) -> u64, fn(&mut Policy, u64)),
}

impl Key {
    /// Looks a key up by its exact name.
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// Returns a value, in the table's form, if it is within this key's limit. All limits are checked here.
    ///
    /// # Errors
    /// [`PolicyError::TooLarge`].
    pub fn check(&self, value: u64) -> Result<u64, PolicyError> {
        if value <= self.takes.max() {
            return Ok(value);
        }
        let shown = Value { takes: self.takes, value }.to_string();
        Err(PolicyError::TooLarge { key: self.name, value: shown, takes: self.takes })
    }

    /// Returns this key's value in `policy`, for display in the spelled-out form.
    pub fn value(&self, policy: &Policy) -> Value {
        Value { takes: self.takes, value: self.get(policy) }
    }

    /// Returns this key's value in `policy`: a count, nanoseconds, or the index of a word among its choices.
    pub fn get(&self, policy: &Policy) -> u64 {
        let mut policy = *policy;
        match self.field {
            Switch(field) => u64::from(*field(&mut policy)),
            Budget(field) => u64::from(*field(&mut policy)),
            Count(field) => u64::from(*field(&mut policy)),
            Field::Time(field) => *field(&mut policy),
            Choice(_, get, _) => get(&policy),
        }
    }

    /// Sets this key in `policy`, to a value that passed [`Key::check`].
    pub fn set(&self, policy: &mut Policy, value: u64) {
        // The check bounds every value by `ValueKind::max`, so nothing is lost here; saturating avoids a panic.
        match self.field {
            Switch(field) => *field(policy) = value != 0,
            Budget(field) => *field(policy) = u16::try_from(value).unwrap_or(u16::MAX),
            Count(field) => *field(policy) = u32::try_from(value).unwrap_or(u32::MAX),
            Field::Time(field) => *field(policy) = value,
            Choice(_, _, set) => set(policy, value),
        }
    }

    /// Whether any Linux accepts this value.
    pub fn in_linux(&self, value: u64) -> bool {
        value <= self.linux
    }

    /// Whether the key is napkin's own, and in no Linux.
    pub fn is_napkin_only(&self) -> bool {
        self.linux == 0
    }

    const fn new(name: &'static str, field: Field, what: &'static str) -> Key {
        let takes = match field {
            Switch(_) => ValueKind::Choice(&["off", "on"]),
            Budget(_) => ValueKind::Count { max: u16::MAX as u32 },
            Count(_) => ValueKind::Count { max: MAX_COUNT },
            Field::Time(_) => ValueKind::Time,
            Choice(words, ..) => ValueKind::Choice(words),
        };
        Key { name, takes, what, linux: u64::MAX, field }
    }

    /// Sets the largest value that any Linux accepts.
    const fn linux_up_to(self, linux: u64) -> Key {
        Key { linux, ..self }
    }
}

/// A key's value, which prints in the form that is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    takes: ValueKind,
    value: u64,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.takes {
            ValueKind::Choice(words) => {
                let word = usize::try_from(self.value).ok().and_then(|place| words.get(place));
                f.write_str(word.copied().unwrap_or("?"))
            }
            ValueKind::Count { .. } => write!(f, "{}", self.value),
            ValueKind::Time => write!(f, "{}", Time(self.value)),
        }
    }
}

/// The keys of an instance's settings, the first of [`KEYS`]: those that can be changed on a running instance.
pub const INSTANCE_KEYS: &[Key] = KEYS.split_at(7).0;

/// Every key, in print order.
pub const KEYS: &[Key] = &[
    Key::new(
        "threaded",
        Choice(
            &Threaded::NAMES,
            |p| p.instance.threaded as u64,
            |p, v| p.instance.threaded = Threaded::of(v).unwrap_or(Threaded::Workqueue),
        ),
        "who polls a scheduled instance: softirq, its own thread, its own thread without end, a \
         shared pool",
    )
    .linux_up_to(Threaded::BusyPoll as u64),
    Key::new(
        "defer-hard-irqs",
        Count(|p| &mut p.instance.defer_hard_irqs),
        "empty polls before interrupts are allowed again",
    ),
    Key::new(
        "gro-flush-timeout",
        Field::Time(|p| &mut p.instance.gro_flush_timeout),
        "time from one deferred poll to the next",
    ),
    Key::new(
        "irq-suspend-timeout",
        Field::Time(|p| &mut p.instance.irq_suspend_timeout),
        "longest that an application may keep interrupts suspended: after the last poll; in Linux after its last wait",
    ),
    Key::new(
        "hold",
        Field::Time(|p| &mut p.instance.hold),
        "how long an instance goes on polling without work",
    )
    .linux_up_to(0),
    Key::new(
        "hold-tick",
        Field::Time(|p| &mut p.instance.hold_tick),
        "a hold ends only at a multiple of this time, as in a kernel that counts jiffies",
    )
    .linux_up_to(0),
    Key::new(
        "feedback",
        Switch(|p| &mut p.instance.feedback),
        "stop polling a queue whose receivers are full",
    )
    .linux_up_to(0),
    Key::new(
        "net-softirq",
        Choice(
            &["inline", "ksoftirqd", "ksoftirqd-as-posted"],
            |p| p.cpu.net_softirq as u64,
            |p, v| {
                p.cpu.net_softirq = match v {
                    0 => NetSoftirq::Inline,
                    1 => NetSoftirq::Ksoftirqd,
                    _ => NetSoftirq::KsoftirqdAsPosted,
                }
            },
        ),
        "where the CPU's network softirqs run",
    )
    .linux_up_to(0),
    Key::new(
        "inline-while-ksoftirqd",
        Switch(|p| &mut p.cpu.inline_while_ksoftirqd),
        "softirqs run inline even while ksoftirqd is runnable (Linux 6.5 and later)",
    ),
    Key::new(
        "epoll-busy-poll-usecs",
        Count(|p| &mut p.epoll.busy_poll_usecs),
        "longest busy poll of one wait, in microseconds",
    ),
    Key::new(
        "epoll-busy-poll-budget",
        Budget(|p| &mut p.epoll.busy_poll_budget),
        "frames of one pass; 0 is the default of 8, above 64 needs CAP_NET_ADMIN",
    ),
    Key::new(
        "epoll-prefer-busy-poll",
        Switch(|p| &mut p.epoll.prefer_busy_poll),
        "the application's polling comes before softirqs; suspension needs it",
    ),
    Key::new(
        "epoll-keep-napi-id",
        Switch(|p| &mut p.epoll.keep_napi_id),
        "a busy poll that found nothing keeps its NAPI id, so that the next wait polls the same \
         instance",
    )
    .linux_up_to(0),
    Key::new(
        "application",
        Choice(
            &["sleep", "spin"],
            |p| u64::from(p.application.spin),
            |p, v| p.application.spin = v != 0,
        ),
        "what the application does when nothing has arrived",
    ),
    Key::new(
        "socket-busy-poll-usecs",
        Count(|p| &mut p.application.socket_busy_poll_usecs),
        "SO_BUSY_POLL: longest busy poll of one receive call, in microseconds",
    ),
    Key::new(
        "socket-busy-poll-budget",
        Budget(|p| &mut p.application.socket_busy_poll_budget),
        "SO_BUSY_POLL_BUDGET: frames of one pass; 0 is the default of 8, more than the socket has \
         needs CAP_NET_ADMIN",
    ),
    Key::new(
        "socket-prefer-busy-poll",
        Switch(|p| &mut p.application.socket_prefer_busy_poll),
        "SO_PREFER_BUSY_POLL; needs CAP_NET_ADMIN",
    ),
    Key::new(
        "socket-poller",
        Choice(
            &["inline", "separate"],
            |p| p.application.socket_poller as u64,
            |p, v| {
                p.application.socket_poller =
                    if v == 0 { SocketPoller::Inline } else { SocketPoller::Separate }
            },
        ),
        "who drives the sockets' busy poll: the receiving thread or one of its own",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn every_key_sets_what_it_gets_and_nothing_else() {
        for key in KEYS {
            let mut policy = Policy::BASE;
            let other = u64::from(key.get(&policy) == 0);
            key.set(&mut policy, other);
            assert_eq!(key.get(&policy), other, "{}", key.name);
            let changed = KEYS.iter().filter(|k| k.get(&policy) != k.get(&Policy::BASE));
            assert_eq!(changed.count(), 1, "{}", key.name);
            let of_instance = INSTANCE_KEYS.iter().any(|it| it.name == key.name);
            assert_eq!(policy.instance != Policy::BASE.instance, of_instance, "{}", key.name);
        }
    }

    #[test]
    fn every_choice_comes_back_as_it_was_set() {
        for key in KEYS {
            for value in 0..=key.takes.max().min(4) {
                let mut policy = Policy::BASE;
                key.set(&mut policy, value);
                assert_eq!(key.get(&policy), value, "{}", key.name);
            }
        }
    }

    #[test]
    fn names_are_unique_and_kebab_case() {
        for (place, key) in KEYS.iter().enumerate() {
            assert!(key.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", key.name);
            assert!(KEYS[place + 1..].iter().all(|other| other.name != key.name), "{}", key.name);
        }
    }

    #[test]
    fn help_shows_what_a_key_takes() {
        let help = |name| Key::find(name).map(|key| key.takes.to_string());
        assert_eq!(help("application").as_deref(), Some("sleep|spin"));
        assert_eq!(help("epoll-busy-poll-budget").as_deref(), Some("0 to 65535"));
        assert_eq!(help("hold").as_deref(), Some("TIME"));
        assert_eq!(help("holds"), None);
    }
}
