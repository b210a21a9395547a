//! Switches of the whole kernel that delivery depends on, under `/proc/sys`.
//!
//! Those of `net.core` belong to the host, yet the kernel shows them only to threads in its first
//! network namespace: in any other one they are [`SysctlError::Hidden`], not absent.

use std::fmt;
use std::io;

use thiserror::Error;

use super::read_text;

/// A number has fewer bytes.
const LIMIT: usize = 4_096;

/// One switch. All of them hold for the host, whatever the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sysctl {
    /// Microseconds that `poll`, `select` and `epoll` busy poll by default.
    BusyPoll,
    /// Microseconds that new sockets' receive calls busy poll.
    BusyRead,
    /// Packets of one round of the network softirq.
    NetdevBudget,
    /// Microseconds of one round of the network softirq.
    NetdevBudgetUsecs,
    /// Packets that wait at a CPU's backlog before more are dropped.
    NetdevMaxBacklog,
    /// Packets of one poll of the CPUs' backlog.
    DevWeight,
    /// Entries of the table by which RFS finds a flow's application; 0 is off.
    RpsSockFlowEntries,
    /// Whether timers may go to another CPU when theirs is idle.
    TimerMigration,
    /// Microseconds in each period that real-time threads may run; -1 for no limit.
    SchedRtRuntimeUs,
    /// Microseconds of that period.
    SchedRtPeriodUs,
}

impl Sysctl {
    /// Every switch that is known here.
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

    /// Whether only threads in the kernel's first network namespace see it.
    pub fn first_namespace_only(self) -> bool {
        self.name().starts_with("net.")
    }

    /// Its value.
    ///
    /// # Errors
    /// If this kernel has no such switch, or does not show it to the calling thread.
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

/// Why a switch could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SysctlError {
    /// This kernel was built without it, or is older.
    #[error("this kernel has no {sysctl}")]
    Absent {
        /// The switch that was asked for.
        sysctl: Sysctl,
    },
    /// There it is, but not to be seen from here.
    #[error("{sysctl} is shown only in the host's own network namespace; look from there")]
    Hidden {
        /// The switch that was asked for.
        sysctl: Sysctl,
    },
    /// Reading or writing failed for another reason.
    #[error("{sysctl} cannot be read: {source}")]
    Io {
        /// The switch that was asked for.
        sysctl: Sysctl,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Whether the calling thread is in a network namespace other than the first. One file that every
/// kernel has since 2.4, and shows to the first namespace alone, tells.
fn elsewhere() -> bool {
    let there = |name: &str| std::path::Path::new(name).exists();
    there("/proc/sys/net/core/somaxconn") && !there("/proc/sys/net/core/netdev_max_backlog")
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
