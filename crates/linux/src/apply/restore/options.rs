//! How to put back.

/// How to put back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreOptions {
    /// Only this device.
    pub ifname: Option<String>,
    /// Also what somebody else changed since.
    pub force: bool,
    /// Forget what could not be put back.
    pub forget: bool,
    /// Only say what would be done; epoll contexts that moved, sockets that inherited busy polling, and threads
    /// that inherited their CPUs, are not looked for.
    pub dry_run: bool,
}
