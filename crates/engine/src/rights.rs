//! What this process may do.

/// `CAP_NET_ADMIN`.
const NET_ADMIN: u32 = 12;

/// Whether this process has `CAP_NET_ADMIN` in effect, which the kernel asks of whoever raises a
/// busy-poll budget or prefers busy polling. The engine asks the same, so that a policy that works
/// here works there.
pub fn net_admin() -> bool {
    capability(NET_ADMIN)
}

fn capability(number: u32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|mask| mask >> number & 1 == 1)
}
