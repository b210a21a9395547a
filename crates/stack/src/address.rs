//! The addresses of a host: Ethernet address, VLAN, and IP addresses with their prefixes.
//!
//! There are no routes: a host outside our networks can be answered (its frames carry the source MAC to reply to),
//! but we cannot initiate contact with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of IP addresses of one stack, a link-local one included; smoltcp's interface holds no more.
pub const ADDRESSES: usize = 8;

/// `ff02::1`, the all-nodes multicast group of the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An IP address with its Ethernet address: ours, or a peer's when frames are built for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Ethernet address; a unicast one.
    pub mac: [u8; 6],
    /// IP address; a unicast one.
    pub ip: IpAddr,
    /// Prefix length in bits, 0 to 32 or 128; a larger value counts as the whole address. Unused where the address
    /// only names the destination of a frame.
    pub prefix: u8,
}

impl Address {
    /// An IPv4 address, from its four bytes.
    pub const fn v4(mac: [u8; 6], [a, b, c, d]: [u8; 4], prefix: u8) -> Address {
        Address { mac, ip: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    /// An IPv6 address, from its eight groups.
    pub const fn v6(mac: [u8; 6], [a, b, c, d, e, f, g, h]: [u16; 8], prefix: u8) -> Address {
        Address { mac, ip: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix }
    }

    /// The IPv6 link-local address derived from an Ethernet address (EUI-64, RFC 4291, appendix A).
    pub const fn link_local(mac: [u8; 6]) -> Address {
        let [a, b, c, d, e, f] = mac;
        let octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        Address { mac, ip: IpAddr::V6(Ipv6Addr::from_octets(octets)), prefix: 64 }
    }

    /// An address for a frame's source or destination, where the prefix is not needed.
    pub(crate) const fn single(mac: [u8; 6], ip: IpAddr) -> Address {
        Address { mac, ip, prefix: u8::MAX }
    }

    /// Whether `other` is in our own network; true for our own address too.
    pub const fn on_link(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(ip), IpAddr::V4(other)) => {
                (ip.to_bits() ^ other.to_bits()) & v4_mask(self.prefix) == 0
            }
            (IpAddr::V6(ip), IpAddr::V6(other)) => {
                let host = match self.prefix {
                    0 => u128::MAX,
                    1..=127 => u128::MAX >> self.prefix,
                    _ => 0,
                };
                (ip.to_bits() ^ other.to_bits()) & !host == 0
            }
            _ => false,
        }
    }

    /// Whether `other` is a broadcast address for us: the limited broadcast address, or the directed one of our
    /// IPv4 network. /31 and /32 networks have no directed broadcast (RFC 3021); IPv6 has none at all.
    pub const fn is_broadcast(&self, other: IpAddr) -> bool {
        let (IpAddr::V4(ip), IpAddr::V4(other)) = (self.ip, other) else { return false };
        let (bits, mask) = (other.to_bits(), v4_mask(self.prefix));
        bits == u32::MAX || (self.prefix < 31 && bits == (ip.to_bits() & mask) | !mask)
    }
}

/// Netmask of an IPv4 prefix.
const fn v4_mask(prefix: u8) -> u32 {
    match prefix {
        0 => 0,
        1..=31 => u32::MAX << (32 - prefix),
        _ => u32::MAX,
    }
}

/// Why a set of addresses cannot be a stack's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// More than [`ADDRESSES`].
    #[error("{0} is one address too many: a stack has at most {ADDRESSES}")]
    TooMany(IpAddr),
    /// The address is already in the list.
    #[error("{0} is given twice")]
    Twice(IpAddr),
    /// The address is unspecified, loopback, multicast, broadcast or IPv4-mapped.
    #[error("no host can have the address {0}")]
    NoHost(IpAddr),
    /// VLAN id out of range: 0 means no VLAN and 4095 is reserved (IEEE 802.1Q).
    #[error("{0} is no VLAN: give 1 to 4094")]
    Vlan(u16),
}

/// A stack's addresses: one Ethernet address, an optional VLAN, and the IP addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    mac: [u8; 6],
    vlan: Option<u16>,
    list: Vec<Address>,
}

impl Addresses {
    /// A host without an IP address, in no VLAN.
    pub const fn new(mac: [u8; 6]) -> Addresses {
        Addresses { mac, vlan: None, list: Vec::new() }
    }

    /// Adds an IP address whose network has a prefix of `prefix` bits.
    ///
    /// # Errors
    /// If there are already [`ADDRESSES`], the address is already in the list, or it cannot be a single host's.
    pub fn with(mut self, ip: IpAddr, prefix: u8) -> Result<Addresses, AddressError> {
        if !can_be_host(ip) {
            return Err(AddressError::NoHost(ip));
        }
        if self.is_ours(ip) {
            return Err(AddressError::Twice(ip));
        }
        if self.list.len() >= ADDRESSES {
            return Err(AddressError::TooMany(ip));
        }
        self.list.push(Address { mac: self.mac, ip, prefix });
        Ok(self)
    }

    /// Puts the host in a VLAN: only frames with its tag are received, and every frame sent carries it.
    ///
    /// # Errors
    /// If `vlan` is not 1 to 4094.
    pub fn in_vlan(self, vlan: u16) -> Result<Addresses, AddressError> {
        match vlan {
            1..=4_094 => Ok(Addresses { vlan: Some(vlan), ..self }),
            _ => Err(AddressError::Vlan(vlan)),
        }
    }

    /// The Ethernet address.
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The VLAN, 1 to 4094; `None` for untagged frames and priority tags (VLAN 0).
    pub const fn vlan(&self) -> Option<u16> {
        self.vlan
    }

    /// The IP addresses, in the order in which they were added.
    pub fn list(&self) -> &[Address] {
        &self.list
    }

    /// Whether an IP address is one of ours.
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.list.iter().any(|own| own.ip == ip)
    }

    /// Whether an IP address is in one of our networks.
    pub fn on_link(&self, ip: IpAddr) -> bool {
        self.list.iter().any(|own| own.on_link(ip))
    }

    /// Whether an address is a broadcast address of one of our IPv4 networks.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        self.list.iter().any(|own| own.is_broadcast(ip))
    }

    /// Whether an address is ours or a broadcast address of our networks, so that no other host can have it.
    pub(crate) fn claims(&self, ip: IpAddr) -> bool {
        self.list.iter().any(|own| own.ip == ip || own.is_broadcast(ip))
    }

    /// Selects the source address for packets to `ip`: one in the same network; failing that, the first one of the
    /// same family. A link-local address comes last, because a host beyond the link could not answer it.
    pub fn towards(&self, ip: IpAddr) -> Option<Address> {
        let family = || self.list.iter().filter(|own| own.ip.is_ipv4() == ip.is_ipv4());
        { family() }
            .find(|own| own.on_link(ip))
            .or_else(|| family().find(|own| !is_link_local(own.ip)))
            .or_else(|| family().next())
            .copied()
    }

    /// Whether there is an IPv6 address.
    pub fn has_ipv6(&self) -> bool {
        self.list.iter().any(|own| own.ip.is_ipv6())
    }

    /// Whether we are a member of this group: all nodes, or the solicited-node group of one of our addresses.
    pub(crate) fn in_group(&self, group: Ipv6Addr) -> bool {
        let solicited = |own: &Address| matches!(own.ip, IpAddr::V6(ip) if solicited(ip) == group);
        (group == ALL_NODES && self.has_ipv6()) || self.list.iter().any(solicited)
    }

    /// Whether an Ethernet multicast address maps to a group that we are a member of.
    pub(crate) fn in_group_of(&self, mac: [u8; 6]) -> bool {
        let asked =
            |own: &Address| matches!(own.ip, IpAddr::V6(ip) if group_mac(solicited(ip)) == mac);
        (mac == group_mac(ALL_NODES) && self.has_ipv6()) || self.list.iter().any(asked)
    }
}

impl From<Address> for Addresses {
    /// A host with this one IP address, in no VLAN.
    fn from(address: Address) -> Addresses {
        Addresses { mac: address.mac, vlan: None, list: vec![address] }
    }
}

/// Whether an address can be a single host's and appear on the wire as a source.
pub(crate) const fn can_be_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
        }
        // IPv4-mapped addresses exist only in socket APIs, never on the wire.
        IpAddr::V6(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
                && ip.to_ipv4_mapped().is_none()
        }
    }
}

/// Whether an address is link-local.
pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The solicited-node multicast address of an IPv6 address (RFC 4291, 2.7.1).
pub(crate) const fn solicited(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., d, e, f] = ip.octets();
    Ipv6Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, d, e, f])
}

/// The Ethernet multicast address of an IPv6 group (RFC 2464, 7).
pub(crate) const fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., c, d, e, f] = group.octets();
    [0x33, 0x33, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn address(prefix: u8) -> Address {
        Address::v4(MAC, [10, 1, 2, 3], prefix)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn a_24_ends_at_its_last_octet() {
        let us = address(24);
        assert!(us.on_link(ip("10.1.2.200")));
        assert!(!us.on_link(ip("10.1.3.3")));
        assert!(us.is_broadcast(ip("10.1.2.255")));
        assert!(us.is_broadcast(ip("255.255.255.255")));
        assert!(!us.is_broadcast(ip("10.1.2.254")));
    }

    #[test]
    fn a_network_of_two_has_no_address_for_all() {
        for last in ["10.1.2.2", "10.1.2.3"] {
            assert!(!address(31).is_broadcast(ip(last)));
        }
        assert!(address(30).is_broadcast(ip("10.1.2.3")));
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        assert!(address(0).on_link(ip("192.0.2.1")));
        for prefix in [32, 33, 255] {
            assert!(address(prefix).on_link(ip("10.1.2.3")));
            assert!(!address(prefix).on_link(ip("10.1.2.2")));
            assert!(!address(prefix).is_broadcast(ip("10.1.2.3")));
        }
        let long = |prefix| Address::v6(MAC, [0xfd00, 0, 0, 0, 0, 0, 0, 1], prefix);
        assert!(long(0).on_link(ip("2001:db8::1")));
        for prefix in [128, 129, 255] {
            assert!(long(prefix).on_link(ip("fd00::1")));
            assert!(!long(prefix).on_link(ip("fd00::")));
        }
        assert!(long(127).on_link(ip("fd00::")));
        assert!(!long(64).on_link(ip("fd00:0:0:1::1")));
    }

    #[test]
    fn a_link_local_address_comes_from_the_ethernet_address() {
        // RFC 4291's own example, in the form of RFC 2464.
        let made = Address::link_local([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(made.ip, ip("fe80::3656:78ff:fe9a:bcde"));
        assert_eq!(
            group_mac(solicited("fe80::1:800:200e:8c6c".parse().unwrap())),
            [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]
        );
    }

    #[test]
    fn one_speaks_from_an_address_that_can_be_answered() {
        let us = Addresses::from(Address::link_local(MAC));
        assert_eq!(
            us.towards(ip("2001:db8::9")),
            Some(Address::link_local(MAC)),
            "better than none"
        );
        let us = us.with(ip("10.0.0.1"), 24).unwrap().with(ip("fd00::1"), 64).unwrap();
        let us = us.with(ip("2001:db8::1"), 64).unwrap();
        let from = |to: &str| us.towards(ip(to)).map(|own| own.ip);
        assert_eq!(from("fe80::9"), Some(Address::link_local(MAC).ip));
        assert_eq!(from("2001:db8::9"), Some(ip("2001:db8::1")));
        assert_eq!(from("2001:db9::9"), Some(ip("fd00::1")));
        assert_eq!(from("192.0.2.1"), Some(ip("10.0.0.1")));
        assert_eq!(Addresses::from(address(24)).towards(ip("fd00::1")), None);
    }

    #[test]
    fn what_no_stack_can_be_is_refused() {
        for nobody in
            ["::", "::1", "ff02::1", "::ffff:10.0.0.1", "0.0.0.0", "127.0.0.1", "224.0.0.1"]
        {
            let refused = Addresses::new(MAC).with(ip(nobody), 64);
            assert_eq!(refused, Err(AddressError::NoHost(ip(nobody))));
        }
        let mut us = Addresses::new(MAC);
        for last in 1..=ADDRESSES as u128 {
            let ip = IpAddr::V6(Ipv6Addr::from_bits(0xfd00 << 112 | last));
            us = us.with(ip, 64).unwrap();
            assert_eq!(us.clone().with(ip, 48), Err(AddressError::Twice(ip)));
        }
        assert_eq!(us.clone().with(ip("fd00::9"), 64), Err(AddressError::TooMany(ip("fd00::9"))));
        for vlan in [0, 4_095, u16::MAX] {
            assert_eq!(us.clone().in_vlan(vlan), Err(AddressError::Vlan(vlan)));
        }
        assert_eq!(us.in_vlan(4_094).unwrap().vlan(), Some(4_094));
    }

    #[test]
    fn one_is_in_the_groups_of_ones_addresses() {
        let us = Addresses::from(Address::v6(MAC, [0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3456], 64));
        for group in ["ff02::1", "ff02::1:ff12:3456"] {
            let group: Ipv6Addr = group.parse().unwrap();
            assert!(us.in_group(group) && us.in_group_of(group_mac(group)));
            let none = Addresses::from(address(24));
            assert!(!none.in_group(group) && !none.in_group_of(group_mac(group)));
        }
        for other in ["ff02::2", "ff02::1:ff12:3457", "ff05::1:ff12:3456"] {
            assert!(!us.in_group(other.parse().unwrap()), "{other}");
        }
    }
}
