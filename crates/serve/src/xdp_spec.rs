//! The syntax of an AF_XDP device.

use std::str::FromStr;

use napkin_nic::tap::MAX_TAP_QUEUES;

/// An interface with the queues to serve: `eth0`, `eth0:2`, `eth0:0-3`, `eth0:0-3:all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpSpec {
    /// The interface, as `ip link` names it.
    pub interface: String,
    /// First and last queue; `None` for the common number of queues, from 0 on.
    pub queues: Option<(u32, u32)>,
    /// Whether to take all traffic, instead of only that to the service's port at the interface's own addresses.
    pub all: bool,
}

impl XdpSpec {
    /// Number of queues, which parsing has limited; `usual` is the common number.
    pub(super) fn count(&self, usual: u16) -> u16 {
        self.queues.map_or(usual, |(first, last)| (last - first) as u16 + 1)
    }

    /// Queue numbers; `usual` is the common number of queues.
    pub(super) fn numbers(&self, usual: u16) -> Vec<u32> {
        let (first, last) = self.queues.unwrap_or((0, u32::from(usual).saturating_sub(1)));
        (first..=last).collect()
    }
}

impl FromStr for XdpSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<XdpSpec, String> {
        let form = || {
            "give an AF_XDP device as xdp:IF, xdp:IF:QUEUE, xdp:IF:FIRST-LAST, with :all behind it to take all traffic".to_owned()
        };
        let mut parts = text.split(':');
        let interface = parts.next().filter(|name| !name.is_empty()).ok_or_else(form)?;
        let mut spec = XdpSpec { interface: interface.to_owned(), queues: None, all: false };
        for part in parts {
            if spec.all {
                return Err(form());
            }
            if part == "all" {
                spec.all = true;
                continue;
            }
            if spec.queues.is_some() {
                return Err(form());
            }
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<u32>().map_err(|_| form());
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(format!("'{part}' ends before it begins: {}", form()));
            }
            if last - first >= u32::from(MAX_TAP_QUEUES) {
                return Err(format!("'{part}' is more than {MAX_TAP_QUEUES} queues: {}", form()));
            }
            spec.queues = Some((first, last));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_an_interface_its_queues_and_what_is_taken() {
        let read = |text: &str| {
            let spec: XdpSpec = text.parse().expect(text);
            (spec.interface.clone(), spec.numbers(2), spec.all)
        };
        let eth0 = || "eth0".to_owned();
        assert_eq!(read("eth0"), (eth0(), vec![0, 1], false));
        assert_eq!(read("eth0:3"), (eth0(), vec![3], false));
        assert_eq!(read("eth0:0-3"), (eth0(), vec![0, 1, 2, 3], false));
        assert_eq!(read("eth0:2:all"), (eth0(), vec![2], true));
        assert_eq!(read("eth0.100:all"), ("eth0.100".to_owned(), vec![0, 1], true));
        for wrong in
            ["", ":0", "eth0:", "eth0:a", "eth0:3-1", "eth0:0-999", "eth0:all:0", "eth0:1:2"]
        {
            let error = wrong.parse::<XdpSpec>().expect_err(wrong);
            assert!(error.contains("xdp:IF:FIRST-LAST"), "{error}");
        }
        for (wrong, why) in [
            ("eth0:9-3", "'9-3' ends before it begins"),
            ("eth0:0-999", "'0-999' is more than 256 queues"),
        ] {
            let error = wrong.parse::<XdpSpec>().expect_err(wrong);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
