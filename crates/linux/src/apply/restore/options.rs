//! The options of a restore.

/// The options of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreOptions {
    /// Only this device; `None`: everything in this namespace.
    pub ifname: Option<String>,
    /// Also put back values that another program has set since.
    pub force: bool,
    /// Drop the records of what could not be put back.
    pub forget: bool,
    /// Only report what would be done. Does not look for epoll contexts that moved, sockets that inherited busy
    /// polling, or threads that inherited their CPUs.
    pub dry_run: bool,
}
