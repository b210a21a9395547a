//! Capabilities: which of them this process has, their names for error messages, and giving them up.

use std::fmt;
use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};

use crate::procfs::read_text;

/// Limit of the file's size; `/proc/PID/status` has some 1500 bytes.
const LIMIT: usize = 16 << 10;

/// A capability that napkin uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Changing devices: `napi-set`, sysfs, budgets above 64, `SO_PREFER_BUSY_POLL`.
    NetAdmin,
    /// Creating an AF_XDP socket.
    NetRaw,
    /// Duplicating a descriptor of another user's process (`pidfd_getfd`).
    SysPtrace,
    /// Reading the `/proc` files of another user's process.
    DacReadSearch,
    /// Writing into another user's directory.
    DacOverride,
    /// Entering a namespace, and mounting its sysfs.
    SysAdmin,
    /// Moving another user's thread, or giving a thread real-time priority.
    SysNice,
    /// Loading the counting BPF programs.
    Bpf,
    /// Attaching them to trace points.
    Perfmon,
}

impl Right {
    /// The kernel's name of the capability.
    pub const fn name(self) -> &'static str {
        match self {
            Right::NetAdmin => "CAP_NET_ADMIN",
            Right::NetRaw => "CAP_NET_RAW",
            Right::SysPtrace => "CAP_SYS_PTRACE",
            Right::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Right::DacOverride => "CAP_DAC_OVERRIDE",
            Right::SysAdmin => "CAP_SYS_ADMIN",
            Right::SysNice => "CAP_SYS_NICE",
            Right::Bpf => "CAP_BPF",
            Right::Perfmon => "CAP_PERFMON",
        }
    }

    const fn bit(self) -> CapabilitySet {
        match self {
            Right::NetAdmin => CapabilitySet::NET_ADMIN,
            Right::NetRaw => CapabilitySet::NET_RAW,
            Right::SysPtrace => CapabilitySet::SYS_PTRACE,
            Right::DacReadSearch => CapabilitySet::DAC_READ_SEARCH,
            Right::DacOverride => CapabilitySet::DAC_OVERRIDE,
            Right::SysAdmin => CapabilitySet::SYS_ADMIN,
            Right::SysNice => CapabilitySet::SYS_NICE,
            Right::Bpf => CapabilitySet::BPF,
            Right::Perfmon => CapabilitySet::PERFMON,
        }
    }

    /// Whether the calling thread has it in its effective set. It is not always required: a process can attach to
    /// itself without `CAP_SYS_PTRACE`.
    pub fn held(self) -> bool {
        let Ok(sets) = capabilities(None) else { return false };
        // CAP_SYS_ADMIN implies these two: it stood for them before Linux 5.8.
        let instead = match self {
            Right::Bpf | Right::Perfmon => CapabilitySet::SYS_ADMIN,
            _ => CapabilitySet::empty(),
        };
        sets.effective.contains(self.bit())
            || (!instead.is_empty() && sets.effective.contains(instead))
    }

    /// Whether a process has it in its effective set; `None` if procfs does not say.
    pub fn held_by(self, pid: u32) -> Option<bool> {
        let status = read_text(format!("/proc/{pid}/status"), LIMIT).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        Some(mask & self.bit().bits() != 0)
    }
}

/// Drops all capabilities of the calling thread but these. Neither the thread nor its children can regain one. Call
/// it before other threads are created: each thread has its own capabilities.
///
/// # Errors
/// If the kernel refuses.
pub fn keep_only(rights: &[Right]) -> io::Result<()> {
    let kept = rights.iter().fold(CapabilitySet::empty(), |all, right| all | right.bit());
    let held = capabilities(None)?.permitted & kept;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let sets =
        CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
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
    fn what_is_given_up_is_gone_from_a_thread_and_not_from_others() {
        let before = Right::NetAdmin.held();
        let held = Right::Bpf.held();
        let thread = std::thread::spawn(move || {
            keep_only(&[Right::Bpf]).expect("less is always granted");
            assert!(!Right::NetAdmin.held() && !Right::SysAdmin.held() && !Right::Perfmon.held());
            // CAP_SYS_ADMIN, which stood in for CAP_BPF, is gone as well.
            assert!(held || !Right::Bpf.held());
        });
        thread.join().expect("no panic");
        assert_eq!(Right::NetAdmin.held(), before);
    }

    #[test]
    fn a_right_is_held_exactly_if_procfs_says_so() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
        let mask = u64::from_str_radix(line.trim(), 16).expect("a mask");
        for right in [Right::NetAdmin, Right::SysPtrace, Right::SysAdmin, Right::SysNice] {
            assert_eq!(right.held(), mask & right.bit().bits() != 0, "{right}");
            assert_eq!(right.held_by(std::process::id()), Some(right.held()), "{right}");
        }
    }
}
