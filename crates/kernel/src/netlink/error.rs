//! Errors of requests to the kernel over netlink.

use rustix::io::Errno;

use napkin_os::rights::Right;

/// The reason why a netlink request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetlinkError {
    /// No netlink socket can be opened.
    #[error("cannot open a netlink socket ({step}): {errno}")]
    Open {
        /// The step that failed.
        step: &'static str,
        /// The kernel's errno.
        errno: Errno,
    },
    /// The kernel lacks the family.
    #[error("this kernel has no netlink family `{family}`: {since} or later has it")]
    NoFamily {
        /// The family's name: `netdev`, `ethtool`.
        family: String,
        /// The first version of Linux that has it.
        since: &'static str,
    },
    /// The kernel has the family, but not this operation.
    #[error("this kernel's netlink family `{family}` lacks `{operation}`: {since} or later has it")]
    NoOperation {
        /// The family's name.
        family: &'static str,
        /// The operation's name.
        operation: &'static str,
        /// The first version of Linux that has it.
        since: &'static str,
    },
    /// No NAPI instance has this id in this namespace.
    #[error(
        "there is no NAPI instance {id} in this network namespace: ids change whenever the \
         driver makes its instances anew (a link set down and up does it); look again"
    )]
    NoNapi {
        /// The id that was asked for.
        id: u32,
    },
    /// There is no such device in this namespace.
    #[error("{request}: there is no device {device} in this network namespace")]
    NoDevice {
        /// The request.
        request: String,
        /// The device's name or ifindex.
        device: String,
    },
    /// A capability is missing.
    #[error("{request}: not permitted; it needs {right}")]
    NoRight {
        /// The request.
        request: String,
        /// The missing capability.
        right: Right,
    },
    /// The kernel refused the request.
    #[error("the kernel refused {request}: {errno}{}", explained(.text))]
    Refused {
        /// The request.
        request: String,
        /// The kernel's error.
        errno: Errno,
        /// The text of its extended acknowledgement, at most 256 bytes.
        text: Option<String>,
    },
    /// A feature of the device did not change as requested.
    #[error("{ifname} did not take the feature `{feature}` {}: it is fixed, or depends on another one", on_off(*.on))]
    FeatureKept {
        /// The device's name.
        ifname: String,
        /// The feature's name in the kernel.
        feature: String,
        /// The requested state.
        on: bool,
    },
    /// Sending or receiving failed.
    #[error("{request}: {errno}")]
    Io {
        /// The request.
        request: String,
        /// The kernel's errno.
        errno: Errno,
    },
    /// The reply was not complete in time.
    #[error("{request}: the kernel gave no complete reply within {seconds} s")]
    Timeout {
        /// The request.
        request: String,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// The list changed during each of several readings.
    #[error("{request}: the list changed during each of {tries} readings; try again")]
    Inconsistent {
        /// The request.
        request: String,
        /// The number of readings.
        tries: u32,
    },
    /// The reply exceeds the limit.
    #[error("{request}: the reply is longer than {limit} bytes")]
    TooLarge {
        /// The request.
        request: String,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The request does not fit into a message: a name is too long.
    #[error("{request}: the request does not fit into a netlink message; a name in it is too long")]
    RequestTooLarge {
        /// The request.
        request: String,
    },
    /// The reply is malformed.
    #[error("{request}: the reply cannot be understood: {what}")]
    Malformed {
        /// The request.
        request: String,
        /// What is wrong with the reply.
        what: &'static str,
    },
}

fn explained(text: &Option<String>) -> String {
    text.as_ref().map(|text| format!(": {text}")).unwrap_or_default()
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl NetlinkError {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetlinkError::Open { errno, .. }
            | NetlinkError::Refused { errno, .. }
            | NetlinkError::Io { errno, .. } => Some(*errno),
            NetlinkError::NoFamily { .. } | NetlinkError::NoNapi { .. } => Some(Errno::NOENT),
            NetlinkError::NoDevice { .. } => Some(Errno::NODEV),
            NetlinkError::NoRight { .. } => Some(Errno::PERM),
            NetlinkError::NoOperation { .. } => Some(Errno::OPNOTSUPP),
            NetlinkError::Timeout { .. }
            | NetlinkError::FeatureKept { .. }
            | NetlinkError::Inconsistent { .. }
            | NetlinkError::TooLarge { .. }
            | NetlinkError::RequestTooLarge { .. }
            | NetlinkError::Malformed { .. } => None,
        }
    }

    /// Turns a refusal with `ENODEV` into [`NetlinkError::NoDevice`] of this device; other errors are unchanged.
    pub(super) fn of_device(self, device: &dyn ToString) -> NetlinkError {
        match self {
            NetlinkError::Refused { request, errno: Errno::NODEV, .. } => {
                NetlinkError::NoDevice { request, device: device.to_string() }
            }
            other => other,
        }
    }
}
