//! Traffic of a device that must not be delayed by mistake: the default route, and the connection of the
//! terminal from which the device is changed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use napkin_kernel::netlink::{NetlinkError, Route};
use napkin_kernel::sysfs::{DeviceFile, Sysfs};
use napkin_os::procfs::ThreadStat;
use napkin_policy::Policy;

/// The maximum number of ancestors of this process that are inspected.
const MAX_ANCESTORS: usize = 64;

/// A dependency on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifeline {
    /// A default route uses it.
    DefaultRoute,
    /// This terminal's connection arrives at this address of the device (`SSH_CONNECTION`).
    Terminal(IpAddr),
}

impl std::fmt::Display for Lifeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lifeline::DefaultRoute => f.write_str("the default route"),
            Lifeline::Terminal(address) => {
                write!(f, "this terminal's own connection, at {address}")
            }
        }
    }
}

/// Whether a policy can delay packets of a device that the kernel would otherwise deliver at once.
pub fn can_delay(policy: &Policy) -> bool {
    policy.instance.deferral_span() > 0 || policy.instance.gro_flush_timeout > 0
}

/// Returns what depends on a device of the calling thread's network namespace, or on a device above it: a bond,
/// a bridge or a team whose port it is, a VLAN on it.
///
/// # Errors
/// If the kernel does not list links, routes and addresses.
pub fn lifelines(ifname: &str) -> Result<Vec<Lifeline>, NetlinkError> {
    let mut route = Route::open()?;
    let ifname = route.link(ifname)?.name;
    let links = route.links()?;
    // Where sysfs does not show this namespace, only the device itself is considered.
    let all = Sysfs::open(&links).ok().and_then(|sysfs| {
        let file = sysfs.file(&ifname, DeviceFile::Threaded)?;
        Some(with_uppers(file.parent()?.parent()?, &ifname))
    });
    let all = all.unwrap_or_else(|| BTreeSet::from([ifname]));
    let one_of_all =
        |ifindex: u32| links.iter().any(|link| link.ifindex == ifindex && all.contains(&link.name));
    let mut found = Vec::new();
    if route.defaults()?.into_iter().any(one_of_all) {
        found.push(Lifeline::DefaultRoute);
    }
    if let Some(address) = terminal()
        && route.addresses()?.iter().any(|it| it.ip == address && one_of_all(it.ifindex))
    {
        found.push(Lifeline::Terminal(address));
    }
    Ok(found)
}

/// Returns a device with all devices above it. `net` is sysfs's `class/net`, where a device's directory has a
/// link `upper_NAME` for each device directly above it.
fn with_uppers(net: &Path, ifname: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut next = vec![ifname.to_owned()];
    while let Some(name) = next.pop() {
        if all.contains(&name) {
            continue;
        }
        let entries = std::fs::read_dir(net.join(&name)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        next.extend(names.filter_map(|name| name.strip_prefix("upper_").map(str::to_owned)));
        all.insert(name);
    }
    all
}

/// The address of this host at which the terminal's connection arrives. `sudo` drops `SSH_CONNECTION`; the
/// shell above still has it.
fn terminal() -> Option<IpAddr> {
    let mut pid = std::process::id().cast_signed();
    for _ in 0..MAX_ANCESTORS {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = bytes.split(|byte| *byte == 0);
        if let Some(value) = variables.find_map(|it| it.strip_prefix(b"SSH_CONNECTION=")) {
            return server_of(&String::from_utf8_lossy(value));
        }
        pid = Some(ThreadStat::of_process(pid)?.ppid).filter(|it| *it > 0)?;
    }
    None
}

/// Returns the server's address in `SSH_CONNECTION`, which holds client, client port, server, server port.
fn server_of(connection: &str) -> Option<IpAddr> {
    let address = connection.split_ascii_whitespace().nth(2)?;
    // A link-local address is followed by `%` and the device.
    address.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_carries_what_its_bond_and_the_bridge_above_carry() {
        let net = std::env::temp_dir().join(format!("napkin-lifeline-{}", std::process::id()));
        let devices: [(&str, &[&str]); 5] = [
            ("eth0", &["mtu", "upper_bond0", "upper_eth0.5"]),
            ("eth1", &["upper_bond0"]),
            ("bond0", &["lower_eth0", "lower_eth1", "upper_br0"]),
            // The kernel permits no loops; the search must end all the same.
            ("br0", &["lower_bond0", "upper_eth0"]),
            ("eth0.5", &["lower_eth0"]),
        ];
        for (device, files) in devices {
            std::fs::create_dir_all(net.join(device)).expect("made");
            for file in files {
                std::fs::write(net.join(device).join(file), "").expect("written");
            }
        }
        let all = |ifname: &str| with_uppers(&net, ifname).into_iter().collect::<Vec<_>>();
        assert_eq!(all("eth1"), ["bond0", "br0", "eth0", "eth0.5", "eth1"]);
        assert_eq!(all("eth0.5"), ["eth0.5"]);
        assert_eq!(all("lo"), ["lo"], "one that sysfs does not show");
        std::fs::remove_dir_all(&net).expect("it is ours");
    }

    #[test]
    fn the_terminal_s_address_is_the_server_s_end() {
        assert_eq!(server_of("192.0.2.7 50000 192.0.2.1 22"), Some([192, 0, 2, 1].into()));
        assert_eq!(server_of("fe80::7%eth0 50000 fe80::1%eth0 22"), "fe80::1".parse().ok());
        assert_eq!(server_of(""), None);
    }

    #[test]
    fn deferral_can_delay_and_who_polls_cannot() {
        let policy = |text: &str| text.parse::<Policy>().expect(text);
        for (text, delays) in
            [("base", false), ("threaded", false), ("defer20", true), ("suspend20", true)]
        {
            assert_eq!(can_delay(&policy(text)), delays, "{text}");
        }
    }
}
