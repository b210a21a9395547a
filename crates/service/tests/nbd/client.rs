//! A client that talks to a server in the same thread.

use std::net::{Ipv4Addr, SocketAddr};

use napkin_service::nbd::{
    Action, BlockStore, Ended, MemoryStore, NAME_LIMIT, Nbd, Operation, Session, StoreError,
};
use napkin_service::{Served, StreamService};
use napkin_stack::Flow;

pub(crate) const NAME: &str = "disk";
/// Most bytes of a connection's unsent replies: a window, and one piece more with its headers.
pub(crate) const OUTPUT: usize = (1 << 20) + (256 << 10) + 64 * 1_024;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const ZERO: u16 = 6;
pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;

/// A store whose operations complete later, the last first, and can fail.
#[derive(Debug)]
pub(crate) struct Late {
    memory: MemoryStore,
    begun: Vec<Operation>,
    ready: Vec<Ended>,
    /// Number of completed flushes.
    pub(crate) flushes: usize,
    /// Operations that touch this byte fail.
    pub(crate) bad: Option<u64>,
    /// Whether nothing completes.
    pub(crate) stuck: bool,
}

impl Late {
    pub(crate) fn new(memory: MemoryStore) -> Late {
        let (begun, ready) = (Vec::new(), Vec::new());
        Late { memory, begun, ready, flushes: 0, bad: None, stuck: false }
    }

    /// Buffer bytes of operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        let bytes = |it: &Operation| match &it.action {
            Action::Read(bytes) | Action::Write(bytes) => bytes.len(),
            _ => 0,
        };
        self.begun.iter().map(bytes).sum()
    }
}

impl BlockStore for Late {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn begin(&mut self, operation: Operation) -> Option<Ended> {
        self.begun.push(operation);
        None
    }

    fn ended(&mut self) -> Option<Ended> {
        self.ready.pop()
    }

    fn forget(&mut self, wanted: &dyn Fn(u64) -> bool) {
        self.begun.retain(|operation| wanted(operation.tag));
    }

    fn submit(&mut self) {
        if self.stuck {
            return;
        }
        for operation in self.begun.drain(..) {
            self.flushes += usize::from(operation.action == Action::Flush);
            let length = match &operation.action {
                Action::Read(bytes) | Action::Write(bytes) => bytes.len() as u64,
                Action::Trim(length) | Action::Zero { length, .. } => *length,
                Action::Flush => 0,
            };
            let range = operation.offset..operation.offset + length;
            let ended = match self.bad.is_some_and(|bad| range.contains(&bad)) {
                true => (operation, Err(StoreError::Io)),
                false => self.memory.begin(operation).expect("memory is at once"),
            };
            self.ready.push(ended);
        }
    }
}

/// A connection, and the thread that serves it.
pub(crate) struct Client<S> {
    pub(crate) nbd: Nbd<S>,
    session: Session,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes received and not yet examined.
    pub(crate) heard: Vec<u8>,
    /// Whether the client receives.
    pub(crate) reading: bool,
    /// Bytes received and discarded, if the client discards them.
    pub(crate) forgotten: Option<usize>,
    pub(crate) closed: bool,
    structured: bool,
}

/// The reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Data(Vec<u8>),
    Done,
    Error(u32),
}

impl<S: BlockStore> Client<S> {
    /// Connects, and takes the greeting.
    pub(crate) fn new(store: S) -> Client<S> {
        Client::of(Nbd::new(NAME, false, store).expect("a name"))
    }

    pub(crate) fn of(mut nbd: Nbd<S>) -> Client<S> {
        let end = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let session = nbd.open(Flow::new(end(10_809), end(40_000)));
        let mut client = Client {
            nbd,
            session,
            input: Vec::new(),
            output: Vec::new(),
            heard: Vec::new(),
            reading: true,
            forgotten: None,
            closed: false,
            structured: false,
        };
        client.look();
        assert_eq!(client.take(18), *b"NBDMAGICIHAVEOPT\x00\x03");
        client
    }

    /// A client that is past the handshake.
    pub(crate) fn ready(store: S, structured: bool) -> Client<S> {
        Client::new(store).go(structured)
    }

    /// Goes through the handshake.
    pub(crate) fn go(mut self, structured: bool) -> Client<S> {
        self.send(&3u32.to_be_bytes());
        if structured {
            assert_eq!(self.option(8, b""), [(1, Vec::new())]);
            self.structured = true;
        }
        let answers = self.option(7, &asking(NAME, &[]));
        assert_eq!(answers.last(), Some(&(1, Vec::new())), "{answers:?}");
        self
    }

    /// Closes the connection, and ends the thread's step.
    pub(crate) fn leave(self) -> Nbd<S> {
        let Client { mut nbd, session, .. } = self;
        drop(session);
        nbd.submit();
        nbd
    }

    /// Serves the connection until nothing happens any more.
    pub(crate) fn look(&mut self) {
        loop {
            let mut happened = false;
            self.nbd.collect(&mut |_| happened = true);
            if !self.closed {
                self.nbd.proceed(&mut self.session, &mut self.output, 0);
                self.closed |= self.nbd.must_close(&self.session);
            }
            assert!(self.output.len() <= OUTPUT, "{} bytes wait", self.output.len());
            if self.reading {
                happened |= !self.output.is_empty();
                match &mut self.forgotten {
                    Some(bytes) => *bytes += std::mem::take(&mut self.output).len(),
                    None => self.heard.append(&mut self.output),
                }
            }
            if !self.closed && !self.input.is_empty() && self.output.len() < 64 * 1_024 {
                let (session, output) = (&mut self.session, &mut self.output);
                match self.nbd.serve(session, &self.input, output, 0) {
                    Served::Request(bytes) | Served::Continued(bytes) => {
                        assert!((1..=self.input.len()).contains(&bytes), "{bytes}");
                        self.input.drain(..bytes);
                        happened = true;
                    }
                    Served::More => {
                        assert!(self.input.len() < self.nbd.longest_request(), "waits for ever");
                    }
                    Served::Wait => {}
                    Served::Close => {
                        self.closed = true;
                        self.heard.append(&mut self.output);
                    }
                }
            }
            self.nbd.submit();
            // What has completed by now is left to the next round.
            let mut ended = false;
            self.nbd.collect(&mut |_| ended = true);
            if !happened && !ended {
                return;
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.look();
    }

    /// Bytes sent that the server has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.input.len()
    }

    #[track_caller]
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        assert!(self.heard.len() >= bytes, "{} bytes came of {bytes}", self.heard.len());
        self.heard.drain(..bytes).collect()
    }

    #[track_caller]
    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Sends an option, and returns the replies by type and data.
    #[track_caller]
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&option_bytes(option, data));
        let mut replies = Vec::new();
        while !self.heard.is_empty() {
            assert_eq!(self.number(8), 0x3e889045565a9);
            assert_eq!(self.number(4), u64::from(option));
            let kind = self.number(4) as u32;
            let length = self.number(4) as usize;
            replies.push((kind, self.take(length)));
        }
        replies
    }

    /// Sends a request, and returns its reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: u16, flags: u16, at: u64, length: u32) -> Reply {
        self.send(&request(command, flags, 7, at, length));
        self.reply(if command == READ { length } else { 0 })
    }

    #[track_caller]
    pub(crate) fn write(&mut self, flags: u16, at: u64, bytes: &[u8]) -> Reply {
        self.send(&request(WRITE, flags, 7, at, bytes.len() as u32));
        self.send(bytes);
        self.reply(0)
    }

    /// Takes the reply to the only request in flight, a read of `length` bytes (0 for other commands).
    #[track_caller]
    pub(crate) fn reply(&mut self, length: u32) -> Reply {
        let reply = match self.structured {
            true => self.chunks(length),
            false => {
                assert_eq!(self.number(4), 0x6744_6698);
                let error = self.number(4) as u32;
                assert_eq!(self.number(8), 7, "another's cookie");
                match (error, length) {
                    (0, 0) => Reply::Done,
                    (0, _) => Reply::Data(self.take(length as usize)),
                    _ => Reply::Error(error),
                }
            }
        };
        assert!(self.heard.is_empty(), "more than one reply");
        reply
    }

    /// Reassembles the chunks of a reply.
    #[track_caller]
    fn chunks(&mut self, length: u32) -> Reply {
        let (mut pieces, mut error) = (Vec::new(), None);
        loop {
            assert_eq!(self.number(4), 0x668e_33ef);
            let (flags, kind) = (self.number(2), self.number(2));
            assert_eq!(self.number(8), 7, "another's cookie");
            let payload = self.number(4) as usize;
            match kind {
                0 => assert_eq!((payload, flags), (0, 1)),
                1 => {
                    assert!(payload > 8, "a chunk of nothing");
                    let offset = self.number(8);
                    pieces.push((offset, self.take(payload - 8)));
                }
                0x8001 => {
                    error = Some(self.number(4) as u32);
                    let message = self.number(2) as usize;
                    assert_eq!(message + 6, payload);
                    String::from_utf8(self.take(message)).expect("text");
                }
                _ => panic!("a chunk of kind {kind}"),
            }
            if flags == 1 {
                break;
            }
        }
        pieces.sort();
        let all: Vec<u8> = pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let adjoin = |pair: &[(u64, Vec<u8>)]| pair[0].0 + pair[0].1.len() as u64 == pair[1].0;
        match error {
            Some(error) => Reply::Error(error),
            None => {
                assert!(pieces.windows(2).all(adjoin) && all.len() == length as usize);
                if length == 0 { Reply::Done } else { Reply::Data(all) }
            }
        }
    }
}

/// Encodes an option.
pub(crate) fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &option.to_be_bytes()[..], &length, data].concat()
}

/// Encodes a request.
pub(crate) fn request(command: u16, flags: u16, cookie: u64, at: u64, length: u32) -> Vec<u8> {
    let (command, cookie, at) = (command.to_be_bytes(), cookie.to_be_bytes(), at.to_be_bytes());
    [&0x2560_9513u32.to_be_bytes()[..], &flags.to_be_bytes(), &command, &cookie, &at]
        .concat()
        .into_iter()
        .chain(length.to_be_bytes())
        .collect()
}

/// Encodes the data of `INFO` and `GO`.
pub(crate) fn asking(name: &str, information: &[u16]) -> Vec<u8> {
    assert!(name.len() <= 2 * NAME_LIMIT);
    let (length, count) = (name.len() as u32, information.len() as u16);
    let information = information.iter().flat_map(|it| it.to_be_bytes());
    [&length.to_be_bytes()[..], name.as_bytes(), &count.to_be_bytes()]
        .concat()
        .into_iter()
        .chain(information)
        .collect()
}

/// Bytes that differ from offset to offset.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mix = |place: u64| (place ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491_4f6c);
    (0..length as u64).map(|place| (mix(place) >> 24) as u8).collect()
}
