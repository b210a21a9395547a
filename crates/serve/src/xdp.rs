//! AF_XDP devices: an interface that is there already, with the kernel's own addresses or with ours.
//!
//! By port the device is the interface's own: its Ethernet address and its IP addresses, for which the
//! kernel goes on to answer ARP, ping and everything but what goes to the service's port. With `all` its
//! queues are ours, and so are the addresses that were given.

use std::str::FromStr;

use napkin_kernel::netlink::{NetlinkError, Route};
use napkin_nic::xdp::{BusyPoll, Traffic, Xdp, XdpConfig};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::Policy;
use napkin_stack::Addresses;

use super::config::{MAX_NETWORKS, ServeConfig};
use super::device::Made;
use super::error::ServeError;
use super::network::Network;

/// Buffers of a queue beside those that the kernel has: more than sockets hold.
const FRAMES: usize = 4_096;

/// An interface and those of its queues that are served: `eth0`, `eth0:2`, `eth0:0-3`, `eth0:0-3:all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpSpec {
    /// The interface.
    pub interface: String,
    /// Its first queue and its last; `None` for as many as each device has, from 0 on.
    pub queues: Option<(u32, u32)>,
    /// Whether all that arrives is taken, and not what goes to the service's port alone.
    pub all: bool,
}

impl XdpSpec {
    /// How many that are; checked to be few.
    pub(super) fn count(&self, usual: u16) -> u16 {
        self.queues.map_or(usual, |(first, last)| (last - first) as u16 + 1)
    }

    /// Its queues, where each device has so many.
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
            if last < first || last - first >= u32::from(super::config::MAX_QUEUES) {
                return Err(format!("the queues {part} are none, or too many: {}", form()));
            }
            spec.queues = Some((first, last));
        }
        Ok(spec)
    }
}

/// Opens the device.
pub(super) fn make(
    config: &ServeConfig,
    spec: &XdpSpec,
    policy: &Policy,
    networks: &[Network],
) -> Result<Made, ServeError> {
    let name = &spec.interface;
    let (networks, traffic) = match spec.all {
        true => (networks.to_vec(), Traffic::All),
        false => (own(name)?, Traffic::Ports(vec![config.port])),
    };
    let busy_polls = policy.epoll.enabled() || policy.application.socket_busy_polls();
    let device = XdpConfig {
        queues: spec.numbers(config.queues),
        traffic,
        busy_poll: busy_polls.then(BusyPoll::default),
        ..XdpConfig::new(name)
    };
    let pool = Pool::new(device.queues.len() * (device.buffers_of_a_queue() + FRAMES));
    let xdp = Xdp::open(&device, &pool)?;
    let mut addresses = Addresses::new(xdp.mac);
    for network in networks {
        addresses = addresses.with(network.ip, network.prefix)?;
    }
    let note = note(spec, config.port, &xdp, busy_polls);
    let queues = xdp.queues.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>);
    let queues = queues.collect();
    Ok(Made {
        name: name.clone(),
        addresses,
        queues,
        note,
        faults: Vec::new(),
        peers: None,
        pool: Some(pool),
    })
}

/// The addresses that the interface has.
fn own(name: &str) -> Result<Vec<Network>, ServeError> {
    let addresses = || {
        let mut route = Route::open()?;
        let ifindex = route.link(name)?.ifindex;
        let addresses = route.addresses()?.into_iter().filter(|it| it.ifindex == ifindex);
        Ok(addresses.map(|it| Network { ip: it.ip, prefix: it.prefix }).collect::<Vec<_>>())
    };
    let mut own = match addresses() {
        Ok(own) => own,
        // Opening it says so.
        Err(NetlinkError::NoDevice { .. }) => return Ok(Vec::new()),
        Err(source) => return Err(ServeError::Asked { name: name.to_owned(), source }),
    };
    // As many as a stack has; those that hold on their link alone are the first to go.
    own.sort_by_key(|network| network.is_link_local());
    own.truncate(MAX_NETWORKS);
    if own.is_empty() {
        return Err(ServeError::NoAddress { name: name.to_owned() });
    }
    Ok(own)
}

/// What there is to know about it.
fn note(spec: &XdpSpec, port: u16, xdp: &Xdp, busy_polls: bool) -> String {
    let mode = if xdp.native { "native" } else { "generic" };
    let copies = if xdp.zero_copy { "zero-copy" } else { "copied by the kernel" };
    let which = match xdp.numbers[..] {
        [first, .., last] => format!("queues {first}-{last}"),
        _ => format!("queue {}", xdp.numbers.first().copied().unwrap_or(0)),
    };
    let mut note = format!("AF_XDP on {which}, {mode}, {copies}");
    note += &match spec.all {
        true => "; all that arrives there is ours, ARP too".to_owned(),
        false => format!("; port {port} (UDP and TCP) is ours, all else the kernel's"),
    };
    let interface = &spec.interface;
    if let Some(total) = xdp.total
        && total as usize > xdp.numbers.len()
    {
        note += &format!(
            "; the interface has {total} queues, and flows of the others are the kernel's: serve all \
             (xdp:{interface}:0-{}), or ethtool -L {interface} combined {}",
            total - 1,
            xdp.numbers.len()
        );
    }
    if busy_polls {
        note += &match xdp.zero_copy {
            true => format!(
                "; the kernel's NAPI is polled from here (its interrupts are deferred by: napkin apply \
                 {interface} defer20)"
            ),
            false => {
                "; the kernel's own NAPI is not polled from here: it copies, and since Linux 6.13 \
                      zero-copy sockets alone may"
                    .to_owned()
            }
        };
    }
    note
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
    }
}
