//! System-wide sysctls that affect packet delivery, under `/proc/sys`.
//!
//! Those of `net.core` apply to the whole host, but the kernel shows them only to threads in the initial network
//! namespace. Elsewhere they are [`SysctlError::Hidden`], not absent.

use std::fmt;
use std::io;

use thiserror::Error;

use super::read_text;

/// Limit of a file's size; a number is shorter.
const LIMIT: usize = 4_096;

/// One sysctl. All of them apply to the whole host, whatever the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sysctl {
    /// Microseconds for which `poll`, `select` and `epoll` busy poll by default.
    BusyPoll,
    /// Microseconds for which receive calls of new sockets busy poll.
    BusyRead,
    /// Packet budget of one run of the network receive softirq.
    NetdevBudget,
    /// Time budget of one run of the network receive softirq, in microseconds.
    NetdevBudgetUsecs,
    /// Length of each CPU's backlog queue in packets; more packets are dropped.
    NetdevMaxBacklog,
    /// Packet budget of one poll of a CPU's backlog.
    DevWeight,
    /// Entries of the flow table by which RFS finds the CPU of a flow's application; 0 turns RFS off.
    RpsSockFlowEntries,
    /// Whether timers may migrate to another CPU when their own is idle.
    TimerMigration,
    /// Microseconds for which real-time threads may run in each period; -1 for no limit.
    SchedRtRuntimeUs,
    /// Length of that period in microseconds.
    SchedRtPeriodUs,
}

impl Sysctl {
    /// All of the sysctls.
    pub const ALL: [Sysctl; 10] = [
        Sysctl::BusyPoll,
        Sysctl::BusyRead,
        Sysctl::NetdevBudget,
        Sysctl::NetdevBudgetUsecs,
        Sysctl::NetdevMaxBacklog,
        Sysctl::DevWeight,
        Sysctl::RpsSockFlowEntries,
        Sysctl::TimerMigration,
        Sysctl::SchedRtRuntimeUs,
        Sysctl::SchedRtPeriodUs,
    ];

    /// Its name, as `sysctl` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Sysctl::BusyPoll => "net.core.busy_poll",
            Sysctl::BusyRead => "net.core.busy_read",
            Sysctl::NetdevBudget => "net.core.netdev_budget",
            Sysctl::NetdevBudgetUsecs => "net.core.netdev_budget_usecs",
            Sysctl::NetdevMaxBacklog => "net.core.netdev_max_backlog",
            Sysctl::DevWeight => "net.core.dev_weight",
            Sysctl::RpsSockFlowEntries => "net.core.rps_sock_flow_entries",
            Sysctl::TimerMigration => "kernel.timer_migration",
            Sysctl::SchedRtRuntimeUs => "kernel.sched_rt_runtime_us",
            Sysctl::SchedRtPeriodUs => "kernel.sched_rt_period_us",
        }
    }

    /// Whether only threads in the initial network namespace see it.
    pub fn first_namespace_only(self) -> bool {
        self.name().starts_with("net.")
    }

    /// Reads its value.
    ///
    /// # Errors
    /// If this kernel has no such sysctl, or does not show it to the calling thread.
    pub fn read(self) -> Result<i64, SysctlError> {
        let path = format!("/proc/sys/{}", self.name().replace('.', "/"));
        let text = read_text(path, LIMIT).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if self.first_namespace_only() && elsewhere() => {
                SysctlError::Hidden { sysctl: self }
            }
            io::ErrorKind::NotFound => SysctlError::Absent { sysctl: self },
            _ => SysctlError::Io { sysctl: self, source },
        })?;
        parse(&text).ok_or_else(|| SysctlError::Io {
            sysctl: self,
            source: io::Error::new(io::ErrorKind::InvalidData, format!("no number: {text:?}")),
        })
    }
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The reason why a sysctl could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SysctlError {
    /// This kernel was built without it, or is too old.
    #[error("this kernel has no {sysctl}")]
    Absent {
        /// The sysctl that was asked for.
        sysctl: Sysctl,
    },
    /// The kernel has it, but does not show it in this network namespace.
    #[error("{sysctl} is shown only in the host's own network namespace; look from there")]
    Hidden {
        /// The sysctl that was asked for.
        sysctl: Sysctl,
    },
    /// Reading or parsing failed for another reason.
    #[error("{sysctl} cannot be read: {source}")]
    Io {
        /// The sysctl that was asked for.
        sysctl: Sysctl,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Whether the calling thread is outside of the initial network namespace: every namespace shows `somaxconn`, only
/// the initial one `netdev_max_backlog`, which every kernel has since 2.4.
fn elsewhere() -> bool {
    let exists = |name: &str| std::path::Path::new(name).exists();
    exists("/proc/sys/net/core/somaxconn") && !exists("/proc/sys/net/core/netdev_max_backlog")
}

fn parse(text: &str) -> Option<i64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_s_switches_are_seen_everywhere() {
        let period = Sysctl::SchedRtPeriodUs.read().expect("every kernel has it");
        assert!(period > 0, "{period}");
    }

    #[test]
    fn a_value_is_the_first_number() {
        assert_eq!(parse("950000\n"), Some(950_000));
        assert_eq!(parse("-1\n"), Some(-1));
        for wrong in ["", "\n", "x", "99999999999999999999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
