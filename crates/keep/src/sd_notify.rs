//! Notifies systemd of the service's state (`sd_notify(3)`): a datagram to the socket named in
//! `$NOTIFY_SOCKET`. Implements only the few lines of the protocol that are needed.

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};

/// The maximum length of a value in bytes.
const LONGEST: usize = 2_000;

/// The notification socket, if there is one.
#[derive(Debug)]
pub(crate) struct SdNotify {
    to: Option<(OwnedFd, SocketAddrUnix)>,
}

impl SdNotify {
    /// Reads the address from `NOTIFY_SOCKET`; without the variable, notifications are dropped.
    pub(crate) fn from_environment() -> SdNotify {
        let named = std::env::var("NOTIFY_SOCKET").unwrap_or_default();
        let address = match named.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()).ok(),
            None if named.starts_with('/') => SocketAddrUnix::new(named).ok(),
            None => None,
        };
        let to = address.and_then(|address| {
            let kind = (AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC);
            Some((socket_with(kind.0, kind.1, kind.2, None).ok()?, address))
        });
        SdNotify { to }
    }

    /// Sends `KEY=VALUE` lines. Errors are ignored: nothing depends on their delivery.
    pub(crate) fn notify(&self, lines: &[(&str, &str)]) {
        let Some((socket, address)) = &self.to else { return };
        let line = |(key, value): &(&str, &str)| {
            let value: String =
                value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let end = value.floor_char_boundary(LONGEST);
            format!("{key}={}\n", &value[..end])
        };
        let text: String = lines.iter().map(line).collect();
        let _ = sendto(socket, text.as_bytes(), SendFlags::NOSIGNAL, address);
    }
}
