//! What a device carries that must not be delayed by mistake: the default route, and the connection of the
//! terminal from which it is changed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use napkin_kernel::netlink::{NetlinkError, Route};
use napkin_kernel::sysfs::{DeviceFile, Sysfs};
use napkin_policy::Policy;

/// Ancestors of this process that are looked at.
const ANCESTORS: usize = 64;

/// What hangs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifeline {
    /// A default route leads through it.
    DefaultRoute,
    /// This terminal's connection comes in at this address of it (`SSH_CONNECTION`).
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

/// Whether a policy can keep packets of a device waiting that it would have delivered at once.
pub fn can_delay(policy: &Policy) -> bool {
    policy.instance.deferral_span() > 0 || policy.instance.gro_flush_timeout > 0
}

/// What hangs on a device of the calling thread's network namespace, or on one that stands above it: a
/// bond, a bridge or a team whose port it is, a VLAN of it.
///
/// # Errors
/// If the kernel does not list addresses.
pub fn lifelines(ifname: &str) -> Result<Vec<Lifeline>, NetlinkError> {
    let mut route = Route::open()?;
    let ifname = route.link(ifname)?.name;
    let links = route.links()?;
    // Where sysfs does not show this namespace, it is the device alone.
    let all = Sysfs::open(&links).ok().and_then(|sysfs| {
        let file = sysfs.file(&ifname, DeviceFile::Threaded)?;
        Some(with_uppers(file.parent()?.parent()?, &ifname))
    });
    let all = all.unwrap_or_else(|| BTreeSet::from([ifname]));
    let file = |name: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
    };
    let mut found = Vec::new();
    if defaults(&file("route"), &file("ipv6_route")).any(|it| all.contains(it)) {
        found.push(Lifeline::DefaultRoute);
    }
    let one_of_all =
        |ifindex: u32| links.iter().any(|link| link.ifindex == ifindex && all.contains(&link.name));
    if let Some(address) = terminal()
        && route.addresses()?.iter().any(|it| it.ip == address && one_of_all(it.ifindex))
    {
        found.push(Lifeline::Terminal(address));
    }
    Ok(found)
}

/// A device with all that stand above it. `net` is sysfs's `class/net`, where a device's directory has a
/// link `upper_NAME` for each that stands on it.
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

/// The devices of default routes: `/proc/net/route` and `/proc/net/ipv6_route`.
fn defaults<'a>(four: &'a str, six: &'a str) -> impl Iterator<Item = &'a str> {
    let four = four.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Device, destination, ..., mask.
        let default = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
        default.then(|| fields[0])
    });
    let six = six.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Destination, its length, ..., device; the kernel's own entry that refuses is on lo.
        let default = fields.get(1) == Some(&"00");
        fields.get(9).copied().filter(|device| default && *device != "lo")
    });
    four.chain(six)
}

/// The address of this host at which the terminal's connection comes in. `sudo` drops the variable that
/// says it; the shell above still has it.
fn terminal() -> Option<IpAddr> {
    let mut pid = std::process::id();
    for _ in 0..ANCESTORS {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = bytes.split(|byte| *byte == 0);
        if let Some(value) = variables.find_map(|it| it.strip_prefix(b"SSH_CONNECTION=")) {
            return server_of(&String::from_utf8_lossy(value));
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may have blanks and brackets in it.
        let (_, rest) = stat.rsplit_once(')')?;
        pid = rest.split_ascii_whitespace().nth(1)?.parse().ok().filter(|it| *it > 0)?;
    }
    None
}

/// The server's end of `SSH_CONNECTION`: client, its port, server, its port.
fn server_of(connection: &str) -> Option<IpAddr> {
    let address = connection.split_ascii_whitespace().nth(2)?;
    // A link's own address has the device behind it.
    address.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_s_device_is_found() {
        let four = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                    eth1\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
                    eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let zero = "0".repeat(32);
        let six = format!(
            "{zero} 00 {zero} 00 fe80 00000400 1 0 00000003 eth2\n\
             {zero} 00 {zero} 00 {zero} ffffffff 1 0 00200200 lo\n\
             fe80{} 40 {zero} 00 {zero} 00000100 1 0 00000001 eth3\n",
            "0".repeat(28)
        );
        assert_eq!(defaults(four, &six).collect::<Vec<_>>(), ["eth0", "eth2"]);
        assert_eq!(defaults("", "garbage 00").count(), 0);
    }

    #[test]
    fn a_port_carries_what_its_bond_and_the_bridge_above_carry() {
        let net = std::env::temp_dir().join(format!("napkin-lifeline-{}", std::process::id()));
        let devices: [(&str, &[&str]); 5] = [
            ("eth0", &["mtu", "upper_bond0", "upper_eth0.5"]),
            ("eth1", &["upper_bond0"]),
            ("bond0", &["lower_eth0", "lower_eth1", "upper_br0"]),
            // The kernel has no circles; nobody is caught in one either way.
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
