//! Errors of `serve`.

use std::net::IpAddr;

use napkin_policy::Conflict;
use thiserror::Error;

use super::network::Network;

/// The reason why a server did not start, or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An invalid option.
    #[error("{0}")]
    Usage(String),
    /// Two devices' policies conflict on a CPU that they share.
    #[error("{one} and {other} share CPU {cpu}, but {conflict}")]
    Conflict {
        /// The first device's name.
        one: String,
        /// The other device's name.
        other: String,
        /// The operating system's number of the CPU.
        cpu: usize,
        /// The setting on which they conflict.
        conflict: Conflict,
    },
    /// A requested CPU is not available to this process.
    #[error(transparent)]
    Cpu(#[from] napkin_os::sched::SchedError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] napkin_engine::EngineError),
    /// No permission to create the TAP device, and no existing one belongs to this user.
    #[error(
        "{source}; or let root make the device for this user once: ip tuntap add dev {name} mode \
         tap multi_queue user {uid}"
    )]
    TapRights {
        /// The device's name.
        name: String,
        /// The user who would have to own it.
        uid: u32,
        /// The refused operation.
        source: napkin_nic::tap::TapError,
    },
    /// Another interface is in the same network, so that the operating system's route would be ambiguous.
    #[error(
        "{name} cannot be {ours}: {other} has {theirs} in the same network; give another \
         with --address{}{}",
        free.map(|free| format!(", such as {free}")).unwrap_or_default(),
        left.map(|bits| removal_advice(other, *theirs, bits)).unwrap_or_default()
    )]
    SameNetwork {
        /// The device's name.
        name: String,
        /// The address that it was to have.
        ours: Network,
        /// The other interface.
        other: String,
        /// The other interface's address.
        theirs: IpAddr,
        /// Its prefix length, if the other interface is a TAP interface that no process has open.
        left: Option<u8>,
        /// An address in a network that is free.
        free: Option<Network>,
    },
    /// The operating system's side of a TAP device could not be set up.
    #[error("cannot set up the operating system's side of {side}: {source}{advice}")]
    Side {
        /// The TAP interface's name.
        side: String,
        /// The kernel's error.
        source: napkin_kernel::netlink::NetlinkError,
        /// Advice as the end of a sentence; empty if there is none.
        advice: &'static str,
    },
    /// The addresses cannot be combined on one device.
    #[error(transparent)]
    Address(#[from] napkin_stack::AddressError),
    /// The TAP device could not be opened.
    #[error(transparent)]
    Tap(#[from] napkin_nic::tap::TapError),
    /// The virtio device could not be opened.
    #[error(transparent)]
    Vhost(#[from] napkin_nic::vhost::VhostError),
    /// The AF_XDP device could not be opened.
    #[error(transparent)]
    Xdp(#[from] napkin_nic::xdp::XdpError),
    /// The interface has no address to serve.
    #[error(
        "{name} has no IP address, and by port the service is at the interface's own: ip addr add \
         10.99.0.1/24 dev {name}, or take all traffic with xdp:{name}:0:all and --address"
    )]
    NoAddress {
        /// The interface's name.
        name: String,
    },
    /// The kernel did not list the interface's addresses.
    #[error("cannot ask for the addresses of {name}: {source}")]
    Asked {
        /// The interface's name.
        name: String,
        /// The kernel's error.
        source: napkin_kernel::netlink::NetlinkError,
    },
    /// The synthetic source could not be created.
    #[error(transparent)]
    Synthetic(#[from] napkin_nic::synthetic::ConfigError),
    /// The port could not be bound.
    #[error(transparent)]
    Bind(#[from] napkin_stack::BindError),
    /// The operating system's port could not be opened.
    #[error(
        "{address} cannot be served: {source}{}", listen_advice(.source)
    )]
    Listen {
        /// The address and port.
        address: std::net::SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Listening on the TCP port failed.
    #[error(transparent)]
    ListenTcp(#[from] napkin_stack::tcp::ListenError),
    /// The service's limits are invalid.
    #[error(transparent)]
    Limits(#[from] napkin_service::memcached::LimitError),
    /// The file cannot be served as a disk.
    #[error(transparent)]
    Disk(#[from] crate::disk::DiskError),
    /// A memory store cannot have that size.
    #[error(transparent)]
    Size(#[from] napkin_service::nbd::memory::SizeError),
    /// An export cannot have this name.
    #[error(transparent)]
    Name(#[from] napkin_service::nbd::NameError),
    /// The policy's epoll parameters, or its socket options, were refused.
    #[error(transparent)]
    Wait(#[from] napkin_engine::WaitError),
    /// The control socket could not be opened.
    #[error(transparent)]
    Control(#[from] napkin_engine::control::ControlError),
    /// Signals could not be blocked.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// The pcap file could not be created or written.
    #[error("cannot write {path}: {error}", path = .path.display())]
    Capture {
        /// The file as given.
        path: std::path::PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The kernel's settings below an AF_XDP device were not restored completely.
    #[error(
        "not everything that was set of {0} was put back: napkin diff says what, and napkin restore tries again"
    )]
    Left(String),
    /// A thread could not be started.
    #[error("cannot start a thread of the application: {0}")]
    Thread(std::io::Error),
    /// The last device was removed.
    #[error("device {0} has gone: another program removed it, and there is nothing left to serve")]
    Gone(String),
    /// A thread of the application ended early.
    #[error("the thread that serves {0} has ended before its time; this is a bug in napkin")]
    Ended(String),
    /// Two independent errors.
    #[error("{0}; and {1}")]
    Both(Box<ServeError>, Box<ServeError>),
}

/// The second's value if both succeeded; otherwise the error, or both errors.
pub(super) fn both<T>(
    first: Result<(), ServeError>,
    second: Result<T, ServeError>,
) -> Result<T, ServeError> {
    match (first, second) {
        (Ok(()), second) => second,
        (Err(first), Ok(_)) => Err(first),
        (Err(first), Err(second)) => Err(ServeError::Both(first.into(), second.into())),
    }
}

impl ServeError {
    /// Whether the request itself was invalid, as opposed to something that this machine lacks.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            ServeError::Usage(_)
                | ServeError::Conflict { .. }
                | ServeError::Address(_)
                | ServeError::Size(_)
                | ServeError::Name(_)
        )
    }
}

/// Advice on removing the address that a server left on an interface. Serving beside it would not work: the
/// operating system goes on sending to the interface that had the network first, even without a carrier.
fn removal_advice(other: &str, address: IpAddr, bits: u8) -> String {
    format!(
        "; or remove that address, as no process has {other} open: ip addr del {address}/{bits} dev \
         {other}"
    )
}

/// Advice for an error, if there is any.
fn listen_advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program has the port (ss -lntup names it): end that, or give another --port"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; a port below 1024 needs CAP_NET_BIND_SERVICE: give --port 1024 or more"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "; no interface of this host has this address (ip addr lists them)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_left_by_a_server_is_reported_with_the_command_to_remove_it() {
        let message = |left| {
            let ours = "10.99.0.1/24".parse().unwrap();
            let (name, other) = ("nk1".to_owned(), "nk0".to_owned());
            let theirs = [10, 99, 0, 2].into();
            ServeError::SameNetwork { name, ours, other, theirs, left, free: None }.to_string()
        };
        let refused = "nk1 cannot be 10.99.0.1/24: nk0 has 10.99.0.2 in the same network; give \
                       another with --address";
        assert_eq!(message(None), refused);
        let mended = message(Some(24));
        let how = mended.strip_prefix(refused).expect("the same, and more");
        assert!(how.starts_with("; or remove that address, as no process has nk0 open"), "{how}");
        assert!(how.ends_with(": ip addr del 10.99.0.2/24 dev nk0"), "{how}");
    }

    #[test]
    fn two_errors_are_both_reported() {
        let gone = || Err(ServeError::Gone("nk0".into()));
        let left = || Err::<u64, _>(ServeError::Left("eth0".into()));
        let message = both(gone(), left()).expect_err("two").to_string();
        assert!(message.starts_with("device nk0 has gone: "), "{message}");
        assert!(
            message.contains("; and not everything that was set of eth0 was put back"),
            "{message}"
        );
        assert!(both(gone(), Ok(1)).expect_err("one").to_string().starts_with("device nk0"));
        assert!(both(Ok(()), left()).expect_err("one").to_string().starts_with("not everything"));
        assert_eq!(both(Ok(()), Ok(1)).expect("none"), 1);
    }
}
