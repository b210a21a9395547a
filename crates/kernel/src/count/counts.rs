//! What is counted of an instance, and by what it is told from others.

use serde::Serialize;

/// What a count is kept by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Key {
    /// The inode of its network namespace, as of `/proc/thread-self/ns/net`; 0 for the CPUs'
    /// backlogs, which belong to none.
    pub netns: u32,
    /// Its device in that namespace; 0 for the CPUs' backlogs.
    pub ifindex: u32,
    /// Its id; 0 if it has none (a driver's transmit-only instance, a tunnel's, a backlog). All of
    /// a device's instances without an id count together.
    pub napi_id: u32,
}

/// Polls of one instance by one kind of context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Polled {
    /// All of them.
    pub polls: u64,
    /// Those that found nothing to receive (they may have cleaned a transmit ring).
    pub empty: u64,
    /// Those that used their whole budget.
    pub full: u64,
    /// Packets (the driver's unit of work; of an aggregating device, aggregates) that they took.
    pub packets: u64,
}

/// Counts of one instance since the counter was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// By a softirq (ksoftirqd's included).
    pub softirq: Polled,
    /// By the instance's thread.
    pub thread: Polled,
    /// By an application that busy polls.
    pub application: Polled,
    /// Times that the timer was armed in the place of the interrupt (`defer-hard-irqs`). `None` if
    /// timers are not counted.
    pub deferrals: Option<u64>,
    /// Times that an application's wait suspended the interrupt (`irq-suspend-timeout`).
    pub suspensions: Option<u64>,
    /// Times that a suspension's timer fired: the application did not come back in time.
    pub expiries: Option<u64>,
    /// Times that the timer was armed with deferral off, only to flush what GRO holds.
    pub flushes: Option<u64>,
    /// Times that the timer fired, whatever had armed it.
    pub watchdogs: Option<u64>,
    /// The CPU of the last poll.
    pub cpu: Option<u32>,
    /// Whether the device keeps the instance's settings and gives them to the instance that takes
    /// its place, as after down and up: whether its driver gave it a place for them
    /// (`netif_napi_add_config`). Without, an instance that is made anew begins with the device's
    /// values. `None` before its first poll or timer, and where settings are the device's (before Linux 6.13).
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
    /// Polls, whoever polled.
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

    /// What was counted since an earlier reading of the same counter.
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

/// Polls and timers that are in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lost {
    /// For lack of room for another instance ([`Options::instances`](super::Options::instances)).
    pub no_room: u64,
    /// Because a program was at work on that CPU already.
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
