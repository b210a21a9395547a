//! Links, and the changes to them that servers, measurements and tests need: creating a veth pair or a VLAN, adding
//! addresses, setting up and down, deleting. Of routes, only the links of the default routes.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_sys::protocols::NETLINK_ROUTE;
use serde::Serialize;

use super::attribute::{Body, Malformed, attributes, split_header};
use super::error::NetlinkError;
use super::socket::Connection;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWLINKPROP: u16 = 108;
pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_NET_NS_FD: u16 = 28;
pub(super) const IFLA_EXT_MASK: u16 = 29;
pub(super) const IFLA_NUM_TX_QUEUES: u16 = 31;
pub(super) const IFLA_NUM_RX_QUEUES: u16 = 32;
pub(super) const IFLA_NEW_NETNSID: u16 = 45;
pub(super) const IFLA_NEW_IFINDEX: u16 = 49;
pub(super) const IFLA_PROP_LIST: u16 = 52;
pub(super) const IFLA_ALT_IFNAME: u16 = 53;
pub(super) const IFLA_PERM_ADDRESS: u16 = 54;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
pub(super) const VETH_INFO_PEER: u16 = 1;
const IFLA_VLAN_ID: u16 = 1;
pub(super) const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;
/// The longest destination prefixes of a default route: half of all IPv4 addresses, and all global IPv6 addresses.
const MAX_PREFIX_V4: u8 = 1;
const MAX_PREFIX_V6: u8 = 3;
/// The type of a route that forwards, as opposed to one that rejects.
const RTN_UNICAST: u8 = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const IFF_UP: u32 = 1;
/// Skips duplicate address detection, so that the address can be used at once.
const IFA_F_NODAD: u8 = 2;
/// The longest name in `IFLA_IFNAME`, in bytes; longer ones are in `IFLA_ALT_IFNAME`.
const IFNAME: usize = 15;
/// Size of a `struct ifinfomsg`.
const IFINFOMSG: usize = 16;
/// Size of a `struct ifaddrmsg`.
const IFADDRMSG: usize = 8;
/// Size of a `struct rtmsg`.
const RTMSG: usize = 12;

/// A link, as `RTM_GETLINK` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkRecord {
    /// Its interface index in this namespace.
    pub ifindex: u32,
    /// `IFLA_IFNAME`: its name, at most 15 bytes.
    #[serde(rename = "ifname")]
    pub name: String,
    /// Its other names (`ip link property add dev eth0 altname ...`).
    #[serde(rename = "altnames")]
    pub alternatives: Vec<String>,
    /// The kind of a virtual device: `veth`, `bridge` ...
    pub kind: Option<String>,
    /// Whether it is administratively up.
    pub up: bool,
    /// The number of receive queues with which it was created.
    pub rx_queues: u32,
    /// The number of transmit queues with which it was created.
    pub tx_queues: u32,
    /// Its MAC addresses: the current one, and the permanent one if that differs.
    #[serde(skip)]
    pub macs: Vec<[u8; 6]>,
}

impl LinkRecord {
    /// Whether this is one of its names.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|other| other == name)
    }
}

/// An address of a link, as `RTM_GETADDR` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRecord {
    /// The link's interface index in this namespace.
    pub ifindex: u32,
    /// `IFA_ADDRESS`: the address, without its prefix.
    pub ip: IpAddr,
    /// The length of its network prefix in bits.
    pub prefix: u8,
}

/// The parameters of a veth pair; both ends have the same numbers of queues.
#[derive(Debug, Clone, Copy)]
pub struct VethConfig<'a> {
    /// The name of the end in this namespace.
    pub name: &'a str,
    /// The name of the other end.
    pub peer: &'a str,
    /// The network namespace of the other end, if not this one.
    pub peer_namespace: Option<BorrowedFd<'a>>,
    /// Receive queues of each end. To accept XDP, a veth needs as many as its peer has transmit queues.
    pub rx_queues: u32,
    /// Transmit queues of each end.
    pub tx_queues: u32,
}

/// A `NETLINK_ROUTE` socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Route {
    connection: Connection,
}

impl Route {
    /// Opens the socket in the calling thread's network namespace.
    pub fn open() -> Result<Route, NetlinkError> {
        Connection::open(NETLINK_ROUTE).map(|connection| Route { connection })
    }

    /// Lists all links of the namespace, by ascending ifindex as the kernel does.
    pub fn links(&mut self) -> Result<Vec<LinkRecord>, NetlinkError> {
        let body = Body::new().header(&ifinfomsg(0, 0, 0));
        let body = body.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        self.connection.dump(format_args!("listing the links"), RTM_GETLINK, body, link)
    }

    /// Lists all addresses of the namespace's links.
    pub fn addresses(&mut self) -> Result<Vec<AddressRecord>, NetlinkError> {
        let body = Body::new().header(&[0; IFADDRMSG]);
        self.connection.dump(format_args!("listing the addresses"), RTM_GETADDR, body, address)
    }

    /// Returns the ifindexes of the links of all default routes, in all routing tables and with all of their next
    /// hops; an ifindex may occur several times. The halves that VPNs add in front of a default route (0.0.0.0/1
    /// and 128.0.0.0/1) count too, and so does 2000::/3, all global IPv6 addresses. Next hop objects (`ip nexthop`)
    /// are reported while `net.ipv4.nexthop_compat_mode` is on, which is the default.
    ///
    /// # Errors
    /// Also if there are so many routes that the kernel does not list them all within 5 s.
    pub fn defaults(&mut self) -> Result<Vec<u32>, NetlinkError> {
        let body = Body::new().header(&[0; RTMSG]);
        let what = format_args!("listing the routes");
        let found = self.connection.dump(what, RTM_GETROUTE, body, default_route)?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns one link by one of its names.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] if there is none. The operations below have the same error.
    pub fn link(&mut self, name: &str) -> Result<LinkRecord, NetlinkError> {
        let body = Body::new().header(&ifinfomsg(0, 0, 0));
        // The kernel looks for a short name among the alternative names as well.
        let kind = if name.len() > IFNAME { IFLA_ALT_IFNAME } else { IFLA_IFNAME };
        let body = body.text(kind, name).u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        let what = format_args!("looking for the link {name}");
        let found = self.connection.ask(what, RTM_GETLINK, 0, body, link);
        let found = found.map_err(|error| error.of_device(&name))?;
        found.into_iter().next().ok_or_else(|| NetlinkError::Malformed {
            request: what.to_string(),
            what: "an acknowledgement without a link",
        })
    }

    /// Creates a veth pair, both ends down, and returns the ifindex of the end in this namespace.
    pub fn add_veth(&mut self, config: &VethConfig<'_>) -> Result<u32, NetlinkError> {
        let end = |body: Body, name: &str| {
            body.text(IFLA_IFNAME, name)
                .u32(IFLA_NUM_TX_QUEUES, config.tx_queues)
                .u32(IFLA_NUM_RX_QUEUES, config.rx_queues)
        };
        let peer = |body: Body| {
            let body = end(body.header(&ifinfomsg(0, 0, 0)), config.peer);
            match config.peer_namespace {
                Some(namespace) => body.u32(IFLA_NET_NS_FD, namespace.as_raw_fd().cast_unsigned()),
                None => body,
            }
        };
        let body = end(Body::new().header(&ifinfomsg(0, 0, 0)), config.name);
        let body = body.nest(IFLA_LINKINFO, |body| {
            body.text(IFLA_INFO_KIND, "veth")
                .nest(IFLA_INFO_DATA, |body| body.nest(VETH_INFO_PEER, peer))
        });
        let what = format_args!("making the veth pair {} and {}", config.name, config.peer);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.connection.ask(what, RTM_NEWLINK, flags, body, |_, _| Ok(None::<()>))?;
        self.link(config.name).map(|link| link.ifindex)
    }

    /// Creates a VLAN (802.1Q) on a link, down, and returns its ifindex. It is deleted with the link.
    pub fn add_vlan(&mut self, ifindex: u32, name: &str, id: u16) -> Result<u32, NetlinkError> {
        let body = Body::new().header(&ifinfomsg(0, 0, 0)).text(IFLA_IFNAME, name);
        let body = body.u32(IFLA_LINK, ifindex).nest(IFLA_LINKINFO, |body| {
            body.text(IFLA_INFO_KIND, "vlan")
                .nest(IFLA_INFO_DATA, |body| body.u16(IFLA_VLAN_ID, id))
        });
        let what = format_args!("making the VLAN {id} of link {ifindex}, {name}");
        self.change(what, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, ifindex)?;
        self.link(name).map(|link| link.ifindex)
    }

    /// Deletes a link, and with a veth its other end.
    pub fn delete(&mut self, ifindex: u32) -> Result<(), NetlinkError> {
        let body = Body::new().header(&ifinfomsg(ifindex, 0, 0));
        self.change(format_args!("removing link {ifindex}"), RTM_DELLINK, 0, body, ifindex)
    }

    /// Sets a link up.
    pub fn set_up(&mut self, ifindex: u32) -> Result<(), NetlinkError> {
        let body = Body::new().header(&ifinfomsg(ifindex, IFF_UP, IFF_UP));
        self.change(format_args!("setting link {ifindex} up"), RTM_NEWLINK, 0, body, ifindex)
    }

    /// Sets a link down, which removes its NAPI instances.
    pub fn set_down(&mut self, ifindex: u32) -> Result<(), NetlinkError> {
        let body = Body::new().header(&ifinfomsg(ifindex, 0, IFF_UP));
        self.change(format_args!("setting link {ifindex} down"), RTM_NEWLINK, 0, body, ifindex)
    }

    /// Adds an alternative name to a link, of up to 127 bytes.
    pub fn add_alternative(&mut self, ifindex: u32, name: &str) -> Result<(), NetlinkError> {
        let body = Body::new().header(&ifinfomsg(ifindex, 0, 0));
        let body = body.nest(IFLA_PROP_LIST, |body| body.text(IFLA_ALT_IFNAME, name));
        let what = format_args!("giving link {ifindex} the name {name} as well");
        self.change(what, RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, body, ifindex)
    }

    /// Adds an address to a link, with the route to its network of `prefix` bits, unless the link has it already.
    /// An IPv6 address can be used at once, without duplicate address detection.
    pub fn add_address(
        &mut self,
        ifindex: u32,
        address: impl Into<IpAddr>,
        prefix: u8,
    ) -> Result<(), NetlinkError> {
        let address = address.into();
        let with = |family: i32, flags: u8, octets: &[u8]| {
            let header = ifaddrmsg(family, prefix, flags, ifindex);
            Body::new().header(&header).bytes(IFA_LOCAL, octets).bytes(IFA_ADDRESS, octets)
        };
        let body = match address {
            IpAddr::V4(ip) => with(libc::AF_INET, 0, &ip.octets()),
            IpAddr::V6(ip) => with(libc::AF_INET6, IFA_F_NODAD, &ip.octets()),
        };
        let what = format_args!("giving {address}/{prefix} to link {ifindex}");
        self.change(what, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, body, ifindex)
    }

    fn change(
        &mut self,
        what: std::fmt::Arguments<'_>,
        message_type: u16,
        flags: u16,
        body: Body,
        ifindex: u32,
    ) -> Result<(), NetlinkError> {
        self.connection
            .ask(what, message_type, flags, body, |_, _| Ok(None::<()>))
            .map(drop)
            .map_err(|error| error.of_device(&format_args!("with ifindex {ifindex}")))
    }
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, ifindex.
fn ifaddrmsg(family: i32, prefix: u8, flags: u8, ifindex: u32) -> [u8; IFADDRMSG] {
    let mut header = [family as u8, prefix, flags, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&ifindex.to_ne_bytes());
    header
}

fn address(kind: u16, body: &[u8]) -> Result<Option<AddressRecord>, Malformed> {
    if kind != RTM_NEWADDR {
        return Ok(None);
    }
    let (header, list) = split_header(body, IFADDRMSG)?;
    let ifindex = header[4..].first_chunk().copied().map(u32::from_ne_bytes).unwrap_or_default();
    let mut found = None;
    for attribute in attributes(list) {
        let attribute = attribute?;
        let ip = match *attribute.value {
            [a, b, c, d] => IpAddr::from([a, b, c, d]),
            _ => match <[u8; 16]>::try_from(attribute.value) {
                Ok(octets) => octets.into(),
                Err(_) => continue,
            },
        };
        // On a link with a peer, `IFA_ADDRESS` is the peer's; IPv6 without a peer has only `IFA_ADDRESS`.
        match attribute.kind {
            IFA_LOCAL => found = Some(ip),
            IFA_ADDRESS => found = found.or(Some(ip)),
            _ => {}
        }
    }
    Ok(found.map(|ip| AddressRecord { ifindex, ip, prefix: header[1] }))
}

/// Parses the links of a default route, or of one that counts as such.
pub(super) fn default_route(kind: u16, body: &[u8]) -> Result<Option<Vec<u32>>, Malformed> {
    if kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let (header, list) = split_header(body, RTMSG)?;
    // `struct rtmsg`: family, destination and source prefix lengths, TOS, table, protocol, scope, type, flags.
    let max_prefix = match i32::from(header[0]) {
        libc::AF_INET => MAX_PREFIX_V4,
        libc::AF_INET6 => MAX_PREFIX_V6,
        _ => return Ok(None),
    };
    if header[1] > max_prefix || header[7] != RTN_UNICAST {
        return Ok(None);
    }
    let mut links = Vec::new();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_OIF => links.push(attribute.u32()?),
            RTA_MULTIPATH => {
                let mut hops = attribute.value;
                // `struct rtnexthop`: length, flags, hops, ifindex; followed by its attributes.
                while let Some(&[a, b, _, _, ref ifindex @ ..]) = hops.first_chunk::<8>() {
                    let length = usize::from(u16::from_ne_bytes([a, b]));
                    if !(8..=hops.len()).contains(&length) {
                        return Err(Malformed("a next hop's length is not within its list"));
                    }
                    links.push(u32::from_ne_bytes(*ifindex));
                    hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    Ok(Some(links))
}

/// Builds a `struct ifinfomsg`: family, padding, type, index, flags, and the mask of flags to change.
fn ifinfomsg(ifindex: u32, flags: u32, change: u32) -> [u8; IFINFOMSG] {
    let mut header = [0; IFINFOMSG];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

pub(super) fn link(kind: u16, body: &[u8]) -> Result<Option<LinkRecord>, Malformed> {
    if kind != RTM_NEWLINK {
        return Ok(None);
    }
    let (header, list) = split_header(body, IFINFOMSG)?;
    let word =
        |at: usize| header[at..].first_chunk().copied().map(u32::from_ne_bytes).unwrap_or_default();
    let mut found = LinkRecord {
        ifindex: word(4),
        name: String::new(),
        alternatives: Vec::new(),
        kind: None,
        up: word(8) & IFF_UP != 0,
        rx_queues: 0,
        tx_queues: 0,
        macs: Vec::new(),
    };
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_IFNAME => found.name = attribute.text()?,
            // Loopback's is all zeros, and a tunnel's may have another length: these are no MAC addresses.
            IFLA_ADDRESS | IFLA_PERM_ADDRESS => {
                let mac: Option<[u8; 6]> = attribute.value.try_into().ok();
                found.macs.extend(mac.filter(|mac| *mac != [0; 6]));
                found.macs.dedup();
            }
            IFLA_NUM_RX_QUEUES => found.rx_queues = attribute.u32()?,
            IFLA_NUM_TX_QUEUES => found.tx_queues = attribute.u32()?,
            IFLA_PROP_LIST => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    if attribute.kind == IFLA_ALT_IFNAME {
                        found.alternatives.push(attribute.text()?);
                    }
                }
            }
            IFLA_LINKINFO => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    if attribute.kind == IFLA_INFO_KIND {
                        found.kind = Some(attribute.text()?);
                    }
                }
            }
            _ => {}
        }
    }
    if found.name.is_empty() {
        return Err(Malformed("a link has no name"));
    }
    Ok(Some(found))
}

/// Parses a notice of a link that has left: its ifindex, and whether it was deleted. If it was moved to another
/// namespace, the kernel adds that namespace's id, or -1 if it has none here (`IFLA_NEW_NETNSID`).
pub(super) fn departure(kind: u16, body: &[u8]) -> Result<Option<(u32, bool)>, Malformed> {
    if kind != RTM_DELLINK {
        return Ok(None);
    }
    let (header, list) = split_header(body, IFINFOMSG)?;
    // A bridge sends the same message (AF_BRIDGE) for a port that it releases but that stays.
    if i32::from(header[0]) != libc::AF_UNSPEC {
        return Ok(None);
    }
    let ifindex = header[4..].first_chunk().copied().map(u32::from_ne_bytes).unwrap_or_default();
    let mut deleted = true;
    for attribute in attributes(list) {
        deleted &= ![IFLA_NEW_NETNSID, IFLA_NEW_IFINDEX].contains(&attribute?.kind);
    }
    Ok(Some((ifindex, deleted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_was_deleted_unless_the_notice_says_where_it_is() {
        let left = |kind: u16, family: u8, list: Body| {
            let mut header = ifinfomsg(7, 0, 0);
            header[0] = family;
            let list = list.finish().expect("short");
            departure(kind, &[&header[..], &list].concat())
        };
        let named = || Body::new().text(IFLA_IFNAME, "va");
        assert_eq!(left(RTM_DELLINK, 0, named()), Ok(Some((7, true))));
        // -1: the new namespace has no id in this one.
        let moved = named().u32(IFLA_NEW_NETNSID, u32::MAX);
        assert_eq!(left(RTM_DELLINK, 0, moved), Ok(Some((7, false))));
        let moved = named().u32(IFLA_NEW_NETNSID, 0).u32(IFLA_NEW_IFINDEX, 9);
        assert_eq!(left(RTM_DELLINK, 0, moved), Ok(Some((7, false))));
        assert_eq!(left(RTM_NEWLINK, 0, named()), Ok(None));
        let bridge = u8::try_from(libc::AF_BRIDGE).expect("small");
        assert_eq!(left(RTM_DELLINK, bridge, named()), Ok(None), "a port that stays");
        assert!(departure(RTM_DELLINK, &[0; IFINFOMSG - 1]).is_err());
        let cut = [&ifinfomsg(7, 0, 0)[..], &[9, 0, 3, 0]].concat();
        assert!(departure(RTM_DELLINK, &cut).is_err(), "what follows may say where it is");
    }

    fn read(header: [u8; RTMSG], list: Body) -> Result<Option<Vec<u32>>, Malformed> {
        let list = list.finish().expect("short");
        default_route(RTM_NEWROUTE, &[&header[..], &list].concat())
    }

    #[test]
    fn a_default_route_leads_to_all_of_its_next_hops_whatever_its_table() {
        let header = |family: i32, bits, table, kind| {
            [family as u8, bits, 0, 0, table, 0, 0, kind, 0, 0, 0, 0]
        };
        let one = || Body::new().u32(15, 254).u32(RTA_OIF, 7);
        let main = header(libc::AF_INET, 0, 254, RTN_UNICAST);
        assert_eq!(read(main, one()), Ok(Some(vec![7])));
        assert_eq!(read(header(libc::AF_INET6, 0, 100, RTN_UNICAST), one()), Ok(Some(vec![7])));
        // A VPN's 128.0.0.0/1, and 2000::/3.
        assert_eq!(read(header(libc::AF_INET, 1, 254, RTN_UNICAST), one()), Ok(Some(vec![7])));
        assert_eq!(read(header(libc::AF_INET6, 3, 254, RTN_UNICAST), one()), Ok(Some(vec![7])));
        let others = [
            header(libc::AF_INET, 2, 254, RTN_UNICAST),
            // Unique local addresses.
            header(libc::AF_INET6, 7, 254, RTN_UNICAST),
            // The rejecting route of lo.
            header(libc::AF_INET6, 0, 254, 7),
            // A multicast route.
            header(128, 0, 254, RTN_UNICAST),
        ];
        for other in others {
            assert_eq!(read(other, one()), Ok(None), "{other:?}");
        }
        let hop = |length: u16, ifindex: u32| {
            let [a, b] = length.to_ne_bytes();
            let [c, d, e, f] = ifindex.to_ne_bytes();
            vec![a, b, 0, 0, c, d, e, f]
        };
        // The first one has a gateway.
        let two = [hop(16, 3), vec![8, 0, 5, 0, 192, 0, 2, 1], hop(8, 4)].concat();
        assert_eq!(read(main, Body::new().bytes(RTA_MULTIPATH, &two)), Ok(Some(vec![3, 4])));
        for length in [0, 7, 12] {
            let wrong = Body::new().bytes(RTA_MULTIPATH, &hop(length, 3));
            assert!(read(main, wrong).is_err(), "{length}");
        }
    }
}
