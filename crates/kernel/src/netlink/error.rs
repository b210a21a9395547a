//! What can go wrong between this process and the kernel's netlink.

use rustix::io::Errno;

use napkin_os::rights::Right;

/// Why a request over netlink has no result.
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
    /// The kernel lacks the whole family.
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
        /// The id asked for.
        id: u32,
    },
    /// No such device in this namespace.
    #[error("{request}: there is no device {device} in this network namespace")]
    NoDevice {
        /// What was asked.
        request: String,
        /// The device's name or number.
        device: String,
    },
    /// A right is missing.
    #[error("{request}: not permitted; it needs {right}")]
    NoRight {
        /// What was asked.
        request: String,
        /// What is missing.
        right: Right,
    },
    /// The kernel refused the request.
    #[error("the kernel refused {request}: {errno}{}", explained(.text))]
    Refused {
        /// What was asked.
        request: String,
        /// The kernel's error.
        errno: Errno,
        /// Its own words (extended acknowledgement), at most 256 bytes.
        text: Option<String>,
    },
    /// The device did not take a feature as asked.
    #[error("{ifname} did not take the feature `{feature}` {}: it is fixed, or depends on another one", on_off(*.on))]
    FeatureKept {
        /// The device's name.
        ifname: String,
        /// The feature's name, as the kernel writes it.
        feature: String,
        /// What was asked of it.
        on: bool,
    },
    /// Sending or receiving failed.
    #[error("{request}: {errno}")]
    Io {
        /// What was asked.
        request: String,
        /// The kernel's errno.
        errno: Errno,
    },
    /// No complete reply in time.
    #[error("{request}: the kernel gave no complete reply within {seconds} s")]
    Timeout {
        /// What was asked.
        request: String,
        /// How long was waited.
        seconds: u64,
    },
    /// What is listed changed during each of several readings.
    #[error("{request}: the list changed during each of {tries} readings; try again")]
    Inconsistent {
        /// What was asked.
        request: String,
        /// How many readings.
        tries: u32,
    },
    /// The reply is larger than anything sensible.
    #[error("{request}: the reply is longer than {limit} bytes")]
    TooLarge {
        /// What was asked.
        request: String,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The request does not fit into a message: a name is too long.
    #[error("{request}: the request does not fit into a netlink message; a name in it is too long")]
    RequestTooLarge {
        /// What was asked.
        request: String,
    },
    /// The reply cannot be understood.
    #[error("{request}: the reply cannot be understood: {what}")]
    Malformed {
        /// What was asked.
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
    /// The kernel's error number, where there is one.
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

    /// The same refusal, or `ENODEV` as [`NetlinkError::NoDevice`] of the device that was named.
    pub(super) fn of_device(self, device: &dyn ToString) -> NetlinkError {
        match self {
            NetlinkError::Refused { request, errno: Errno::NODEV, .. } => {
                NetlinkError::NoDevice { request, device: device.to_string() }
            }
            other => other,
        }
    }
}
