//! Who serves a workload of the engine's, and over which wire it is asked.

use napkin_policy::{NamedPolicy, Policy};

use crate::error::BenchError;
use crate::setting::{Given, Setting};

/// Whose TCP and threads a service runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// The service on the engine.
    Napkin,
    /// The same service on the operating system's sockets.
    Kernel,
    /// Debian's memcached, unmodified.
    Memcached,
}

/// One of what is compared: a policy, and who serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Who serves; `None` where it is said by the workload.
    pub server: Option<Server>,
    /// Under which policy, by the name that its rows have.
    pub policy: NamedPolicy,
}

/// What is between a client and the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    /// Memory, and a client with a stack of its own.
    #[default]
    Cable,
    /// A TAP device, and a client on the operating system's sockets.
    Tap,
    /// AF_XDP on one end of a veth, and a client on the operating system's sockets behind the other.
    Xdp,
}

/// Every server, with a line of what it is; in the order of its rows.
const SERVERS: [(Server, (&str, &str)); 3] = [
    (Server::Napkin, ("napkin", "The engine, with a TCP of its own")),
    (Server::Kernel, ("kernel", "The same service on the operating system's sockets")),
    (Server::Memcached, ("memcached", "Debian's memcached, unmodified, with a worker a queue")),
];

/// The choices of [`SERVER`]: those of a service that only napkin has, and with memcached's program.
pub(crate) const OURS: &[(&str, &str)] = &[SERVERS[0].1, SERVERS[1].1];
pub(crate) const ALL: &[(&str, &str)] = &[SERVERS[0].1, SERVERS[1].1, SERVERS[2].1];

/// `--server`.
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

/// How the engine is asked.
pub(crate) const WIRE: Setting = Setting {
    choices: &[
        ("cable", "Memory: the client has a stack of its own, and costs no kernel's"),
        ("tap", "A TAP device: the client has the operating system's sockets; needs root"),
        ("xdp", "AF_XDP on a veth: the same client; needs root"),
    ],
    ..Setting::engine(
        "wire",
        "WIRE",
        "What is between client and engine. [default: cable; tap beside other servers, which are behind \
         a veth]",
    )
};

impl Server {
    /// As it is named on the command line and in reports.
    pub fn name(self) -> &'static str {
        let known = SERVERS.iter().find(|(it, _)| *it == self);
        known.map_or("", |(_, (name, _))| *name)
    }
}

/// The servers of a run, and the wire of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    /// Each once, in their order.
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
    /// As they are given.
    ///
    /// # Errors
    /// A cable, to which only the engine can be connected, beside another server.
    pub(crate) fn read(given: &Given) -> Result<Servers, BenchError> {
        let named = |name: &String| SERVERS.iter().find(|it| it.1.0 == name).map(|it| it.0);
        let mut servers: Vec<Server> = given.all("server").iter().filter_map(named).collect();
        servers.sort_unstable();
        servers.dedup();
        let other = servers.iter().find(|it| **it != Server::Napkin);
        let wire = match (given.one("wire"), other) {
            (Some("cable"), Some(other)) => {
                return Err(BenchError::Option(format!(
                    "only the engine has a cable: leave --wire cable out, or --server {}",
                    other.name()
                )));
            }
            (Some("xdp"), _) => Wire::Xdp,
            (Some("tap"), _) | (None, Some(_)) => Wire::Tap,
            _ => Wire::Cable,
        };
        Ok(Servers { servers, wire })
    }

    /// Whether anybody but the engine serves: then each row says who.
    pub fn several(&self) -> bool {
        self.servers != [Server::Napkin]
    }

    /// What is compared under these policies: the engine under each of them, any other server as the
    /// kernel delivers by itself.
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
            (alone.wire, names(&alone)),
            (Wire::Cable, vec!["base".into(), "suspend20".into()])
        );
        assert_eq!(read("napkin", Some("tap")).expect("it reads").wire, Wire::Tap);
    }

    #[test]
    fn beside_others_it_is_asked_over_tap_and_they_run_as_the_kernel_does_by_itself() {
        let all = read("memcached,napkin,kernel,napkin", None).expect("it reads");
        assert_eq!(all.wire, Wire::Tap);
        let want = ["napkin/base", "napkin/suspend20", "kernel/base", "memcached/base"];
        assert_eq!(names(&all), want);
        assert_eq!(names(&read("kernel", None).expect("it reads")), ["kernel/base"]);
        let told = read("napkin,kernel", Some("cable")).expect_err("no kernel has a cable");
        assert!(told.to_string().contains("--server kernel"), "{told}");
    }
}
