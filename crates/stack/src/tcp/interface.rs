//! smoltcp's interface, made anew for each connection's first segment.
//!
//! An interface draws initial sequence numbers from a generator whose constants are known, and whose state two or
//! three of them give away: a host that has connected a few times could tell the next ones, and speak for hosts whose
//! answers it never sees. So each is drawn from an interface of its own, whose seed is a keyed hash: no number
//! tells of another.

use std::hash::{BuildHasher, Hash, RandomState};

use smoltcp::iface::{Config, Interface};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::link::Link;
use crate::Addresses;

/// Makes interfaces, each with a seed of its own.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    key: RandomState,
    made: u64,
}

impl Interfaces {
    /// One to draw a number from, once.
    pub(super) fn make(&mut self, of: impl Hash, ours: &Addresses, link: &mut Link) -> Interface {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = self.seed(of);
        let mut interface = Interface::new(config, &mut link.idle(), Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            for ours in ours.list() {
                let longest = if ours.ip.is_ipv4() { 32 } else { 128 };
                // A stack has no more of them than there is room for.
                let _ = addresses.push(IpCidr::new(ours.ip.into(), ours.prefix.min(longest)));
            }
        });
        interface
    }

    /// Another one for the same flow, too: where it begins again, its numbers are not to be known from before.
    fn seed(&mut self, of: impl Hash) -> u64 {
        self.made += 1;
        self.key.hash_one((of, self.made))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_connections_have_the_same_seed_and_no_worker_has_another_s() {
        let seeds = |mut of: Interfaces| (0..1_000).map(move |flow| of.seed(flow % 10));
        let (ours, theirs) = (seeds(Interfaces::default()), seeds(Interfaces::default()));
        assert_eq!(ours.chain(theirs).collect::<HashSet<_>>().len(), 2_000);
    }
}
