//! Who on our network has which Ethernet address.
//!
//! Learned on the packet path by any queue and read by any sender, so every entry is one atomic
//! word and nothing is ever locked or allocated. The table is direct-mapped: the low 8 bits of a
//! host's number choose the entry, the next 16 are stored beside the 48 bits of its Ethernet
//! address. Host numbers therefore have 24 bits: in a network wider than /8 only hosts that agree
//! with us in the first 8 bits are remembered. Of two hosts with the same entry the later one stays.
//!
//! Entries do not age. A host that changes its Ethernet address says so with its next ARP request.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Address;

/// Entries of the table, and the most neighbours that are known at once.
pub const NEIGHBOURS: usize = 256;

const TAG_SHIFT: u32 = 48;

pub(crate) struct Neighbours {
    ours: Address,
    /// Tag in the upper 16 bits, Ethernet address in the lower 48; 0 is an empty entry, for the
    /// all-zero Ethernet address is never learned.
    entries: [AtomicU64; NEIGHBOURS],
}

impl Neighbours {
    pub(crate) fn new(ours: Address) -> Neighbours {
        Neighbours { ours, entries: [const { AtomicU64::new(0) }; NEIGHBOURS] }
    }

    /// Remembers a neighbour; what cannot be one (a group's Ethernet address, a host of another
    /// network, ourselves) is ignored.
    pub(crate) fn learn(&self, ipv4: Ipv4Addr, mac: [u8; 6]) {
        let group = mac[0] & 1 != 0;
        if group || mac == [0; 6] {
            return;
        }
        if let Some((entry, tag)) = self.place(ipv4) {
            let word = tag << TAG_SHIFT | to_word(mac);
            // Most packets say what is known already; reading first keeps the line shared.
            if entry.load(Ordering::Relaxed) != word {
                entry.store(word, Ordering::Relaxed);
            }
        }
    }

    /// The Ethernet address of a neighbour, if known.
    pub(crate) fn find(&self, ipv4: Ipv4Addr) -> Option<[u8; 6]> {
        let (entry, tag) = self.place(ipv4)?;
        let word = entry.load(Ordering::Relaxed);
        let mac = word & ((1 << TAG_SHIFT) - 1);
        (mac != 0 && word >> TAG_SHIFT == tag).then(|| from_word(mac))
    }

    /// How many neighbours are known.
    pub(crate) fn known(&self) -> usize {
        self.entries.iter().filter(|entry| entry.load(Ordering::Relaxed) != 0).count()
    }

    /// Where a host's entry is, with the tag that makes it this host's and no other's.
    fn place(&self, ipv4: Ipv4Addr) -> Option<(&AtomicU64, u64)> {
        let ours = self.ours.ipv4;
        if !self.ours.on_link(ipv4) || self.ours.is_broadcast(ipv4) || ipv4 == ours {
            return None;
        }
        if ipv4.octets()[0] != ours.octets()[0] {
            return None;
        }
        let [_, high, middle, low] = ipv4.octets();
        let tag = u64::from(u16::from_be_bytes([high, middle]));
        Some((&self.entries[usize::from(low)], tag))
    }
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours").field("known", &self.known()).finish_non_exhaustive()
    }
}

fn to_word(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn from_word(word: u64) -> [u8; 6] {
    let [_, _, mac @ ..] = word.to_be_bytes();
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(prefix: u8) -> Neighbours {
        let ipv4 = Ipv4Addr::new(10, 0, 0, 1);
        Neighbours::new(Address { mac: [2, 0, 0, 0, 0, 1], ipv4, prefix })
    }

    #[test]
    fn what_was_learned_is_found_and_the_latest_counts() {
        let table = table(16);
        let peer = Ipv4Addr::new(10, 0, 7, 9);
        assert_eq!(table.find(peer), None);
        table.learn(peer, [2, 1, 2, 3, 4, 5]);
        assert_eq!(table.find(peer), Some([2, 1, 2, 3, 4, 5]));
        table.learn(peer, [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(table.find(peer), Some([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]));
        assert_eq!(table.known(), 1);
    }

    #[test]
    fn two_hosts_of_one_entry_are_never_mistaken_for_each_other() {
        let table = table(16);
        table.learn(Ipv4Addr::new(10, 0, 7, 9), [2, 0, 0, 0, 0, 7]);
        assert_eq!(table.find(Ipv4Addr::new(10, 0, 8, 9)), None);
        table.learn(Ipv4Addr::new(10, 0, 8, 9), [2, 0, 0, 0, 0, 8]);
        assert_eq!(table.find(Ipv4Addr::new(10, 0, 7, 9)), None);
        assert_eq!(table.find(Ipv4Addr::new(10, 0, 8, 9)), Some([2, 0, 0, 0, 0, 8]));
    }

    #[test]
    fn strangers_groups_and_ourselves_are_not_learned() {
        let wide = table(0);
        wide.learn(Ipv4Addr::new(11, 0, 0, 9), [2, 0, 0, 0, 0, 9]);
        let table = table(24);
        table.learn(Ipv4Addr::new(10, 0, 1, 9), [2, 0, 0, 0, 0, 9]);
        table.learn(Ipv4Addr::new(10, 0, 0, 1), [2, 0, 0, 0, 0, 9]);
        table.learn(Ipv4Addr::new(10, 0, 0, 255), [2, 0, 0, 0, 0, 9]);
        table.learn(Ipv4Addr::new(10, 0, 0, 9), [0xff; 6]);
        assert_eq!(table.known(), 0);
        table.learn(Ipv4Addr::new(10, 0, 0, 9), [0; 6]);
        assert_eq!((wide.known(), table.known()), (0, 0));
    }

    #[test]
    fn a_flood_of_neighbours_stays_within_the_table() {
        let table = table(8);
        for host in 2..100_000u32 {
            table.learn(Ipv4Addr::from_bits(10 << 24 | host), [2, 0, 0, 0, 0, 1]);
        }
        assert!(table.known() <= NEIGHBOURS);
    }
}
