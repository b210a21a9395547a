//! Whether a device has what must not be delayed by mistake: the default route, or the connection over
//! which somebody gives the command.

use std::fmt;
use std::net::IpAddr;

use napkin_kernel::netlink::{NetlinkError, Route};

/// Ancestors of this process that are looked at.
const ANCESTORS: usize = 64;

/// The largest environment of a process that is read, in bytes.
const LARGEST: usize = 1 << 20;

/// What a device carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carries {
    /// A default route leads over it.
    pub default_route: bool,
    /// The connection of this terminal, by ssh, ends at one of its addresses.
    pub connection: bool,
}

impl Carries {
    /// Whether it carries any of it.
    pub fn any(self) -> bool {
        self.default_route || self.connection
    }
}

impl fmt::Display for Carries {
    /// `the default route and this terminal's connection`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.default_route, self.connection) {
            (true, true) => "the default route and this terminal's own connection",
            (true, false) => "the default route",
            (false, true) => "this terminal's own connection",
            (false, false) => "nothing of the kind",
        })
    }
}

/// What a device of this network namespace carries.
///
/// # Errors
/// If the kernel does not answer.
pub fn carries(ifindex: u32) -> Result<Carries, NetlinkError> {
    let mut route = Route::open()?;
    let default_route = route.default_routes()?.contains(&ifindex);
    let connection = match terminal() {
        Some(address) => {
            let addresses = route.addresses()?;
            addresses.iter().any(|it| it.ip == address && it.ifindex == ifindex)
        }
        None => false,
    };
    Ok(Carries { default_route, connection })
}

/// The address of this host at which the terminal's connection ends. `sudo` drops the variable that
/// says it; the shell above has it still.
fn terminal() -> Option<IpAddr> {
    let mut pid = std::process::id();
    for _ in 0..ANCESTORS {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = bytes.get(..LARGEST.min(bytes.len()))?.split(|byte| *byte == 0);
        let found = variables.find_map(|it| it.strip_prefix(b"SSH_CONNECTION="));
        if let Some(value) = found.and_then(|it| std::str::from_utf8(it).ok()) {
            return server(value);
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may have blanks and brackets in it.
        let rest = stat.rsplit_once(')')?.1;
        pid = rest.split_whitespace().nth(1)?.parse().ok().filter(|it| *it > 0)?;
    }
    None
}

/// Of `client port server port` the server's address.
fn server(value: &str) -> Option<IpAddr> {
    let address: IpAddr = value.split(' ').nth(2)?.parse().ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_s_address_is_the_third_word() {
        let address = server("192.0.2.7 51234 192.0.2.1 22").expect("an address");
        assert_eq!(address, IpAddr::from([192, 0, 2, 1]));
        let mapped = server("::1 5 ::ffff:192.0.2.1 22").expect("an address");
        assert_eq!(mapped, IpAddr::from([192, 0, 2, 1]), "as the device has it");
        assert_eq!(server(""), None);
        assert_eq!(server("a b c d"), None);
    }
}
