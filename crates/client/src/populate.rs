//! Fills a store with the records that a client will ask for, and verifies that it kept them.
//!
//! Sets are sent in large batches without replies (`noreply`). A `version` request ends each batch; its answer
//! shows that the server has processed the batch, and a refusal before it shows an error. Then every record is read
//! once.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::answer::{Answer, Parser, PendingRequest};
use super::config::Config;
use super::error::ClientError;
use super::records::Records;

/// Sets per batch.
const SETS_AT_ONCE: usize = 1024;
/// Gets per batch: few enough to fit the sockets' buffers while the server waits for us to read.
const GETS_AT_ONCE: usize = 64;
/// Approximate number of bytes per send.
const SEND: usize = 64 * 1024;
/// Maximum number of bytes per read.
const READ: usize = 64 * 1024;

/// A store after it was filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Populated {
    /// Records that were set, and found with the right size.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// Fills the store.
///
/// # Errors
/// As [`populate_with_progress`].
pub fn populate(config: &Config) -> Result<Populated, ClientError> {
    populate_with_progress(config, |_, _| {})
}

/// Fills the store, and calls `tell` after each batch with the number of steps done and their total. Each record is
/// two steps: set, and found.
///
/// # Errors
/// An invalid value; a server that cannot be reached, is silent, gives an unexpected answer, or has not kept every
/// record.
pub fn populate_with_progress(
    config: &Config,
    mut report: impl FnMut(u64, u64),
) -> Result<Populated, ClientError> {
    config.check()?;
    let records = Records::new(config.records, config.seed);
    let mut connection = Connection::open(config)?;
    let (total, mut done) = (2 * records.len() as u64, 0);
    let all: Vec<usize> = (0..records.len()).collect();
    for some in all.chunks(SETS_AT_ONCE) {
        for record in some {
            records.put_set(*record, false, &mut connection.output);
            if connection.output.len() >= SEND {
                connection.send()?;
            }
        }
        connection.output.extend_from_slice(b"version\r\n");
        connection.send()?;
        match connection.answer(PendingRequest::Version)? {
            Answer::Version => {}
            other => return Err(connection.refuses(format!("it answered the sets with {other:?}"))),
        }
        done += some.len() as u64;
        report(done, total);
    }
    let (mut kept, mut bytes) = (0, 0);
    for some in all.chunks(GETS_AT_ONCE) {
        some.iter().for_each(|record| records.put_get(*record, &mut connection.output));
        connection.send()?;
        for record in some {
            let size = records.value_size(*record);
            match connection.answer(records.asked(*record, false))? {
                Answer::Hit { bytes: found } if found == size => kept += 1,
                Answer::Hit { .. } | Answer::Miss => {}
                other => {
                    return Err(connection.refuses(format!("it answered a get with {other:?}")));
                }
            }
            bytes += records.key(*record).len() as u64 + u64::from(size);
        }
        done += some.len() as u64;
        report(done, total);
    }
    let (address, records) = (config.address, records.len() as u64);
    if kept != records {
        return Err(ClientError::NotKept { address, kept, records });
    }
    Ok(Populated { records, bytes })
}

/// The connection, with a timeout for each operation.
struct Connection<'a> {
    config: &'a Config,
    stream: TcpStream,
    output: Vec<u8>,
    input: Box<[u8]>,
    /// The part of the input that was not parsed yet.
    unread: std::ops::Range<usize>,
    parser: Parser,
}

impl Connection<'_> {
    fn open(config: &Config) -> Result<Connection<'_>, ClientError> {
        let (address, timeout) = (config.address, config.answer_timeout);
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, timeout)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(stream)
        };
        let stream =
            connect().map_err(|source| ClientError::Connect { address, number: 1, source })?;
        Ok(Connection {
            config,
            stream,
            output: Vec::new(),
            input: vec![0; READ].into(),
            unread: 0..0,
            parser: Parser::default(),
        })
    }

    fn refuses(&self, what: String) -> ClientError {
        ClientError::Populate { address: self.config.address, what }
    }

    /// The error for a failed or timed out connection.
    fn failed(&self, error: &io::Error) -> ClientError {
        let Config { address, answer_timeout: timeout, .. } = *self.config;
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Silent { address, timeout, outstanding: 1 }
            }
            _ => self.refuses(format!("the connection failed: {error}")),
        }
    }

    fn send(&mut self) -> Result<(), ClientError> {
        let sent = self.stream.write_all(&self.output);
        sent.map_err(|error| self.failed(&error))?;
        self.output.clear();
        Ok(())
    }

    /// Reads the next answer. The timeout covers the whole answer, even if it arrives byte by byte.
    fn answer(&mut self, asked: PendingRequest<'_>) -> Result<Answer, ClientError> {
        let begun = Instant::now();
        loop {
            if self.unread.is_empty() {
                let read = self.stream.read(&mut self.input);
                match read.map_err(|error| self.failed(&error))? {
                    0 => return Err(self.refuses("it closed the connection".to_owned())),
                    bytes => self.unread = 0..bytes,
                }
            }
            let fed = self.parser.feed(asked, &self.input[self.unread.clone()]);
            let (taken, answer) =
                fed.map_err(|fault| self.refuses(format!("it said what is no answer: {fault:?}")))?;
            self.unread.start += taken;
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if begun.elapsed() > self.config.answer_timeout {
                return Err(self.failed(&io::ErrorKind::TimedOut.into()));
            }
        }
    }
}
