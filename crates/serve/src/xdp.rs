//! AF_XDP devices: an existing interface, with the kernel's addresses or with ours.
//!
//! By port, the device has the interface's own Ethernet and IP addresses. The kernel goes on to answer ARP, ping
//! and everything but the traffic to the service's port. With `all`, the queues are ours completely, and so are the
//! addresses given.

use napkin_kernel::netlink::{NetlinkError, Route};
use napkin_nic::xdp::{Traffic, Xdp, XdpConfig, XdpError};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::Policy;
use napkin_stack::Addresses;
use napkin_stack::address::ADDRESSES;

use super::config::ServeConfig;
use super::error::ServeError;
use super::network::Network;
use super::open_device::OpenDevice;
use super::xdp_deferral::{busy_poll, defer};
use super::xdp_spec::XdpSpec;

/// Buffers per queue besides those that the kernel holds: more than sockets hold.
const FRAMES: usize = 4_096;

/// Opens the device.
pub(super) fn make(
    config: &ServeConfig,
    spec: &XdpSpec,
    policy: &Policy,
    networks: &[Network],
) -> Result<OpenDevice, ServeError> {
    let name = &spec.interface;
    let (networks, left) = match spec.all {
        true => (networks.to_vec(), Vec::new()),
        false => own_addresses(name)?,
    };
    let traffic = match spec.all {
        true => Traffic::All,
        false => {
            let addresses = networks.iter().map(|network| network.ip).collect();
            Traffic::Ports { ports: vec![config.port], addresses }
        }
    };
    let device = XdpConfig {
        queues: spec.numbers(config.queues),
        traffic,
        busy_poll: busy_poll(policy),
        ..XdpConfig::new(name)
    };
    let pool = Pool::new(device.queues.len() * (device.buffers_of_a_queue() + FRAMES));
    let xdp = Xdp::open(&device, &pool)?;
    let mut addresses = Addresses::new(xdp.mac);
    for network in networks {
        addresses = addresses.with(network.ip, network.prefix)?;
    }
    let (deferral, below) = defer(name, policy, &xdp);
    let note = note(spec, config.port, &left, &xdp) + &below;
    let busy = xdp.queues.iter().filter_map(|queue| queue.busy_polling()).collect();
    let queues = xdp.queues.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>);
    let queues = queues.collect();
    Ok(OpenDevice {
        name: name.clone(),
        addresses,
        queues,
        note,
        faults: Vec::new(),
        busy,
        peers: None,
        pool: Some(pool),
        deferral,
    })
}

/// The interface's addresses: those that the stack can serve, and the excess ones.
fn own_addresses(name: &str) -> Result<(Vec<Network>, Vec<Network>), ServeError> {
    let addresses = || {
        let mut route = Route::open()?;
        let ifindex = route.link(name)?.ifindex;
        let addresses = route.addresses()?.into_iter().filter(|it| it.ifindex == ifindex);
        Ok(addresses.map(|it| Network { ip: it.ip, prefix: it.prefix }).collect::<Vec<_>>())
    };
    let own = match addresses() {
        Ok(own) => own,
        Err(NetlinkError::NoDevice { .. }) => {
            return Err(XdpError::NoInterface { name: name.to_owned() }.into());
        }
        Err(source) => return Err(ServeError::Asked { name: name.to_owned(), source }),
    };
    if own.is_empty() {
        return Err(ServeError::NoAddress { name: name.to_owned() });
    }
    Ok(split_excess(deduplicated(own)))
}

/// Removes duplicate addresses. The kernel may have an address under several prefixes; the shortest covers the
/// neighbours of the others.
fn deduplicated(own: Vec<Network>) -> Vec<Network> {
    let mut once: Vec<Network> = Vec::new();
    for network in own {
        match once.iter_mut().find(|it| it.ip == network.ip) {
            Some(it) => it.prefix = it.prefix.min(network.prefix),
            None => once.push(network),
        }
    }
    once
}

/// Splits off the addresses beyond what a stack can have, link-local ones first.
fn split_excess(mut own: Vec<Network>) -> (Vec<Network>, Vec<Network>) {
    own.sort_by_key(|network| network.is_link_local());
    let left = own.split_off(own.len().min(ADDRESSES));
    (own, left)
}

/// A description for the user.
fn note(spec: &XdpSpec, port: u16, left: &[Network], xdp: &Xdp) -> String {
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
    if !left.is_empty() {
        let left: Vec<_> = left.iter().map(|network| network.ip.to_string()).collect();
        let left = left.join(", ");
        note += &format!(", at {left} too: no more than {ADDRESSES} addresses are served");
    }
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
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_more_addresses_than_a_stack_keeps_the_rest_and_those_of_its_link_first() {
        let network = |text: String| text.parse::<Network>().expect("an address");
        let mut own = vec![network("fe80::1/64".into())];
        own.extend((1..=ADDRESSES).map(|n| network(format!("10.0.0.{n}/24"))));
        let (kept, left) = split_excess(own.clone());
        assert_eq!((kept, left), (own[1..].to_vec(), own[..1].to_vec()));
        assert_eq!(split_excess(own[..ADDRESSES].to_vec()).0.len(), ADDRESSES);
        assert!(split_excess(own[..ADDRESSES].to_vec()).1.is_empty());
    }

    #[test]
    fn an_address_under_two_prefixes_is_one_with_the_shorter_of_them() {
        let list = |all: &[&str]| -> Vec<Network> {
            all.iter().map(|it| it.parse().expect("an address")).collect()
        };
        let own = list(&["10.0.0.1/28", "10.0.1.1/24", "10.0.0.1/16", "10.0.0.1/24"]);
        assert_eq!(deduplicated(own), list(&["10.0.0.1/16", "10.0.1.1/24"]));
    }
}
