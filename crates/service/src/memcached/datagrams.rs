//! memcached over UDP as in protocol.txt: a header of eight bytes in each datagram, and answers of several
//! datagrams.
//!
//! With a forged source address, answers go to a third party, and the answer to a `get` of large values is
//! thousands of times as long as its request. Use this only on networks that filter foreign source addresses; no
//! answer is longer than [`ANSWER_LIMIT`]. Requests from a service's port are not answered, as in
//! [`echo`](crate::echo): a memcached there would answer our answer, and so on for ever.

use napkin_policy::Ns;
use napkin_stack::{Message, UdpExchange};

use super::{Client, Memcached};
use crate::echo::from_service;
use crate::{Served, Service, StreamService};

/// Bytes of the header of each datagram: request id, sequence number, number of datagrams, 0 (16 bits each).
const HEADER: usize = 8;
/// Largest datagram in bytes, header included; the size that memcached uses.
const DATAGRAM: usize = 1_400;
/// Longest answer in bytes. As in memcached, a longer one is replaced by an error.
pub const ANSWER_LIMIT: usize = 64 * 1_024;

/// A memcached service on a UDP socket.
#[derive(Debug)]
pub struct MemcachedUdp<S> {
    socket: S,
    memcached: Memcached,
    output: Vec<u8>,
    served: u64,
    silent: u64,
    failed: u64,
    refused: u64,
    no_request: u64,
}

impl<S: UdpExchange> MemcachedUdp<S> {
    /// Serves `socket` from the items of `memcached`.
    pub fn new(socket: S, memcached: Memcached) -> MemcachedUdp<S> {
        MemcachedUdp {
            socket,
            memcached,
            output: Vec::new(),
            served: 0,
            silent: 0,
            failed: 0,
            refused: 0,
            no_request: 0,
        }
    }

    /// Requests that were served, including those that want no answer.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Served requests that want no answer.
    pub fn silent(&self) -> u64 {
        self.silent
    }

    /// Answers that could not be sent, or not completely.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Datagrams that were dropped because they came from a service's port.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Datagrams that were dropped, as memcached does: without a header, or part of a request of several datagrams.
    pub fn no_request(&self) -> u64 {
        self.no_request
    }

    /// Serves the request of one datagram, and writes the answer to `output`.
    fn answer(&mut self, request: &[u8], now: Ns) {
        self.output.clear();
        let (mut client, mut rest) = (Client::default(), request);
        while !rest.is_empty() && self.output.len() <= ANSWER_LIMIT {
            match self.memcached.serve(&mut client, rest, &mut self.output, now) {
                Served::Request(bytes) | Served::Continued(bytes) => {
                    rest = rest.get(bytes..).unwrap_or_default();
                }
                // A request must be complete in its datagram: the rest of the value will not come.
                Served::More => {
                    self.output.extend_from_slice(b"CLIENT_ERROR bad data chunk\r\n");
                    break;
                }
                Served::Wait | Served::Close => break,
            }
        }
        if self.output.len() > ANSWER_LIMIT {
            self.output.clear();
            self.output.extend_from_slice(b"SERVER_ERROR multi-packet response too large\r\n");
        }
    }
}

impl<S: UdpExchange> Service for MemcachedUdp<S> {
    type Socket = S;

    fn socket(&self) -> &S {
        &self.socket
    }

    fn serve_ready(&mut self, now: Ns, limit: usize) -> usize {
        let mut served = 0;
        while served < limit
            && let Some(datagram) = self.socket.try_recv()
        {
            served += 1;
            if datagram.ports().is_some_and(from_service) {
                self.refused += 1;
                continue;
            }
            let Some((header, request)) = datagram.payload().split_first_chunk::<HEADER>() else {
                self.no_request += 1;
                continue;
            };
            if header[4..6] != [0, 1] {
                self.no_request += 1;
                continue;
            }
            self.answer(request, now);
            self.served += 1;
            self.silent += u64::from(self.output.is_empty());
            let id = [header[0], header[1]];
            let parts = self.output.chunks(DATAGRAM - HEADER);
            let count = (parts.len() as u16).to_be_bytes();
            let parts = (0u16..).zip(parts).map(|(number, part)| {
                let number = number.to_be_bytes();
                [&id, &number, &count, &[0, 0], part].concat()
            });
            if self.socket.reply_each(datagram, parts, now).is_err() {
                self.failed += 1;
            }
        }
        self.socket.flush();
        served
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use napkin_nic::{Pool, SendError, Transmitter};
    use napkin_stack::{Address, FrameBuilder, Input, Stack, UdpSocket};

    use super::*;
    use crate::memcached::Limits;

    const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
    const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);

    #[derive(Default)]
    struct Wire(Mutex<Vec<Vec<u8>>>);

    impl Transmitter for Wire {
        fn send(&self, frame: &[u8], _: Ns) -> Result<(), SendError> {
            self.0.lock().unwrap().push(frame[42..].to_vec());
            Ok(())
        }
    }

    struct Server {
        service: MemcachedUdp<UdpSocket>,
        input: Input,
        wire: Arc<Wire>,
        pool: Pool,
    }

    impl Server {
        fn new() -> Server {
            let (stack, wire) = (Stack::new(US), Arc::<Wire>::default());
            let input = Input::new(Arc::clone(&stack), 1, wire.clone());
            let socket = stack.bind_udp(11_211, 8).unwrap();
            let memcached = Memcached::new(Limits::default(), 0).unwrap();
            let service = MemcachedUdp::new(socket, memcached);
            Server { service, input, wire, pool: Pool::new(8) }
        }

        /// Sends a datagram, and returns the answer's datagrams with their headers.
        fn send(&mut self, payload: &[u8]) -> Vec<Vec<u8>> {
            self.send_from(4_000, payload)
        }

        fn send_from(&mut self, port: u16, payload: &[u8]) -> Vec<Vec<u8>> {
            let mut frame = self.pool.take().unwrap();
            let build = FrameBuilder::new(PEER, US);
            let length = build.udp(frame.buffer(), port, 11_211, payload).unwrap();
            frame.set_len(length);
            self.input.deliver(&mut vec![frame], 0);
            assert_eq!(self.service.serve_ready(1, 8), 1);
            std::mem::take(&mut *self.wire.0.lock().unwrap())
        }

        /// Sends a request with this id, and returns its reassembled answer.
        fn say(&mut self, id: u16, request: &str) -> String {
            let [high, low] = id.to_be_bytes();
            let header = [high, low, 0, 0, 0, 1, 0, 0];
            let answer = self.send(&[&header[..], request.as_bytes()].concat());
            let count = answer.len() as u16;
            let mut text = Vec::new();
            for (number, datagram) in (0u16..).zip(&answer) {
                let [a, b] = number.to_be_bytes();
                let [c, d] = count.to_be_bytes();
                assert_eq!(datagram[..8], [high, low, a, b, c, d, 0, 0]);
                text.extend_from_slice(&datagram[8..]);
            }
            String::from_utf8(text).unwrap()
        }
    }

    #[test]
    fn a_request_is_answered_under_its_id() {
        let mut server = Server::new();
        assert_eq!(server.say(7, "set k 5 0 2\r\nhi\r\n"), "STORED\r\n");
        assert_eq!(server.say(0xfffe, "get k\r\n"), "VALUE k 5 2\r\nhi\r\nEND\r\n");
        assert_eq!(server.say(9, "mg k v\r\nmn\r\n"), "VA 2\r\nhi\r\nMN\r\n");
        assert_eq!(server.say(1, "set q 0 0 1 noreply\r\nx\r\n"), "");
        assert_eq!(server.say(2, "get q"), "CLIENT_ERROR bad data chunk\r\n");
        assert_eq!((server.service.served(), server.service.silent()), (5, 1));
    }

    #[test]
    fn a_long_answer_takes_several_datagrams_and_one_that_is_too_long_is_refused() {
        let mut server = Server::new();
        let value = "x".repeat(1_300);
        for key in 0..100 {
            let stored = server.say(key, &format!("set k{key} 0 0 1300\r\n{value}\r\n"));
            assert_eq!(stored, "STORED\r\n");
        }
        let keys = |most: u16| (0..most).map(|key| format!(" k{key}")).collect::<String>();
        let answer = server.say(300, &format!("get{}\r\n", keys(10)));
        assert_eq!(answer.matches("VALUE k").count(), 10);
        assert!(answer.ends_with("END\r\n"));
        let answer = server.say(301, &format!("get{}\r\n", keys(100)));
        assert!(answer.starts_with("SERVER_ERROR"), "{}", answer.len());
    }

    #[test]
    fn what_has_no_header_or_comes_in_several_datagrams_is_dropped() {
        let mut server = Server::new();
        for payload in [&b""[..], b"get k\r\n", &[0, 1, 0, 0, 0, 2, 0, 0, b'm', b'n', b'\r', b'\n']]
        {
            assert!(server.send(payload).is_empty());
        }
        assert_eq!((server.service.served(), server.service.no_request()), (0, 3));
    }

    #[test]
    fn a_service_is_not_answered() {
        let mut server = Server::new();
        // From another memcached, whose answers have the form of a request, and from a reserved port.
        for port in [11_211, 53] {
            assert!(server.send_from(port, b"\0\x07\0\0\0\x01\0\0ERROR\r\n").is_empty());
        }
        assert_eq!((server.service.served(), server.service.refused()), (0, 2));
    }
}
