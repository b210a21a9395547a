//! Servers of an engine workload, and the wires to its clients.

use std::fmt;
use std::str::FromStr;

use napkin_policy::{NamedPolicy, Policy};

use crate::error::BenchError;
use crate::setting::{Given, Setting};

/// The TCP stack and the threads that a service runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// The service on the engine.
    Napkin,
    /// The same service on the operating system's sockets.
    Kernel,
    /// Debian's memcached, unmodified.
    Memcached,
}

/// One row of a comparison: a policy and a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The server; `None` if the workload determines it.
    pub server: Option<Server>,
    /// The policy, with the name that its rows have.
    pub policy: NamedPolicy,
}

/// A receive and transmit queue of an interface of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpPort {
    /// The interface, as `ip link` names it.
    pub interface: String,
    /// The queue's number, from 0.
    pub queue: u32,
}

impl FromStr for XdpPort {
    type Err = String;

    fn from_str(text: &str) -> Result<XdpPort, String> {
        if ["tap", "synthetic", "xdp", "vhost"].contains(&text) {
            return Err(format!("{text} is no interface: give --wire {text}"));
        }
        let form =
            || format!("{text} is no AF_XDP device: give xdp:IF or xdp:IF:QUEUE, as in xdp:eth0:0");
        let rest = text.strip_prefix("xdp:").ok_or_else(form)?;
        let (interface, queue) = rest.split_once(':').unwrap_or((rest, "0"));
        let queue = queue.parse().map_err(|_| form())?;
        if interface.is_empty() {
            return Err(form());
        }
        Ok(XdpPort { interface: interface.to_owned(), queue })
    }
}

/// The connection between a client and the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Wire {
    /// A cable in memory, and a client with its own stack.
    #[default]
    Cable,
    /// A TAP device, and a client on the operating system's sockets.
    Tap,
    /// AF_XDP on one end of a veth, and a client on the operating system's sockets behind the other.
    Xdp,
    /// Virtio rings over vhost-user: the engine is the backend, and a client with a stack of its own the driver.
    Vhost,
    /// AF_XDP on two interfaces of this host, at both ends of one cable: the engine's, and that of a client with
    /// its own stack.
    Ports {
        /// Interface and queue of the engine's end.
        here: XdpPort,
        /// Interface and queue of the client's end.
        there: XdpPort,
    },
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wire::Cable => f.write_str("cable"),
            Wire::Tap => f.write_str("tap"),
            Wire::Xdp => f.write_str("xdp"),
            Wire::Vhost => f.write_str("vhost"),
            Wire::Ports { here, there } => write!(
                f,
                "xdp:{}:{} to xdp:{}:{}",
                here.interface, here.queue, there.interface, there.queue
            ),
        }
    }
}

/// Every server with its name and description, in the order of the rows.
const SERVERS: [(Server, (&str, &str)); 3] = [
    (Server::Napkin, ("napkin", "The engine, with a TCP of its own")),
    (Server::Kernel, ("kernel", "The same service on the operating system's sockets")),
    (Server::Memcached, ("memcached", "Debian's memcached, unmodified, with a worker a queue")),
];

/// The choices of [`SERVER`]: without and with the memcached program.
pub(crate) const OURS: &[(&str, &str)] = &[SERVERS[0].1, SERVERS[1].1];
pub(crate) const ALL: &[(&str, &str)] = &[SERVERS[0].1, SERVERS[1].1, SERVERS[2].1];

/// The setting `--server`.
pub(crate) const SERVER: Setting = Setting {
    default: Some("napkin"),
    list: true,
    ..Setting::engine(
        "server",
        "SERVER",
        "Who serves, on the engine or beside it; of several, with commas, all under the same client in \
         one run. napkin runs under each policy, the others as the kernel delivers by itself (base).",
    )
};

/// The setting `--wire` of a client with a stack.
pub(crate) const WIRE: Setting = Setting {
    choices: &[
        ("cable", "Memory: the client has a stack of its own, and costs no kernel's"),
        ("tap", "A TAP device: the client has the operating system's sockets; needs root"),
        ("xdp", "AF_XDP on a veth: the same client; needs root"),
        ("vhost", "Virtio rings (vhost-user): the client of the cable, as a driver"),
    ],
    ..Setting::engine(
        "wire",
        "WIRE",
        "What is between client and engine. [default: cable; tap beside other servers, which are behind \
         a veth]",
    )
};

/// The setting `--wire` of a client without a stack, whose frames may also come from within the queue.
pub(crate) const FRAMES: Setting = Setting {
    choices: &[
        ("synthetic", "None: the frames come from within the queue"),
        ("xdp", "AF_XDP at both ends of a veth; needs root"),
        ("vhost", "Virtio rings (vhost-user)"),
    ],
    ..Setting::engine(
        "wire",
        "WIRE",
        "What the frames come over, from a client at its other end. [default: synthetic]",
    )
};

/// The setting for the engine's interface.
pub(crate) const PORT: Setting = Setting {
    check: |text| text.parse::<XdpPort>().map(drop),
    conflicts: Some("wire"),
    requires: Some("client-device"),
    ..Setting::engine(
        "device",
        "xdp:IF[:QUEUE]",
        "Serve on a queue of this interface, over AF_XDP (needs root): all that arrives there is the \
         engine's while it runs. The client has another interface of this host, at the other end of the cable: \
         --client-device. (--wire xdp makes a veth itself.)",
    )
};

/// The setting for the client's interface.
pub(crate) const CLIENT_PORT: Setting = Setting {
    check: |text| text.parse::<XdpPort>().map(drop),
    requires: Some("device"),
    ..Setting::engine(
        "client-device",
        "xdp:IF[:QUEUE]",
        "The client's interface, for which the same holds; its stack is its own.",
    )
};

impl Wire {
    /// Reads the wire from the settings; `None` if none was given.
    ///
    /// # Errors
    /// If both ends are the same interface.
    pub(crate) fn read(given: &Given) -> Result<Option<Wire>, BenchError> {
        let named = match given.one("wire") {
            Some("cable") => Some(Wire::Cable),
            Some("tap") => Some(Wire::Tap),
            Some("xdp") => Some(Wire::Xdp),
            Some("vhost") => Some(Wire::Vhost),
            _ => None,
        };
        Ok(Wire::ports(given)?.or(named))
    }

    fn ports(given: &Given) -> Result<Option<Wire>, BenchError> {
        let port = |name| {
            let text = given.one(name).map(str::parse::<XdpPort>);
            text.transpose().map_err(BenchError::Usage)
        };
        let (Some(here), Some(there)) = (port("device")?, port("client-device")?) else {
            return Ok(None);
        };
        if here.interface == there.interface {
            return Err(BenchError::Usage(format!(
                "{} cannot be at both ends of a cable: give --client-device another interface",
                here.interface
            )));
        }
        Ok(Some(Wire::Ports { here, there }))
    }

    /// Whether the client has its own stack and bypasses the kernel's.
    pub(crate) fn embeds(&self) -> bool {
        matches!(self, Wire::Cable | Wire::Vhost | Wire::Ports { .. })
    }
}

impl Server {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        let known = SERVERS.iter().find(|(it, _)| *it == self);
        known.map_or("", |(_, (name, _))| *name)
    }
}

/// The servers of a run, and the wire of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    /// The servers, each once, in the order of the rows.
    pub servers: Vec<Server>,
    /// The engine's wire.
    pub wire: Wire,
}

impl Default for Servers {
    fn default() -> Self {
        Servers { servers: vec![Server::Napkin], wire: Wire::Cable }
    }
}

impl Servers {
    /// Reads the servers and the wire from the settings.
    ///
    /// # Errors
    /// If another server is given together with a wire that only the engine supports.
    pub(crate) fn read(given: &Given) -> Result<Servers, BenchError> {
        let named = |name: &String| SERVERS.iter().find(|it| it.1.0 == name).map(|it| it.0);
        let mut servers: Vec<Server> = given.all("server").iter().filter_map(named).collect();
        servers.sort_unstable();
        servers.dedup();
        let other = servers.iter().find(|it| **it != Server::Napkin);
        let wire = match (Wire::read(given)?, other) {
            (Some(wire), Some(other)) if wire.embeds() => {
                let (what, option) = match wire {
                    Wire::Ports { .. } => ("serves on interfaces", "--device"),
                    Wire::Vhost => ("has virtio rings", "--wire vhost"),
                    _ => ("has a cable", "--wire cable"),
                };
                return Err(BenchError::Usage(format!(
                    "only the engine {what}: leave {option} out, or --server {}",
                    other.name()
                )));
            }
            (Some(wire), _) => wire,
            (None, Some(_)) => Wire::Tap,
            (None, None) => Wire::Cable,
        };
        Ok(Servers { servers, wire })
    }

    /// Whether a server other than the engine takes part; then each row names its server.
    pub fn several(&self) -> bool {
        self.servers != [Server::Napkin]
    }

    /// Returns the subjects to compare under these policies: the engine under each of them, any other server only
    /// under `base`, the kernel's default.
    pub(crate) fn subjects(&self, policies: &[NamedPolicy]) -> Vec<Subject> {
        let base = [NamedPolicy::from(Policy::BASE)];
        let of = |server: Server| {
            let policies = if server == Server::Napkin { policies } else { &base };
            let named = policies.iter().map(move |policy| match self.several() {
                true => NamedPolicy {
                    name: format!("{}/{policy}", server.name()),
                    policy: policy.policy,
                },
                false => policy.clone(),
            });
            named.map(|policy| Subject { server: Some(server), policy }).collect::<Vec<_>>()
        };
        self.servers.iter().copied().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(server: &str, wire: Option<&str>) -> Result<Servers, BenchError> {
        let values = |text: &str| text.split(',').map(str::to_owned).collect();
        let mut given = Given([("server", values(server))].into());
        given.0.extend(wire.map(|wire| ("wire", values(wire))));
        Servers::read(&given)
    }

    fn names(servers: &Servers) -> Vec<String> {
        let policies = NamedPolicy::read("base,suspend20").expect("policies");
        servers.subjects(&policies).into_iter().map(|it| it.policy.name).collect()
    }

    #[test]
    fn the_engine_alone_is_asked_over_a_cable_and_its_rows_are_called_by_their_policies() {
        let alone = read("napkin", None).expect("it reads");
        assert_eq!(
            (alone.wire.clone(), names(&alone)),
            (Wire::Cable, vec!["base".into(), "suspend20".into()])
        );
        assert_eq!(read("napkin", Some("tap")).expect("it reads").wire, Wire::Tap);
    }

    #[test]
    fn two_interfaces_are_the_ends_of_a_cable() {
        let given = |pairs: &[(&'static str, &str)]| {
            let one = |(name, text): &(&'static str, &str)| (*name, vec![(*text).to_owned()]);
            Given(pairs.iter().map(one).collect())
        };
        let both = [("server", "napkin"), ("device", "xdp:eth0:3"), ("client-device", "xdp:eth1")];
        let port = |interface: &str, queue| XdpPort { interface: interface.into(), queue };
        let expected = Wire::Ports { here: port("eth0", 3), there: port("eth1", 0) };
        assert_eq!(Servers::read(&given(&both)).expect("it reads").wire, expected);
        let same = [both[0], both[1], ("client-device", "xdp:eth0:1")];
        let message = Servers::read(&given(&same)).expect_err("one interface").to_string();
        assert!(message.contains("both ends"), "{message}");
        let others = [("server", "kernel"), both[1], both[2]];
        let message = Servers::read(&given(&others)).expect_err("another server").to_string();
        assert!(message.contains("--server kernel"), "{message}");
        for wrong in ["eth0", "xdp:", "xdp::0", "xdp:eth0:", "xdp:eth0:0:all", "xdp:eth0:-1"] {
            assert!(wrong.parse::<XdpPort>().is_err(), "{wrong}");
        }
        let wire = "tap".parse::<XdpPort>().expect_err("it is a wire");
        assert!(wire.contains("--wire tap"), "{wire}");
        let vhost = read("kernel", Some("vhost")).expect_err("no kernel has one").to_string();
        assert!(vhost.contains("--wire vhost"), "{vhost}");
    }

    #[test]
    fn beside_others_it_is_asked_over_tap_and_they_run_as_the_kernel_does_by_itself() {
        let all = read("memcached,napkin,kernel,napkin", None).expect("it reads");
        assert_eq!(all.wire, Wire::Tap);
        let want = ["napkin/base", "napkin/suspend20", "kernel/base", "memcached/base"];
        assert_eq!(names(&all), want);
        assert_eq!(names(&read("kernel", None).expect("it reads")), ["kernel/base"]);
        let message = read("napkin,kernel", Some("cable")).expect_err("no kernel has a cable");
        assert!(message.to_string().contains("--server kernel"), "{message}");
    }
}
