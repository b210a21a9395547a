//! What this process may do, asked of the kernel one right at a time, and how to say what is
//! missing.

use std::fmt;

use rustix::thread::{CapabilitySet, capabilities};

/// A right that something here needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// To change devices: `napi-set`, sysfs, budgets above 64, `SO_PREFER_BUSY_POLL`.
    NetAdmin,
    /// To take a descriptor of another user's process (`pidfd_getfd`).
    SysPtrace,
    /// To enter a namespace, and to mount a sysfs of it.
    SysAdmin,
    /// To move another user's thread, or to give one real-time priority.
    SysNice,
    /// To load the counting programs.
    Bpf,
    /// To attach them to trace points.
    Perfmon,
}

impl Right {
    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Right::NetAdmin => "CAP_NET_ADMIN",
            Right::SysPtrace => "CAP_SYS_PTRACE",
            Right::SysAdmin => "CAP_SYS_ADMIN",
            Right::SysNice => "CAP_SYS_NICE",
            Right::Bpf => "CAP_BPF",
            Right::Perfmon => "CAP_PERFMON",
        }
    }

    const fn bit(self) -> CapabilitySet {
        match self {
            Right::NetAdmin => CapabilitySet::NET_ADMIN,
            Right::SysPtrace => CapabilitySet::SYS_PTRACE,
            Right::SysAdmin => CapabilitySet::SYS_ADMIN,
            Right::SysNice => CapabilitySet::SYS_NICE,
            Right::Bpf => CapabilitySet::BPF,
            Right::Perfmon => CapabilitySet::PERFMON,
        }
    }

    /// Whether the calling thread has it in effect. Having it is not always needed: one's own
    /// process can be attached to without `CAP_SYS_PTRACE`.
    pub fn held(self) -> bool {
        let Ok(sets) = capabilities(None) else { return false };
        // Before Linux 5.8 CAP_SYS_ADMIN stood for these two, and it still does.
        let instead = match self {
            Right::Bpf | Right::Perfmon => CapabilitySet::SYS_ADMIN,
            _ => CapabilitySet::empty(),
        };
        sets.effective.contains(self.bit())
            || (!instead.is_empty() && sets.effective.contains(instead))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_held_exactly_if_procfs_says_so() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
        let mask = u64::from_str_radix(line.trim(), 16).expect("a mask");
        for right in [Right::NetAdmin, Right::SysPtrace, Right::SysAdmin, Right::SysNice] {
            assert_eq!(right.held(), mask & right.bit().bits() != 0, "{right}");
        }
    }
}
