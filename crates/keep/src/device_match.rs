//! Selects devices by name, driver or MAC address. All given criteria must match.

use std::collections::BTreeMap;
use std::fmt;

use napkin_kernel::netlink::{LinkRecord, Route};
use napkin_linux::apply::{BackendError, links_and_sysfs};

/// Criteria for devices; at least one is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Match {
    /// The name or an alternative name of the device, with `*` for any text and `?` for any character.
    pub name: Option<String>,
    /// Its driver, as `ethtool -i` names it, or the kind of a virtual device.
    pub driver: Option<String>,
    /// Its MAC address: the current or the permanent one.
    pub mac: Option<[u8; 6]>,
}

impl Match {
    /// Whether a device matches. `driver` is its driver, if known.
    pub fn fits(&self, link: &LinkRecord, driver: Option<&str>) -> bool {
        let named = |pattern: &String| {
            let names = link.alternatives.iter().chain([&link.name]);
            names.into_iter().any(|name| is_like(name, pattern))
        };
        self.name.as_ref().is_none_or(named)
            && self.driver.as_deref().is_none_or(|wanted| driver == Some(wanted))
            && self.mac.is_none_or(|wanted| link.macs.contains(&wanted))
    }

    /// Parses a MAC address as `ip link` prints it, or with dashes; `None` also for all zeros.
    pub fn read_mac(text: &str) -> Option<[u8; 6]> {
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2)?;
            let digits = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits)?;
        }
        (parts.next().is_none() && mac != [0; 6]).then_some(mac)
    }

    pub(crate) fn mac_text(&self) -> Option<String> {
        let bytes = self.mac?.map(|byte| format!("{byte:02x}"));
        Some(bytes.join(":"))
    }
}

impl fmt::Display for Match {
    /// `eth0`, `eth* with driver igb`, `52:54:00:12:34:56`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_ref().map(|driver| format!("driver {driver}"));
        let mac = self.mac_text();
        let parts: Vec<&str> = [self.name.as_deref(), driver.as_deref(), mac.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        f.write_str(&parts.join(" with "))
    }
}

/// Whether a name matches a pattern. Linear in both except for the last star, which is tried at each
/// position: names have at most 127 bytes.
fn is_like(name: &str, pattern: &str) -> bool {
    let (name, pattern): (Vec<char>, Vec<char>) =
        (name.chars().collect(), pattern.chars().collect());
    let (mut at, mut of) = (0, 0);
    // The position of the last star, and of the name's part that was last tried after it.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(c) if *c == '?' || *c == name[at] => {
                at += 1;
                of += 1;
            }
            _ => {
                let Some((place, tried)) = star else { return false };
                star = Some((place, tried + 1));
                at = tried + 1;
                of = place + 1;
            }
        }
    }
    pattern[of..].iter().all(|c| *c == '*')
}

/// The matching devices, as far as known.
#[derive(Debug)]
pub(crate) struct Matched {
    /// Each device with the indices of the matches that select it.
    pub(crate) devices: Vec<(LinkRecord, Vec<usize>)>,
    /// Why sysfs does not tell drivers, if a match asks for one: then only virtual devices and those whose
    /// driver was known before are found.
    pub(crate) no_drivers: Option<BackendError>,
}

/// The drivers of devices by ifindex, as last read from sysfs. They are kept because a held device that is
/// matched by its driver would otherwise seem to have no wish once sysfs cannot be read.
pub(crate) type Drivers = BTreeMap<u32, String>;

/// Returns the matching devices of this network namespace, each with the indices in `matches` that select it.
/// Drivers read from sysfs replace `known`, which is used as it is if sysfs cannot be read.
///
/// # Errors
/// If the kernel does not answer.
pub(crate) fn matched<'a>(
    matches: impl IntoIterator<Item = &'a Match>,
    known: &mut Drivers,
) -> Result<Matched, BackendError> {
    let matches: Vec<&Match> = matches.into_iter().collect();
    let mut route = Route::open()?;
    let by_driver = matches.iter().any(|it| it.driver.is_some());
    let gathered = by_driver.then(|| links_and_sysfs(&mut route)).transpose();
    let (links, no_drivers) = match gathered {
        Ok(Some((links, sysfs))) => {
            let driver = |link: &LinkRecord| Some((link.ifindex, sysfs.driver(&link.name)?));
            *known = links.iter().filter_map(driver).collect();
            (links, None)
        }
        Ok(None) => (route.links()?, None),
        Err(error) => (route.links()?, Some(error)),
    };
    Ok(Matched { devices: meant(links, &matches, known), no_drivers })
}

/// The matching links, each with the indices of the matches.
fn meant(
    links: Vec<LinkRecord>,
    matches: &[&Match],
    drivers: &Drivers,
) -> Vec<(LinkRecord, Vec<usize>)> {
    let of = |link: LinkRecord| {
        let driver = drivers.get(&link.ifindex).or(link.kind.as_ref());
        let fits =
            |(at, it): (usize, &&Match)| it.fits(&link, driver.map(String::as_str)).then_some(at);
        let meant: Vec<usize> = matches.iter().enumerate().filter_map(fits).collect();
        (link, meant)
    };
    links.into_iter().map(of).filter(|(_, meant)| !meant.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link(name: &str) -> LinkRecord {
        LinkRecord {
            ifindex: 2,
            name: name.into(),
            alternatives: vec!["enp3s0".into()],
            kind: None,
            up: true,
            rx_queues: 1,
            tx_queues: 1,
            macs: vec![[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]],
        }
    }

    #[test]
    fn a_device_is_meant_if_all_that_is_given_fits() {
        let name = |name: &str| Match { name: Some(name.into()), ..Match::default() };
        assert!(name("eth0").fits(&link("eth0"), None));
        assert!(name("eth*").fits(&link("eth0"), None));
        assert!(name("enp?s0").fits(&link("eth0"), None), "its other name");
        assert!(!name("eth").fits(&link("eth0"), None));
        let both = Match { driver: Some("igb".into()), ..name("eth*") };
        assert!(both.fits(&link("eth0"), Some("igb")));
        assert!(!both.fits(&link("eth0"), Some("e1000e")) && !both.fits(&link("eth0"), None));
        let mac = Match { mac: Match::read_mac("02-00-00-00-00-09"), ..Match::default() };
        assert!(mac.fits(&link("eth0"), None), "the one that it was built with");
        assert!(!Match { mac: Some([2; 6]), ..Match::default() }.fits(&link("eth0"), None));
    }

    #[test]
    fn without_sysfs_a_device_is_found_by_what_is_known_of_it() {
        let by_name = Match { name: Some("eth0".into()), ..Match::default() };
        let by_driver = Match { driver: Some("igb".into()), ..Match::default() };
        let by_kind = Match { driver: Some("veth".into()), ..Match::default() };
        let veth = LinkRecord { ifindex: 3, kind: Some("veth".into()), ..link("va") };
        let places = |known: &Drivers| {
            let links = vec![link("eth0"), veth.clone()];
            let found = meant(links, &[&by_name, &by_driver, &by_kind], known);
            found.into_iter().map(|(link, meant)| (link.ifindex, meant)).collect::<Vec<_>>()
        };
        assert_eq!(places(&Drivers::new()), [(2, vec![0]), (3, vec![2])]);
        assert_eq!(places(&Drivers::from([(2, "igb".into())])), [(2, vec![0, 1]), (3, vec![2])]);
    }

    #[test]
    fn a_mac_address_is_six_bytes() {
        assert_eq!(Match::read_mac("52:54:00:ab:CD:ef"), Some([0x52, 0x54, 0, 0xab, 0xcd, 0xef]));
        for bad in
            ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:+5", "0:1:2:3:4:5"]
        {
            assert_eq!(Match::read_mac(bad), None, "{bad}");
        }
        assert_eq!(Match::read_mac("00:00:00:00:00:00"), None, "loopback's is nobody's");
    }

    /// The definition of a pattern match, recursively.
    fn simple(name: &[char], pattern: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|skip| simple(&name[skip..], rest)),
            Some(('?', rest)) => !name.is_empty() && simple(&name[1..], rest),
            Some((c, rest)) => name.first() == Some(c) && simple(&name[1..], rest),
        }
    }

    proptest! {
        #[test]
        fn patterns_are_as_they_are_defined(name in "[ab]{0,8}", pattern in "[ab*?]{0,6}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(is_like(&name, &pattern), simple(&chars(&name), &chars(&pattern)));
        }
    }
}
