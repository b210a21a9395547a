//! The neighbour table: Ethernet addresses of hosts on our networks.
//!
//! Any queue writes it on the packet path and any sender reads it, so it takes no lock and allocates nothing. Each
//! entry has a version, which is odd during a write (a seqlock). Nothing waits for a writer: a concurrent update is
//! dropped, since the neighbour will announce itself again, and a concurrent lookup finds the neighbour unknown.
//!
//! Peers can claim any address, and an IPv6 network has more of them than any table can hold. The table therefore
//! has a fixed size, a secret hash key selects the entries of a host, and unsolicited information never displaces a
//! host that the application has resolved ([`Stack::resolve`](crate::Stack::resolve)): a flood only displaces
//! itself. Answers need no entry at all.
//!
//! Entries do not age. A host whose Ethernet address changes announces that with its next ARP request or neighbour
//! solicitation to us, with an ARP announcement (gratuitous ARP), or with an advertisement that has the override
//! flag. Announcements to all hosts update existing entries and add none.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use crate::Addresses;
use crate::address::can_be_host;

/// Number of entries, and so the maximum number of known neighbours.
pub const NEIGHBOURS: usize = 256;

/// Associativity: the number of entries in which a host may be stored.
const WAYS: usize = 4;

/// Flag in an entry's word: the application has asked for this host. The low 48 bits are the Ethernet address, 0
/// while unknown; a word of 0 is an empty entry.
const ASKED: u64 = 1 << 63;
const MAC: u64 = (1 << 48) - 1;

pub(crate) struct Neighbours {
    local: Addresses,
    key: RandomState,
    entries: [Entry; NEIGHBOURS],
    /// Rotates the choice of the entry to replace.
    turn: AtomicUsize,
}

#[derive(Default)]
struct Entry {
    version: AtomicU64,
    ip: [AtomicU64; 2],
    word: AtomicU64,
}

impl Entry {
    /// The host and the word of the entry; `None` while it is being written.
    fn read(&self) -> Option<(u128, u64)> {
        let version = self.version.load(Ordering::Acquire);
        let [high, low] = [0, 1].map(|half: usize| self.ip[half].load(Ordering::Relaxed));
        let word = self.word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        same.then_some((u128::from(high) << 64 | u128::from(low), word))
    }

    /// Writes the entry, unless another thread is writing it or it has changed since it was `seen`.
    fn write(&self, seen: (u128, u64), ip: u128, word: u64) {
        let version = self.version.load(Ordering::Relaxed);
        let begun = |version: u64| {
            self.version.compare_exchange(
                version,
                version + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
        };
        if !version.is_multiple_of(2) || self.read() != Some(seen) || begun(version).is_err() {
            return;
        }
        fence(Ordering::Release);
        self.ip[0].store((ip >> 64) as u64, Ordering::Relaxed);
        self.ip[1].store(ip as u64, Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }
}

impl Neighbours {
    pub(crate) fn new(local: Addresses) -> Neighbours {
        Neighbours {
            local,
            key: RandomState::new(),
            entries: std::array::from_fn(|_| Entry::default()),
            turn: AtomicUsize::new(0),
        }
    }

    /// Stores a neighbour's address. Addresses that no neighbour can have are ignored: a group's Ethernet address,
    /// a host of another network, our own.
    pub(crate) fn learn(&self, ip: IpAddr, mac: [u8; 6]) {
        if let Some(mac) = to_word(mac) {
            self.change(ip, |known| Some(known.unwrap_or(0) & ASKED | mac));
        }
    }

    /// Applies a neighbour advertisement or an ARP announcement: it creates no entry (RFC 4861, 7.2.5), and
    /// replaces a known address only if it `overrides` it.
    pub(crate) fn advertised(&self, ip: IpAddr, mac: [u8; 6], overrides: bool) {
        if let Some(mac) = to_word(mac) {
            self.change(ip, |known| {
                known.filter(|word| overrides || word & MAC == 0).map(|word| word & ASKED | mac)
            });
        }
    }

    /// Reserves an entry for a neighbour that is being resolved.
    pub(crate) fn ask(&self, ip: IpAddr) {
        self.change(ip, |known| Some(known.unwrap_or(0) | ASKED));
    }

    /// The Ethernet address of a neighbour, if known.
    pub(crate) fn find(&self, ip: IpAddr) -> Option<[u8; 6]> {
        let ip = self.number(ip)?;
        let mut found = self.places(ip).iter().filter_map(Entry::read);
        let (_, word) = found.find(|(other, word)| *other == ip && *word != 0)?;
        from_word(word)
    }

    /// How many neighbours are known.
    pub(crate) fn known(&self) -> usize {
        self.entries.iter().filter_map(Entry::read).filter(|(_, word)| word & MAC != 0).count()
    }

    /// Replaces the word of a host's entry with what `next` returns for the current one. If the host has no entry,
    /// it takes an empty one, or that of a host which the application has not asked for; a resolved host may also
    /// displace another resolved one.
    fn change(&self, ip: IpAddr, next: impl FnOnce(Option<u64>) -> Option<u64>) {
        let Some(ip) = self.number(ip) else { return };
        let places = self.places(ip);
        let mut seen = [None; WAYS];
        seen.iter_mut().zip(places).for_each(|(seen, entry)| *seen = entry.read());
        let same =
            |it: &Option<(u128, u64)>| it.is_some_and(|(other, word)| other == ip && word != 0);
        let same = seen.iter().position(same);
        let known = same.and_then(|at| seen[at]).map(|(_, word)| word);
        let Some(word) = next(known) else { return };
        // Most packets confirm what is known; skipping the write keeps the cache line shared.
        if known == Some(word) {
            return;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let any = |may: &dyn Fn(u64) -> bool| {
            (0..WAYS)
                .map(|way| (turn + way) % WAYS)
                .find(|at| seen[*at].is_some_and(|it| may(it.1)))
        };
        let at = same.or_else(|| any(&|word| word == 0)).or_else(|| any(&|word| word & ASKED == 0));
        let at = at.or_else(|| (word & ASKED != 0).then(|| any(&|_| true)).flatten());
        if let Some((at, seen)) = at.and_then(|at| Some((at, seen[at]?))) {
            places[at].write(seen, ip, word);
        }
    }

    /// The entries in which this host may be stored.
    fn places(&self, ip: u128) -> &[Entry] {
        let set = self.key.hash_one(ip) as usize % (NEIGHBOURS / WAYS);
        &self.entries[set * WAYS..][..WAYS]
    }

    /// The table key of a host that can be a neighbour; IPv4 addresses are mapped into IPv6.
    fn number(&self, ip: IpAddr) -> Option<u128> {
        let local = &self.local;
        let can = can_be_host(ip) && local.on_link(ip) && !local.claims(ip);
        can.then(|| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => Ipv6Addr::to_bits(ip),
        })
    }
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours").field("known", &self.known()).finish_non_exhaustive()
    }
}

/// A host's Ethernet address as a number; `None` for a group address and for all zeros.
fn to_word(mac: [u8; 6]) -> Option<u64> {
    let word = mac.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    (mac[0] & 1 == 0 && word != 0).then_some(word)
}

fn from_word(word: u64) -> Option<[u8; 6]> {
    let [_, _, mac @ ..] = word.to_be_bytes();
    (mac != [0; 6]).then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn table(prefix: u8) -> Neighbours {
        let local = Addresses::from(Address::v4(OURS, [10, 0, 0, 1], prefix));
        Neighbours::new(local.with(ip("fd00::1"), 64).unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn what_was_learned_is_found_and_the_latest_counts() {
        let table = table(16);
        for peer in [ip("10.0.7.9"), ip("fd00::9")] {
            assert_eq!(table.find(peer), None);
            table.learn(peer, [2, 1, 2, 3, 4, 5]);
            assert_eq!(table.find(peer), Some([2, 1, 2, 3, 4, 5]));
            table.learn(peer, [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
            assert_eq!(table.find(peer), Some([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]));
        }
        assert_eq!(table.known(), 2);
    }

    #[test]
    fn an_advertisement_that_nobody_asked_for_teaches_nothing() {
        let (table, peer) = (table(16), ip("fd00::9"));
        table.advertised(peer, [2, 0, 0, 0, 0, 9], true);
        assert_eq!(table.find(peer), None);
        table.ask(peer);
        assert_eq!((table.find(peer), table.known()), (None, 0));
        table.advertised(peer, [2, 0, 0, 0, 0, 9], false);
        assert_eq!(table.find(peer), Some([2, 0, 0, 0, 0, 9]));
        table.advertised(peer, [2, 0, 0, 0, 0, 8], false);
        assert_eq!(table.find(peer), Some([2, 0, 0, 0, 0, 9]), "it does not override");
        table.advertised(peer, [2, 0, 0, 0, 0, 8], true);
        assert_eq!(table.find(peer), Some([2, 0, 0, 0, 0, 8]));
    }

    #[test]
    fn strangers_groups_and_ourselves_are_not_learned() {
        let table = table(24);
        for nobody in [
            "10.0.1.9",
            "10.0.0.1",
            "10.0.0.255",
            "224.0.0.1",
            "0.0.0.0",
            "fd00:0:0:1::9",
            "fd00::1",
            "fe80::9",
            "ff02::1",
            "::",
            "::ffff:10.0.0.9",
        ] {
            table.learn(ip(nobody), [2, 0, 0, 0, 0, 9]);
            table.ask(ip(nobody));
        }
        table.learn(ip("10.0.0.9"), [0xff; 6]);
        table.learn(ip("10.0.0.9"), [0; 6]);
        assert_eq!(table.known(), 0);
        assert!(table.entries.iter().all(|entry| entry.read() == Some((0, 0))));
    }

    #[test]
    fn a_flood_of_neighbours_stays_within_the_table_and_leaves_whom_we_asked_for() {
        let table = table(8);
        let asked: Vec<IpAddr> = (2..10).map(|n| ip(&format!("fd00::{n}"))).collect();
        for peer in &asked {
            table.ask(*peer);
            table.learn(*peer, [2, 0, 0, 0, 0, 7]);
        }
        for host in 0x100..100_000u32 {
            let four = std::net::Ipv4Addr::from_bits(10 << 24 | host).into();
            let six = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(host)).into();
            for invented in [four, six] {
                table.learn(invented, [2, 0, 0, 0, 0, 1]);
            }
        }
        assert!(table.known() <= NEIGHBOURS);
        // Eight hosts fall into 64 sets of four entries: more than four in one set is a chance of one in thousands.
        // Those that have an entry keep it.
        let kept =
            asked.iter().filter(|peer| table.find(**peer) == Some([2, 0, 0, 0, 0, 7])).count();
        assert!(kept >= 4, "{kept}");
        for host in 0..100_000u128 {
            table.ask(Ipv6Addr::from_bits(0xfd00 << 112 | 1 << 32 | host).into());
        }
        assert!(table.known() <= NEIGHBOURS, "a host that asks for all pushes out itself");
    }

    #[test]
    fn two_hosts_are_never_mistaken_for_each_other() {
        let table = table(8);
        for host in 0x100..0x2000u32 {
            let peer = std::net::Ipv4Addr::from_bits(10 << 24 | host).into();
            let [.., high, low] = host.to_be_bytes();
            table.learn(peer, [2, 0, 0, 0, high, low]);
        }
        for host in 0x100..0x2000u32 {
            let peer = std::net::Ipv4Addr::from_bits(10 << 24 | host).into();
            let [.., high, low] = host.to_be_bytes();
            assert!(table.find(peer).is_none_or(|mac| mac == [2, 0, 0, 0, high, low]));
        }
    }
}
