//! A fresh smoltcp interface for each connection's first segment.
//!
//! A smoltcp interface draws initial sequence numbers from a generator with public constants, whose state two or
//! three numbers reveal: a host that has connected a few times could predict the next ones and spoof hosts whose
//! answers it never sees. So each number is drawn from an interface of its own, seeded with a keyed hash; no number
//! reveals another.

use std::hash::{BuildHasher, Hash, RandomState};

use smoltcp::iface::{Config, Interface};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::link::Link;
use crate::Addresses;

/// Creates interfaces, each with a seed of its own.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    key: RandomState,
    made: u64,
}

impl Interfaces {
    /// Creates an interface for one draw of an initial sequence number.
    pub(super) fn make(&mut self, of: impl Hash, own: &Addresses, link: &mut Link) -> Interface {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = self.seed(of);
        let mut interface = Interface::new(config, &mut link.idle(), Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            for own in own.list() {
                let longest = if own.ip.is_ipv4() { 32 } else { 128 };
                // A stack has at most as many addresses as fit.
                let _ = addresses.push(IpCidr::new(own.ip.into(), own.prefix.min(longest)));
            }
        });
        interface
    }

    /// A fresh seed even for a flow seen before, so that its earlier numbers do not predict the next one.
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
        let (one, other) = (seeds(Interfaces::default()), seeds(Interfaces::default()));
        assert_eq!(one.chain(other).collect::<HashSet<_>>().len(), 2_000);
    }
}
