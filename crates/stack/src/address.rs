//! Who a host is: its Ethernet address, its IPv4 address and how far its own network reaches.
//!
//! One address a stack. There are no routes: a host outside the prefix can be answered (its frames
//! say where they came from) but not called upon first.

use std::net::Ipv4Addr;

/// The identity of one end: ours, or a peer's when frames are built for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Ethernet address; a unicast one.
    pub mac: [u8; 6],
    /// IPv4 address; a unicast one.
    pub ipv4: Ipv4Addr,
    /// Bits of `ipv4` that name the network, 0 to 32; more than 32 counts as 32. Not looked at
    /// where an address only says whom a frame is for.
    pub prefix: u8,
}

impl Address {
    /// The network's mask: ones where two hosts of this network agree.
    pub const fn mask(&self) -> u32 {
        match self.prefix {
            0 => 0,
            1..=31 => u32::MAX << (32 - self.prefix),
            _ => u32::MAX,
        }
    }

    /// Whether `other` is a host of our own network, this one included.
    pub const fn on_link(&self, other: Ipv4Addr) -> bool {
        (self.ipv4.to_bits() ^ other.to_bits()) & self.mask() == 0
    }

    /// Whether `other` addresses every host of our network: the limited broadcast address, or the
    /// network's own, which networks of fewer than four addresses do not have (RFC 3021).
    pub const fn is_broadcast(&self, other: Ipv4Addr) -> bool {
        let bits = other.to_bits();
        bits == u32::MAX
            || (self.prefix < 31 && bits == (self.ipv4.to_bits() & self.mask()) | !self.mask())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(prefix: u8) -> Address {
        Address { mac: [2, 0, 0, 0, 0, 1], ipv4: Ipv4Addr::new(10, 1, 2, 3), prefix }
    }

    #[test]
    fn a_24_ends_at_its_last_octet() {
        let us = address(24);
        assert!(us.on_link(Ipv4Addr::new(10, 1, 2, 200)));
        assert!(!us.on_link(Ipv4Addr::new(10, 1, 3, 3)));
        assert!(us.is_broadcast(Ipv4Addr::new(10, 1, 2, 255)));
        assert!(us.is_broadcast(Ipv4Addr::BROADCAST));
        assert!(!us.is_broadcast(Ipv4Addr::new(10, 1, 2, 254)));
    }

    #[test]
    fn a_network_of_two_has_no_address_for_all() {
        for last in [2, 3] {
            assert!(!address(31).is_broadcast(Ipv4Addr::new(10, 1, 2, last)));
        }
        assert!(address(30).is_broadcast(Ipv4Addr::new(10, 1, 2, 3)));
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        assert!(address(0).on_link(Ipv4Addr::new(192, 0, 2, 1)));
        for prefix in [32, 33, 255] {
            assert!(address(prefix).on_link(Ipv4Addr::new(10, 1, 2, 3)));
            assert!(!address(prefix).on_link(Ipv4Addr::new(10, 1, 2, 2)));
            assert!(!address(prefix).is_broadcast(Ipv4Addr::new(10, 1, 2, 3)));
        }
    }
}
