//! Queries of an interface's settings by ioctl, in the network namespace of the caller.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::error::XdpError;
use crate::tun_ioctl::{NAME_MAX, Request};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// An interface and its properties.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    /// Number of queues that both receive and send; `None` where the driver does not report it.
    pub(super) queues: Option<u32>,
    pub(super) driver: String,
}

impl Interface {
    pub(super) fn find(name: &str) -> Result<Interface, XdpError> {
        let none = || XdpError::NoInterface { name: name.to_owned() };
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(none());
        }
        let wrong = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => none(),
            _ => XdpError::system("ask for the settings", name, source),
        };
        // Interface ioctls work on any socket.
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| wrong(errno.into()))?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)
            .map_err(|errno| wrong(errno.into()))?;
        let mut request = Request::new(name);
        request.submit(&socket, libc::SIOCGIFHWADDR as _).map_err(wrong)?;
        let mac = request.answered_ethernet();
        let mac = mac.ok_or_else(|| XdpError::NotEthernet { name: name.to_owned() })?;
        let mut request = Request::new(name);
        request.submit(&socket, libc::SIOCGIFFLAGS as _).map_err(wrong)?;
        if request.answered_flags() & libc::IFF_UP as i16 == 0 {
            return Err(XdpError::Down { name: name.to_owned() });
        }
        let queues = channels(&socket, name);
        Ok(Interface { index, mac, queues, driver: driver(&socket, name) })
    }
}

/// Makes the interface promiscuous until the descriptor is closed, at the latest by the end of the process.
pub(super) fn promiscuous(index: u32) -> io::Result<OwnedFd> {
    // Protocol 0: the socket receives nothing itself.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let wanted = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let length = size_of::<libc::packet_mreq>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the value has the stated length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            std::ptr::from_ref(&wanted).cast(),
            length,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Issues an ethtool command. `N` is the size of its structure in words.
fn ethtool<const N: usize>(socket: &OwnedFd, name: &str, command: u32) -> io::Result<[u32; N]> {
    let mut data = [0_u32; N];
    data[0] = command;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data.as_mut_ptr().cast() },
    };
    for (to, from) in request.ifr_name[..NAME_MAX].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the request is a live `struct ifreq` whose data has room for the answer to each of the two commands
    // of this file (below), and the kernel writes no more.
    let answer =
        unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as _, std::ptr::from_mut(&mut request)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(data) }
}

/// The number of queues that both receive and send. `struct ethtool_channels` has, after the maxima, the counts of
/// receive, transmit, other and combined channels.
fn channels(socket: &OwnedFd, name: &str) -> Option<u32> {
    let data = ethtool::<9>(socket, name, ETHTOOL_GCHANNELS).ok()?;
    let [_, _, _, _, _, receive, send, _, both] = data;
    Some(receive.saturating_add(both).min(send.saturating_add(both)).max(1))
}

/// The driver's name: the first string in `struct ethtool_drvinfo` (196 bytes).
fn driver(socket: &OwnedFd, name: &str) -> String {
    let Ok(data) = ethtool::<49>(socket, name, ETHTOOL_GDRVINFO) else {
        return String::from("unknown");
    };
    let bytes: Vec<u8> = data[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).chars().filter(|it| !it.is_control()).collect()
}
