//! An IP address of ours with its network, from which the other side's address and the next network are derived.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address and its prefix length: `10.99.0.1/24`, `fd00:99::1/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Our IP address on the device.
    pub ip: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl Network {
    /// The address as a number, and the number of host bits.
    fn bits(self) -> (u128, u32) {
        match self.ip {
            IpAddr::V4(ip) => (ip.to_bits().into(), 32u32.saturating_sub(self.prefix.into())),
            IpAddr::V6(ip) => (ip.to_bits(), 128u32.saturating_sub(self.prefix.into())),
        }
    }

    /// An address of the same family from a number; `None` if the number has too many bits.
    fn with(self, bits: u128) -> Option<IpAddr> {
        match self.ip {
            IpAddr::V4(_) => u32::try_from(bits).ok().map(|it| Ipv4Addr::from_bits(it).into()),
            IpAddr::V6(_) => Some(Ipv6Addr::from_bits(bits).into()),
        }
    }

    /// Whether a host of the network may have this address.
    fn is_host(self, address: u128) -> bool {
        let (own, hosts) = self.bits();
        let mask = 1u128.checked_shl(hosts).unwrap_or(0).wrapping_sub(1);
        let host = address & mask;
        // Excluded: the first address (in IPv6, all routers), and the last (broadcast in IPv4; left unused in IPv6
        // as well).
        (address ^ own) & !mask == 0 && host != 0 && host != mask
    }

    /// Whether the address is in this network.
    pub fn contains(self, address: IpAddr) -> bool {
        let other = Network { ip: address, ..self };
        let (own, hosts) = self.bits();
        address.is_ipv4() == self.ip.is_ipv4()
            && (other.bits().0 ^ own).checked_shr(hosts).unwrap_or(0) == 0
    }

    /// Whether it is link-local (`fe80::/10`), and thus the same on every link.
    pub fn is_link_local(self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// The other side's address: the next host address of the network that is none of `ours`, or else the closest
    /// one below; `None` if all are ours.
    pub fn neighbour(self, networks: &[Network]) -> Option<IpAddr> {
        let (own, _) = self.bits();
        let free = |bits: u128| {
            let ip = self.with(bits).filter(|_| self.is_host(bits))?;
            let taken = ip == self.ip || networks.iter().any(|it| it.ip == ip);
            (!taken).then_some(ip)
        };
        // One step more than there are addresses of ours: if this direction has a free one nearby, it is among
        // them.
        let steps = 1..=networks.len() as u128 + 1;
        let next = steps.clone().map(|step| own.wrapping_add(step));
        next.chain(steps.map(|step| own.wrapping_sub(step))).find_map(free)
    }

    /// The same host part in the network that is `places` further; `None` beyond the last one. A link-local network
    /// is the same for all devices.
    pub fn later(self, places: usize) -> Option<Network> {
        if self.is_link_local() {
            return Some(self);
        }
        let (own, hosts) = self.bits();
        let beyond = u128::try_from(places).ok()?.checked_mul(1u128.checked_shl(hosts)?)?;
        let ip = self.with(own.checked_add(beyond)?)?;
        Some(Network { ip, ..self })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let form = || "give an IP address and the length of its prefix, as in 10.99.0.1/24 or fd00:99::1/64";
        let (ip, prefix) = text.split_once('/').ok_or_else(form)?;
        let ip: IpAddr = ip.parse().map_err(|_| form())?;
        let prefix: u8 = prefix.parse().map_err(|_| form())?;
        let most = if ip.is_ipv4() { 30 } else { 126 };
        if !(1..=most).contains(&prefix) {
            return Err(format!(
                "the prefix has 1 to {most} bits: the other side needs an address as well"
            ));
        }
        let network = Network { ip, prefix };
        let usable = match ip {
            IpAddr::V4(ip) => {
                !(ip.is_loopback() || ip.is_multicast() || ip.octets()[0] == 0 || ip.is_broadcast())
            }
            IpAddr::V6(ip) => {
                !(ip.is_loopback() || ip.is_multicast() || ip.to_ipv4_mapped().is_some())
            }
        };
        if !usable || !network.is_host(network.bits().0) {
            return Err(format!(
                "no host can have the address {ip} in its network of {prefix} bits"
            ));
        }
        Ok(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn the_other_side_has_the_next_address() {
        for (own, expected) in [
            ("10.99.0.1/24", "10.99.0.2"),
            ("10.99.0.254/24", "10.99.0.253"),
            ("10.0.0.1/30", "10.0.0.2"),
            ("10.0.0.2/30", "10.0.0.1"),
            ("fd00::1/64", "fd00::2"),
            ("fd00::2/126", "fd00::1"),
        ] {
            let expected: IpAddr = expected.parse().unwrap();
            assert_eq!(network(own).neighbour(&[]), Some(expected), "{own}");
        }
    }

    #[test]
    fn the_other_side_has_none_of_our_addresses() {
        for (own, expected) in [
            (&["10.99.0.1/24", "10.99.0.2/24"][..], Some("10.99.0.3")),
            (&["10.99.0.253/24", "10.99.0.254/24"], Some("10.99.0.252")),
            (&["10.99.0.1/24", "10.99.0.3/24", "10.98.0.2/24"], Some("10.99.0.2")),
            (&["fd00::1/64", "fd00::2/64", "fd00::3/64"], Some("fd00::4")),
            (&["10.0.0.1/30", "10.0.0.2/30"], None),
            (&["fd00::1/126", "fd00::2/126"], None),
        ] {
            let all: Vec<Network> = own.iter().map(|text| network(text)).collect();
            let neighbour = all[0].neighbour(&all).map(|ip| ip.to_string());
            assert_eq!(neighbour.as_deref(), expected, "{own:?}");
        }
    }

    #[test]
    fn every_device_has_its_network() {
        assert_eq!(network("10.99.0.1/24").later(2), Some(network("10.99.2.1/24")));
        assert_eq!(network("223.255.255.1/24").later(1 << 30), None);
        assert_eq!(network("fd00::1/64").later(2), Some(network("fd00:0:0:2::1/64")));
        assert_eq!(network("bfff::1/1").later(usize::MAX), None);
        assert_eq!(network("fe80::1/64").later(2), Some(network("fe80::1/64")));
        assert!(network("fd00::1/64").contains("fd00::7:0:0:1".parse().unwrap()));
        for other in ["fd00:0:0:1::1", "10.99.0.1"] {
            assert!(!network("fd00::1/64").contains(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn an_address_that_no_host_can_have_is_refused() {
        for wrong in [
            "10.99.0.1",
            "10.99.0.0/24",
            "10.99.0.255/24",
            "127.0.0.1/8",
            "224.0.0.1/4",
            "10.0.0.1/31",
            "10.0.0.1/0",
            "0.0.0.1/8",
            "10.0.0.1/x",
            "fd00::1",
            "fd00::/64",
            "fd00::1/127",
            "fd00::1/129",
            "::1/64",
            "::/1",
            "ff02::1/64",
            "::ffff:10.0.0.1/100",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
