//! The ioctls that create a TAP device, configure its kernel side, and query an interface.
//!
//! All but one of them use the same request structure: sixteen bytes of name and a body whose meaning depends on
//! the request. It is written here as bytes rather than as libc's union, so that the calls themselves are the only
//! `unsafe` code of the device.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

/// The longest name of a network interface, in bytes: `IFNAMSIZ` less the terminating zero.
pub(crate) const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// `struct ifreq`. The kernel reads 40 bytes on 64-bit machines and 32 on others; the requests below use the first
/// 16 bytes of the body.
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

    /// Sets the flags (`short ifr_flags`).
    pub(crate) fn flags(mut self, flags: i16) -> Request {
        self.body[..2].copy_from_slice(&flags.to_ne_bytes());
        self
    }

    /// Sets a number (`int ifr_mtu`).
    pub(crate) fn number(mut self, number: i32) -> Request {
        self.body[..4].copy_from_slice(&number.to_ne_bytes());
        self
    }

    /// Sets an IPv4 address (`struct sockaddr_in`: family, port, address).
    pub(crate) fn ipv4(mut self, address: Ipv4Addr) -> Request {
        self.body[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        self.body[4..8].copy_from_slice(&address.octets());
        self
    }

    /// Sets an Ethernet address (`struct sockaddr`: family, address).
    pub(crate) fn ethernet(mut self, address: [u8; 6]) -> Request {
        self.body[..2].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        self.body[2..8].copy_from_slice(&address);
        self
    }

    /// The name; the kernel completes it where the request left it open.
    pub(crate) fn name(&self) -> String {
        let name = self.name.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// The flags in the answer.
    pub(crate) fn answered_flags(&self) -> i16 {
        i16::from_ne_bytes([self.body[0], self.body[1]])
    }

    /// The Ethernet address in the answer; `None` if the interface is not Ethernet.
    pub(crate) fn answered_ethernet(&self) -> Option<[u8; 6]> {
        let kind = u16::from_ne_bytes([self.body[0], self.body[1]]);
        let address = self.body.get(2..8).and_then(|it| it.first_chunk()).copied();
        (kind == libc::ARPHRD_ETHER).then_some(address).flatten()
    }

    /// Issues the ioctl `request` on the device or socket `fd`. Its argument must be a `struct ifreq`.
    pub(crate) fn submit(&mut self, fd: impl AsFd, request: libc::Ioctl) -> io::Result<()> {
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, as it is borrowed; the argument is a live `struct ifreq` (layout above),
        // and the requests of this crate read and write nothing else.
        let answer = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(self)) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Turns off all offloads of the TAP queue `fd`.
///
/// # Errors
/// The kernel does not support the ioctl or does not allow it; the offloads are then unchanged.
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
