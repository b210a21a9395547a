//! The ports on which sockets of the calling thread's network namespace serve.
//!
//! They are read from `/proc/thread-self/net`, which takes no capability and looks at no process. For TCP these are
//! the listening sockets: the kernel lists them before all connections, so that a hundred thousand connections cost
//! nothing more. For UDP these are the sockets that are bound without a peer, outside of the range from which the
//! kernel assigns ports to clients (`ip_local_port_range`).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;

/// `TCP_LISTEN` in the tables' format.
const LISTEN: &str = "0A";
/// `TCP_CLOSE`, the state of a UDP socket without a peer.
const UNCONNECTED: &str = "07";
/// Linux's default range, used if the range cannot be read.
const DEFAULT_CLIENT_PORTS: RangeInclusive<u16> = 32_768..=60_999;
/// Limit of UDP sockets that are read.
const MAX_UDP_SOCKETS: usize = 1 << 16;

/// Returns the ports in ascending order.
///
/// # Errors
/// If procfs is not mounted. A protocol that this kernel was built without has no ports.
pub fn ports() -> io::Result<BTreeSet<u16>> {
    let clients = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let clients = clients.ok().and_then(|text| range(&text)).unwrap_or(DEFAULT_CLIENT_PORTS);
    let mut ports = BTreeSet::new();
    for name in ["tcp", "tcp6"] {
        ports.extend(table_lines(name)?.map_while(|line| port_in_state(&line?, LISTEN)));
    }
    for name in ["udp", "udp6"] {
        let bound = table_lines(name)?.take(MAX_UDP_SOCKETS);
        let bound = bound.filter_map(|line| port_in_state(&line?, UNCONNECTED));
        ports.extend(bound.filter(|port| !clients.contains(port)));
    }
    Ok(ports)
}

/// Returns the lines of a table without its header; `None` where a line cannot be read.
fn table_lines(name: &str) -> io::Result<impl Iterator<Item = Option<String>>> {
    let file = match File::open(format!("/proc/thread-self/net/{name}")) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let lines = file.into_iter().flat_map(|file| BufReader::new(file).lines().skip(1));
    Ok(lines.map(Result::ok))
}

/// Returns the local port of a line, if its socket is in that state.
fn port_in_state(line: &str, state: &str) -> Option<u16> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, found) = (fields.next()?, fields.nth(1)?);
    let (_, port) = local.rsplit_once(':')?;
    (found == state).then(|| u16::from_str_radix(port, 16).ok()).flatten().filter(|port| *port != 0)
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut ends = text.split_ascii_whitespace().map(|end| end.parse().ok());
    Some(ends.next()??..=ends.next()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_port_if_its_state_is_the_one() {
        let line = "   0: 0100007F:2BCB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0";
        assert_eq!(port_in_state(line, LISTEN), Some(11_211));
        assert_eq!(port_in_state(line, UNCONNECTED), None);
        for garbage in ["", "0:", "0: a b 0A", "0: 0:0000 x 0A", "0: 0:FFFFF x 0A"] {
            assert_eq!(port_in_state(garbage, LISTEN), None, "{garbage:?}");
        }
        assert_eq!(range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(range("many"), None);
    }

    #[test]
    fn who_listens_is_there_and_who_has_connected_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let ports = ports().expect("procfs");
        assert!(ports.contains(&port), "{ports:?}");
        assert!(!ports.contains(&client.local_addr().expect("an address").port()), "{ports:?}");
    }
}
