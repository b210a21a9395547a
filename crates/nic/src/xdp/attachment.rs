//! The attachment of the redirect program to an interface.

use std::io;
use std::sync::Arc;

use napkin_bpf::{Link, Program, Refused, SocketMap};

use super::config::{Copying, Mode, XdpConfig};
use super::error::XdpError;
use super::interface::Interface;
use super::program;

/// The link of the attached program, and its map of sockets.
#[derive(Debug)]
pub(super) struct Attachment {
    _link: Link,
    pub(super) map: SocketMap,
}

/// Loads the program and attaches it, natively if the mode and the driver allow. Returns whether it is native.
pub(super) fn attach(
    config: &XdpConfig,
    interface: &Interface,
    numbers: &[u32],
) -> Result<(Arc<Attachment>, bool), XdpError> {
    let name = &config.interface;
    let entries = numbers.iter().max().map_or(1, |most| most + 1);
    let map =
        SocketMap::create(entries, "napkin_xsks").map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => {
                XdpError::Permission { action: "make a map of sockets", right: "CAP_BPF" }
            }
            Some(libc::EINVAL) => XdpError::NoXdp,
            _ => XdpError::system("make a map of sockets", name, error),
        })?;
    let refused = |source, log| XdpError::Program { source, log };
    let instructions = program::redirect(&config.traffic, map.descriptor())
        .map_err(|error| refused(io::Error::other(error), String::new()))?;
    let program = Program::load_xdp("napkin_xdp", &instructions)
        .map_err(|Refused { error, log }| refused(error, log))?;
    let link = |generic: bool| {
        program.attach_xdp(interface.index, generic).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Attached { name: name.clone() },
            Some(libc::EPERM) => {
                XdpError::Permission { action: "attach an XDP program", right: "CAP_NET_ADMIN" }
            }
            Some(libc::EOPNOTSUPP) if !generic => {
                XdpError::NotNative { name: name.clone(), driver: interface.driver.clone() }
            }
            Some(libc::EINVAL) if generic => XdpError::NoLink,
            _ => XdpError::system("attach an XDP program", name, error),
        })
    };
    let (link, native) = match config.mode {
        Mode::Native => (link(false)?, true),
        Mode::Generic => (link(true)?, false),
        Mode::Auto => match link(false) {
            Ok(link) => (link, true),
            Err(error @ (XdpError::Attached { .. } | XdpError::Permission { .. })) => {
                return Err(error);
            }
            // Generic mode may work whatever the driver's reason (its MTU, its queues, no XDP).
            Err(_) if config.copying != Copying::Zero => (link(true)?, false),
            Err(error) => return Err(error),
        },
    };
    Ok((Arc::new(Attachment { _link: link, map }), native))
}
