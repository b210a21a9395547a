//! The ioctls by which a TAP device is made and its kernel side is configured, and an interface is asked
//! what it is.
//!
//! One request structure serves all but one of them: sixteen bytes of name and a body whose meaning depends on
//! the request. It is written here as bytes rather than as libc's union, so that the calls themselves
//! are the only `unsafe` of the device.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

/// The longest name of a network interface, in bytes: `IFNAMSIZ` less the zero at the end.
pub(crate) const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// `struct ifreq`. The kernel reads 40 bytes on 64-bit machines and 32 on others, of which the body's
/// first 16 are used by all requests below.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    name: [u8; libc::IFNAMSIZ],
    body: [u8; 24],
}

impl Request {
    /// A request about the interface `name`, of which at most [`NAME_MAX`] bytes are used.
    pub(crate) fn new(name: &str) -> Request {
        let mut request = Request { name: [0; libc::IFNAMSIZ], body: [0; 24] };
        for (to, from) in request.name[..NAME_MAX].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        request
    }

    /// With flags (`short ifr_flags`).
    pub(crate) fn flags(mut self, flags: i16) -> Request {
        self.body[..2].copy_from_slice(&flags.to_ne_bytes());
        self
    }

    /// With a number (`int ifr_mtu`).
    pub(crate) fn number(mut self, number: i32) -> Request {
        self.body[..4].copy_from_slice(&number.to_ne_bytes());
        self
    }

    /// With an IPv4 address (`struct sockaddr_in`: family, port, address).
    pub(crate) fn ipv4(mut self, address: Ipv4Addr) -> Request {
        self.body[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        self.body[4..8].copy_from_slice(&address.octets());
        self
    }

    /// With an Ethernet address (`struct sockaddr`: family, address).
    pub(crate) fn ethernet(mut self, address: [u8; 6]) -> Request {
        self.body[..2].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        self.body[2..8].copy_from_slice(&address);
        self
    }

    /// The name; the kernel fills it in where the request left it open.
    pub(crate) fn name(&self) -> String {
        let name = self.name.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// The flags in the answer.
    pub(crate) fn answered_flags(&self) -> i16 {
        i16::from_ne_bytes([self.body[0], self.body[1]])
    }

    /// The Ethernet address in the answer; `None` of an interface of another kind.
    pub(crate) fn answered_ethernet(&self) -> Option<[u8; 6]> {
        let kind = u16::from_ne_bytes([self.body[0], self.body[1]]);
        let address = self.body.get(2..8).and_then(|it| it.first_chunk()).copied();
        (kind == libc::ARPHRD_ETHER).then_some(address).flatten()
    }

    /// Makes the request of the device or socket `fd`. `request` must be one whose argument is a
    /// `struct ifreq`.
    pub(crate) fn submit(&mut self, fd: impl AsFd, request: libc::Ioctl) -> io::Result<()> {
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, as it is borrowed; the argument is a live `struct ifreq`
        // (layout above), which is all that the requests of this crate read or write.
        let answer = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(self)) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Takes no offloads at the TAP queue `fd`.
///
/// # Errors
/// The kernel knows none, or does not allow it: then they are as they were.
pub(crate) fn take_no_offloads(fd: impl AsFd) -> io::Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: the descriptor is open, as it is borrowed; the argument is a number, and no memory is touched.
    let answer = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD, none) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_laid_out_as_the_kernel_reads_it() {
        assert!(size_of::<Request>() >= size_of::<libc::ifreq>());
        let request = Request::new("tap0").ipv4(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(request.body[4..8], [10, 0, 0, 1]);
        assert_eq!(request.body[..2], 2u16.to_ne_bytes());
        assert_eq!(request.name(), "tap0");
        assert_eq!(Request::new("tap0").flags(0x1002).answered_flags(), 0x1002);
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_before_the_zero() {
        assert_eq!(Request::new("a-name-far-too-long").name(), "a-name-far-too-");
    }
}
