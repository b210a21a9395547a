//! A netlink socket: sends requests, and reads replies without trusting them.
//!
//! There is one request at a time. Its reply is read to the end even after an error in it, so that the next request
//! finds an empty socket. What messages mean is up to the callers.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkHeader,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::attribute::{Attribute, Body, Malformed, attributes, split_header};
use super::error::NetlinkError;
use napkin_os::rights::Right;

/// Limit of the wait for one reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the messages of one reply from which records are kept, in total bytes: some ten thousand devices with
/// all of their attributes.
const MAX_REPLY: usize = 32 << 20;
/// The buffer for one datagram. In a dump, the kernel fills up to 32 KiB of it.
const DATAGRAM: usize = 64 << 10;
/// Limit of readings of a list that keeps changing.
const MAX_DUMPS: u32 = 8;

const HEADER: usize = 16;
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// An open socket.
pub(super) struct Connection {
    socket: Socket,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("port", &self.port)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// Opens a socket of `protocol` in the calling thread's network namespace.
    pub(super) fn open(protocol: isize) -> Result<Connection, NetlinkError> {
        let failed = |step| {
            move |error: std::io::Error| NetlinkError::Open { step, errno: errno_of(&error) }
        };
        let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
        let port = socket.bind_auto().map_err(failed("bind"))?.port_number();
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed("connect"))?;
        // Older kernels lack these options (4.12, 4.20). They add explanations and stricter checks of requests;
        // nothing depends on them.
        for _absent in [
            socket.set_ext_ack(true),
            socket.set_cap_ack(true),
            socket.set_netlink_get_strict_chk(true),
        ] {}
        set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_TIMEOUT))
            .map_err(|errno| NetlinkError::Open { step: "receive timeout", errno })?;
        Ok(Connection { socket, port, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Sends one request and reads its replies, up to the acknowledgement. `parse` gets each reply's type and body,
    /// and returns `None` for a message to skip.
    pub(super) fn ask<T>(
        &mut self,
        what: fmt::Arguments<'_>,
        message_type: u16,
        flags: u16,
        body: Body,
        mut parse: impl FnMut(u16, &[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        let body = finish(what, body)?;
        self.send(what, message_type, NLM_F_ACK | flags, &body)?;
        let mut reply = Reply::new(self.sequence, self.port, &mut parse);
        receive(&self.socket, &mut self.buffer, REPLY_TIMEOUT, what, &mut reply)?;
        reply.result(what).map(|(records, _)| records)
    }

    /// Dumps a list, again if it changed meanwhile.
    pub(super) fn dump<T>(
        &mut self,
        what: fmt::Arguments<'_>,
        message_type: u16,
        body: Body,
        mut parse: impl FnMut(u16, &[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        let body = finish(what, body)?;
        for _ in 0..MAX_DUMPS {
            self.send(what, message_type, NLM_F_DUMP, &body)?;
            let mut reply = Reply::new(self.sequence, self.port, &mut parse);
            receive(&self.socket, &mut self.buffer, REPLY_TIMEOUT, what, &mut reply)?;
            let (records, changed) = reply.result(what)?;
            if !changed {
                return Ok(records);
            }
        }
        Err(NetlinkError::Inconsistent { request: what.to_string(), tries: MAX_DUMPS })
    }

    /// Sends one message. The kernel processes it within this call: a change that has to wait for an instance's
    /// thread blocks the caller as well.
    fn send(
        &mut self,
        what: fmt::Arguments<'_>,
        message_type: u16,
        flags: u16,
        body: &[u8],
    ) -> Result<(), NetlinkError> {
        let length = u32::try_from(HEADER + body.len())
            .map_err(|_| NetlinkError::RequestTooLarge { request: what.to_string() })?;
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.length = length;
        header.message_type = message_type;
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        header.port_number = self.port;
        let mut message = vec![0; HEADER];
        header.emit(&mut message);
        message.extend_from_slice(body);
        loop {
            match self.socket.send(&message, 0) {
                Ok(_) => return Ok(()),
                Err(error) if errno_of(&error) == Errno::INTR => {}
                Err(error) => {
                    return Err(NetlinkError::Io {
                        request: what.to_string(),
                        errno: errno_of(&error),
                    });
                }
            }
        }
    }
}

fn finish(what: fmt::Arguments<'_>, body: Body) -> Result<Vec<u8>, NetlinkError> {
    body.finish().ok_or_else(|| NetlinkError::RequestTooLarge { request: what.to_string() })
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Receives datagrams until the reply is complete. The socket's timeout limits the wait for each datagram;
/// `patience` limits the total time if other datagrams keep coming.
fn receive<T>(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    patience: Duration,
    what: fmt::Arguments<'_>,
    reply: &mut Reply<'_, T>,
) -> Result<(), NetlinkError> {
    let late = || NetlinkError::Timeout { request: what.to_string(), seconds: patience.as_secs() };
    let deadline = Instant::now() + patience;
    while !reply.complete {
        buffer.clear();
        match socket.recv_from(buffer, libc::MSG_TRUNC) {
            // Sent by another process: with the right capability it may send to this port.
            Ok((_, sender)) if sender.port_number() != 0 => {}
            Ok((length, _)) if length > buffer.len() => {
                reply.fault(Fault::Malformed("a datagram is larger than the kernel's largest"));
                reply.complete = true;
            }
            Ok(_) => reply.datagram(buffer),
            Err(error) => match errno_of(&error) {
                Errno::INTR => {}
                // The receive buffer was full, and a part of the reply is lost.
                Errno::NOBUFS => reply.changed = true,
                Errno::AGAIN => return Err(late()),
                errno => return Err(NetlinkError::Io { request: what.to_string(), errno }),
            },
        }
        if !reply.complete && Instant::now() > deadline {
            return Err(late());
        }
    }
    Ok(())
}

/// The error of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Malformed(&'static str),
    TooLarge,
    Refused { errno: Errno, text: Option<String> },
}

/// Parses the body of one message of a reply, by its type.
type Parse<'a, T> = &'a mut dyn FnMut(u16, &[u8]) -> Result<Option<T>, Malformed>;

/// The parser of one reply. It does no I/O, so that tests can feed it any bytes.
pub(super) struct Reply<'a, T> {
    sequence: u32,
    port: u32,
    parse: Parse<'a, T>,
    records: Vec<T>,
    /// The total size in bytes of the messages whose records are kept.
    kept: usize,
    /// Whether the list changed while it was written, or a part of it is lost.
    changed: bool,
    complete: bool,
    /// The first error.
    fault: Option<Fault>,
}

impl<'a, T> Reply<'a, T> {
    /// Creates the parser for replies to this sequence number and port.
    pub(super) fn new(sequence: u32, port: u32, parse: Parse<'a, T>) -> Reply<'a, T> {
        Reply {
            sequence,
            port,
            parse,
            records: Vec::new(),
            kept: 0,
            changed: false,
            complete: false,
            fault: None,
        }
    }

    /// Processes one datagram, which holds any number of messages.
    pub(super) fn datagram(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() && !self.complete {
            let Ok(message) = NetlinkBuffer::new_checked(rest) else {
                // The start of the next message, if any, is unknown.
                self.fault(Fault::Malformed("a message's length is not within its datagram"));
                self.complete = true;
                return;
            };
            let length = message.length() as usize;
            let is_own =
                message.sequence_number() == self.sequence && message.port_number() == self.port;
            if is_own {
                let body = &rest[HEADER..length];
                self.message(message.message_type(), message.flags(), body);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }

    fn message(&mut self, kind: u16, flags: u16, body: &[u8]) {
        if flags & NLM_F_DUMP_INTR != 0 {
            self.changed = true;
        }
        match kind {
            NLMSG_NOOP => {}
            NLMSG_OVERRUN => self.fault(Fault::Malformed("the kernel lost a part of its reply")),
            NLMSG_ERROR | NLMSG_DONE => {
                match outcome(kind, flags, body) {
                    Ok(None) => {}
                    Ok(Some(refused)) => self.fault(refused),
                    Err(Malformed(what)) => self.fault(Fault::Malformed(what)),
                }
                self.complete = true;
            }
            _ if self.fault.is_some() => {}
            _ => {
                match (self.parse)(kind, body) {
                    Ok(Some(record)) => self.keep(record, HEADER + body.len()),
                    // A skipped message takes no memory: a router has few default routes among a million routes.
                    Ok(None) => {}
                    Err(Malformed(what)) => self.fault(Fault::Malformed(what)),
                }
            }
        }
    }

    /// Keeps the record of a message of `length` bytes, unless the limit is exceeded.
    fn keep(&mut self, record: T, length: usize) {
        self.kept = self.kept.saturating_add(length);
        if self.kept > MAX_REPLY {
            self.records = Vec::new();
            self.fault(Fault::TooLarge);
        } else {
            self.records.push(record);
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Returns the records, and whether the list changed meanwhile.
    pub(super) fn result(self, what: fmt::Arguments<'_>) -> Result<(Vec<T>, bool), NetlinkError> {
        let request = || what.to_string();
        Err(match self.fault {
            None => return Ok((self.records, self.changed)),
            Some(Fault::Malformed(what)) => NetlinkError::Malformed { request: request(), what },
            Some(Fault::TooLarge) => {
                NetlinkError::TooLarge { request: request(), limit: MAX_REPLY }
            }
            Some(Fault::Refused { errno: Errno::PERM, .. }) => {
                NetlinkError::NoRight { request: request(), right: Right::NetAdmin }
            }
            Some(Fault::Refused { errno, text }) => {
                NetlinkError::Refused { request: request(), errno, text }
            }
        })
    }
}

/// Parses an acknowledgement or the end of a list: an error number, and possibly a text.
fn outcome(kind: u16, flags: u16, body: &[u8]) -> Result<Option<Fault>, Malformed> {
    // Before Linux 4.20 the end of a list could have no error number.
    if kind == NLMSG_DONE && body.is_empty() {
        return Ok(None);
    }
    let (number, rest) = split_header(body, 4)?;
    let number = number.try_into().map(i32::from_ne_bytes).unwrap_or_default();
    if number == 0 || (kind == NLMSG_DONE && number > 0) {
        return Ok(None);
    }
    let raw = number.checked_neg().filter(|raw| (1..4096).contains(raw));
    let errno = raw.ok_or(Malformed("an acknowledgement's error number is none"))?;
    let text = if flags & NLM_F_ACK_TLVS == 0 { None } else { error_text(kind, flags, rest) };
    Ok(Some(Fault::Refused { errno: Errno::from_raw_os_error(errno), text }))
}

/// Returns the kernel's text with an error. It only adds information, so a malformed one is ignored.
fn error_text(kind: u16, flags: u16, rest: &[u8]) -> Option<String> {
    // An acknowledgement contains the request's header, or the whole request.
    let quoted = match kind {
        NLMSG_DONE => 0,
        _ if flags & NLM_F_CAPPED != 0 => HEADER,
        _ => {
            let length = rest.first_chunk().copied().map(u32::from_ne_bytes)?;
            usize::try_from(length).ok()?.checked_next_multiple_of(4)?
        }
    };
    let list = rest.get(quoted..)?;
    let is_text = |attribute: &Attribute<'_>| attribute.kind == NLMSGERR_ATTR_MSG;
    attributes(list).map_while(Result::ok).find(is_text)?.text().ok()
}

#[cfg(test)]
mod tests {
    use netlink_sys::protocols::NETLINK_USERSOCK;

    use super::*;

    /// The end of a list, for sequence number 3 and port `port`.
    fn done(port: u32) -> Vec<u8> {
        let mut message = vec![20, 0, 0, 0, 3, 0, 2, 0, 3, 0, 0, 0];
        message.extend_from_slice(&port.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message
    }

    #[test]
    fn a_message_that_is_not_the_kernel_s_is_not_read_and_nothing_waits_for_ever() {
        let mut socket = Socket::new(NETLINK_USERSOCK).expect("a socket");
        let port = socket.bind_auto().expect("bound").port_number();
        let patience = Duration::from_millis(20);
        set_socket_timeout(&socket, Timeout::Recv, Some(patience)).expect("a limit");
        let mut other = Socket::new(NETLINK_USERSOCK).expect("a socket");
        other.bind_auto().expect("bound");
        other.send_to(&done(port), &SocketAddr::new(port, 0), 0).expect("sent");
        let mut buffer = Vec::with_capacity(64);
        socket.recv_from(&mut buffer, libc::MSG_PEEK).expect("it is here");
        assert_eq!(buffer, done(port));

        let mut parse = |_: u16, _: &[u8]| Ok(Some(()));
        let mut reply = Reply::new(3, port, &mut parse);
        let result = receive(&socket, &mut buffer, patience, format_args!("a test"), &mut reply);
        assert!(matches!(result, Err(NetlinkError::Timeout { .. })), "{result:?}");
        reply.datagram(&done(port));
        assert!(reply.complete, "and from the kernel it would have been the end");
    }

    #[test]
    fn a_protocol_that_nobody_serves_is_a_clean_error() {
        let mut connection = Connection::open(NETLINK_USERSOCK).expect("a socket");
        let asked = connection.ask(format_args!("a test"), 16, 0, Body::new(), |_, _| Ok(Some(())));
        let errno = Errno::CONNREFUSED;
        assert_eq!(asked, Err(NetlinkError::Io { request: "a test".into(), errno }));
    }

    #[test]
    fn other_requests_and_other_sockets_replies_are_skipped() {
        let mut parse = |_: u16, _: &[u8]| Ok(Some(()));
        for (sequence, port) in [(4, 9), (3, 8)] {
            let mut reply = Reply::new(sequence, port, &mut parse);
            reply.datagram(&done(9));
            assert!(!reply.complete, "{sequence} {port}");
        }
        let mut reply = Reply::new(3, 9, &mut parse);
        let mut datagram = done(8);
        datagram.extend(done(9));
        reply.datagram(&datagram);
        assert!(reply.complete, "the second message of the datagram is");
    }

    #[test]
    fn a_list_that_changed_and_one_that_failed_say_so() {
        let mut parse = |_: u16, _: &[u8]| Ok(Some(()));
        let mut changed = done(9);
        changed[6] |= NLM_F_DUMP_INTR as u8;
        let mut reply = Reply::new(3, 9, &mut parse);
        reply.datagram(&changed);
        assert_eq!(reply.result(format_args!("a test")), Ok((vec![], true)));

        let mut failed = done(9);
        failed[16..20].copy_from_slice(&(-libc::ENODEV).to_ne_bytes());
        let mut reply = Reply::new(3, 9, &mut parse);
        reply.datagram(&failed);
        let refused = reply.result(format_args!("a test")).expect_err("refused");
        assert_eq!(refused.errno(), Some(Errno::NODEV));

        for number in [1, i32::MIN, -4096, -100_000] {
            let mut odd = done(9);
            odd[4] = NLMSG_ERROR as u8;
            odd[16..20].copy_from_slice(&number.to_ne_bytes());
            let mut reply = Reply::new(3, 9, &mut parse);
            reply.datagram(&odd);
            let error = reply.result(format_args!("a test")).expect_err("odd");
            assert!(matches!(error, NetlinkError::Malformed { .. }), "{number}: {error:?}");
        }
    }

    /// A long message with sequence number 3, to port 9.
    fn long() -> Vec<u8> {
        let mut message = vec![0; 60_000];
        message[..4].copy_from_slice(&60_000_u32.to_ne_bytes());
        message[4] = 16;
        message[8] = 3;
        message[12] = 9;
        message
    }

    #[test]
    fn what_is_skipped_of_a_reply_makes_it_no_longer() {
        let mut messages = 0;
        let mut parse = |_: u16, _: &[u8]| {
            messages += 1;
            Ok((messages % 500 == 1).then_some(messages))
        };
        let mut reply = Reply::new(3, 9, &mut parse);
        let message = long();
        for _ in 0..=MAX_REPLY / 60_000 {
            reply.datagram(&message);
        }
        reply.datagram(&done(9));
        assert_eq!(reply.result(format_args!("a test")), Ok((vec![1, 501], false)));
    }

    #[test]
    fn a_reply_without_an_end_is_cut_off_and_let_go() {
        let message = long();
        let mut parse = |_: u16, body: &[u8]| Ok(Some(body.len()));
        let mut reply = Reply::new(3, 9, &mut parse);
        for _ in 0..=MAX_REPLY / 60_000 {
            reply.datagram(&message);
        }
        assert!(reply.records.is_empty() && !reply.complete);
        reply.datagram(&done(9));
        assert!(reply.complete, "it is read to its end all the same");
        let error = reply.result(format_args!("a test")).expect_err("too large");
        assert!(matches!(error, NetlinkError::TooLarge { .. }), "{error:?}");
    }
}
