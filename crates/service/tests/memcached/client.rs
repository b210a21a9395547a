//! A client that talks to a memcached in the same thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use napkin_service::memcached::{Limits, Memcached};
use napkin_service::{Served, StreamService};
use napkin_stack::Flow;

pub(crate) const SECOND: u64 = 1_000_000_000;
/// The Unix time at time 0 of the clock.
pub(crate) const EPOCH: i64 = 1_700_000_000;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const FLOW: Flow =
    Flow::new(SocketAddr::new(HOST, 11_211), SocketAddr::new(HOST, 40_000));

/// A client's connection, with a settable clock.
pub(crate) struct Client {
    pub(crate) memcached: Memcached,
    pub(crate) now: u64,
    pub(crate) closed: bool,
}

impl Client {
    pub(crate) fn new() -> Client {
        Client::with(Limits { item: 1_000, ..Limits::default() })
    }

    pub(crate) fn with(limits: Limits) -> Client {
        let memcached = Memcached::new(limits, EPOCH).expect("limits that agree");
        Client { memcached, now: 5 * SECOND, closed: false }
    }

    /// Another client of the same store.
    pub(crate) fn another(&self) -> Client {
        Client { memcached: self.memcached.clone(), ..*self }
    }

    /// Sends bytes in pieces of these sizes, and returns the answer.
    pub(crate) fn send(&mut self, bytes: &[u8], pieces: &[usize]) -> Vec<u8> {
        let (mut state, mut output) = (self.memcached.open(FLOW), Vec::new());
        let (mut input, mut rest) = (Vec::new(), bytes);
        let mut sizes = pieces.iter().copied().cycle();
        while !rest.is_empty() && !self.closed {
            let piece = sizes.next().unwrap_or(rest.len()).clamp(1, rest.len());
            input.extend_from_slice(&rest[..piece]);
            rest = &rest[piece..];
            while !input.is_empty() {
                match self.memcached.serve(&mut state, &input, &mut output, self.now) {
                    Served::Request(taken) | Served::Continued(taken) => {
                        assert!((1..=input.len()).contains(&taken), "{taken} of {}", input.len());
                        input.drain(..taken);
                    }
                    Served::More => {
                        assert!(input.len() < self.memcached.longest_request(), "waits for ever");
                        break;
                    }
                    Served::Wait => panic!("nothing of memcached's is under way"),
                    Served::Close => {
                        self.closed = true;
                        break;
                    }
                }
            }
        }
        output
    }

    /// Sends lines, separated by `|`, and returns the answer in the same form.
    pub(crate) fn say(&mut self, lines: &str) -> String {
        let bytes = lines.split('|').map(|line| format!("{line}\r\n")).collect::<String>();
        let answer = String::from_utf8(self.send(bytes.as_bytes(), &[])).expect("text");
        answer.strip_suffix("\r\n").unwrap_or(&answer).replace("\r\n", "|")
    }
}

#[track_caller]
pub(crate) fn dialogue(lines: &[(&str, &str)]) {
    let mut client = Client::new();
    for (line, heard) in lines {
        assert_eq!(client.say(line), *heard, "to {line}");
    }
}
