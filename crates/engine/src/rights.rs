//! What this process may do.
//!
//! Only the right that the kernel asks for busy polling; whether a thread may have its class is found
//! out by asking for it (`sched`).

use rustix::thread::{CapabilitySet, capabilities};

/// Whether the calling thread has `CAP_NET_ADMIN` in effect, which the kernel asks of whoever raises
/// a busy-poll budget or prefers busy polling. The engine asks the same, so that a policy that works
/// here works there.
pub fn net_admin() -> bool {
    // A system call, not procfs, which a container may be without.
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_in_procfs_what_it_says_when_asked() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
        let mask = u64::from_str_radix(line.trim(), 16).expect("a mask");
        assert_eq!(net_admin(), mask & CapabilitySet::NET_ADMIN.bits() != 0);
    }
}
