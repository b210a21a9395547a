//! The counts of an instance, and the key that identifies it.

use serde::Serialize;

/// The identity of an instance in the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Key {
    /// The inode of its network namespace, as of `/proc/thread-self/ns/net`; 0 for the CPUs' backlogs, which belong
    /// to no namespace.
    pub netns: u32,
    /// The index of its device in that namespace; 0 for the CPUs' backlogs.
    pub ifindex: u32,
    /// Its NAPI id; 0 if it has none (a driver's transmit-only instance, a tunnel's, a backlog). All instances of a
    /// device without an id are counted together.
    pub napi_id: u32,
}

/// Polls of one instance by one kind of owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Polled {
    /// All polls.
    pub polls: u64,
    /// Polls that received nothing (they may have cleaned a transmit ring).
    pub empty: u64,
    /// Polls that used their whole budget.
    pub full: u64,
    /// Packets received, in the driver's unit of work (aggregates, if the device aggregates).
    pub packets: u64,
}

/// Counts of one instance since the counter was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// Polls by a softirq, including ksoftirqd.
    pub softirq: Polled,
    /// Polls by the instance's own thread.
    pub thread: Polled,
    /// Polls by an application that busy polls.
    pub application: Polled,
    /// Times that the timer was armed in place of the interrupt (`defer-hard-irqs`). `None` if timers are not counted.
    pub deferrals: Option<u64>,
    /// Times that an application's wait suspended the interrupt (`irq-suspend-timeout`).
    pub suspensions: Option<u64>,
    /// Times that a suspension's timer fired: the application did not wait again in time.
    pub expiries: Option<u64>,
    /// Times that the timer was armed with deferral off, only to flush packets that GRO holds.
    pub flushes: Option<u64>,
    /// Times that the timer fired, whatever had armed it.
    pub watchdogs: Option<u64>,
    /// The CPU of the last poll.
    pub cpu: Option<u32>,
    /// Whether the device keeps the instance's settings for the instance that replaces it, for example after down and
    /// up: whether its driver registered it with `netif_napi_add_config`. Otherwise the new instance starts with the
    /// device's values. `None` before its first poll or timer, and where settings are per device (before Linux 6.13).
    pub keeps_settings: Option<bool>,
}

impl Polled {
    fn since(self, earlier: Polled) -> Polled {
        Polled {
            polls: self.polls.saturating_sub(earlier.polls),
            empty: self.empty.saturating_sub(earlier.empty),
            full: self.full.saturating_sub(earlier.full),
            packets: self.packets.saturating_sub(earlier.packets),
        }
    }
}

impl Counts {
    /// Sums the polls of all kinds of owners.
    pub fn all(&self) -> Polled {
        let sum = |get: fn(&Polled) -> u64| {
            [self.softirq, self.thread, self.application]
                .iter()
                .fold(0_u64, |sum, it| sum.wrapping_add(get(it)))
        };
        Polled {
            polls: sum(|it| it.polls),
            empty: sum(|it| it.empty),
            full: sum(|it| it.full),
            packets: sum(|it| it.packets),
        }
    }

    /// Returns the increase since an earlier reading of the same counter.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let optional = |now: Option<u64>, then: Option<u64>| {
            now.map(|now| now.saturating_sub(then.unwrap_or(0)))
        };
        Counts {
            softirq: self.softirq.since(earlier.softirq),
            thread: self.thread.since(earlier.thread),
            application: self.application.since(earlier.application),
            deferrals: optional(self.deferrals, earlier.deferrals),
            suspensions: optional(self.suspensions, earlier.suspensions),
            expiries: optional(self.expiries, earlier.expiries),
            flushes: optional(self.flushes, earlier.flushes),
            watchdogs: optional(self.watchdogs, earlier.watchdogs),
            cpu: self.cpu,
            keeps_settings: self.keeps_settings,
        }
    }
}

/// Polls and timers that are counted in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lost {
    /// Events of instances for which the table had no room ([`Options::instances`](super::Options::instances)).
    pub no_room: u64,
    /// Events during which a program was already running on that CPU.
    pub nested: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_keeps_what_is_not_known_and_never_goes_below_nothing() {
        let softirq = |polls, packets| Polled { polls, packets, ..Polled::default() };
        let then = Counts { softirq: softirq(10, 5), deferrals: Some(3), ..Counts::default() };
        let now = Counts { softirq: softirq(14, 4), deferrals: Some(9), ..Counts::default() };
        let since = now.since(&then);
        assert_eq!(since.softirq, softirq(4, 0));
        assert_eq!((since.deferrals, since.watchdogs), (Some(6), None));
        assert_eq!(since.all().polls, 4);
    }
}
