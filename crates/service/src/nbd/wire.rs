//! Constants of the protocol, and the encoding of its messages. All numbers are big-endian.

/// `NBDMAGIC`, the start of the server's greeting.
pub(super) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, which ends the newstyle greeting and begins each option.
pub(super) const OPTION: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Bytes of an option's header, and of a request's (below).
pub(super) const OPTION_HEADER: usize = 16;
pub(super) const REQUEST_HEADER: usize = 28;

/// Handshake flags of server and client.
pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const NO_ZEROES: u16 = 1 << 1;

/// Options of a client, `NBD_OPT_*`.
pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
}

/// Types of option replies, `NBD_REP_*`.
pub(super) mod reply {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    const ERROR: u32 = 1 << 31;
    pub(in super::super) const UNSUPPORTED: u32 = ERROR + 1;
    pub(in super::super) const INVALID: u32 = ERROR + 3;
    pub(in super::super) const UNKNOWN: u32 = ERROR + 6;
    pub(in super::super) const TOO_BIG: u32 = ERROR + 9;
}

/// Information types of an export, `NBD_INFO_*`.
pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: capabilities of an export, `NBD_FLAG_*`.
pub(super) mod export_flags {
    pub(in super::super) const HAS_FLAGS: u16 = 1 << 0;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const FLUSH: u16 = 1 << 2;
    pub(in super::super) const FUA: u16 = 1 << 3;
    pub(in super::super) const TRIM: u16 = 1 << 5;
    pub(in super::super) const WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const MULTI_CONN: u16 = 1 << 8;
}

/// Commands of a request, `NBD_CMD_*`.
pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISCONNECT: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
    /// Flags of a request, `NBD_CMD_FLAG_*`.
    pub(in super::super) const FUA: u16 = 1 << 0;
    pub(in super::super) const NO_HOLE: u16 = 1 << 1;
}

/// Chunk types of structured replies, `NBD_REPLY_TYPE_*`.
pub(super) mod chunk {
    /// Flag: the last chunk of its reply.
    pub(in super::super) const DONE: u16 = 1;
    pub(in super::super) const NONE: u16 = 0;
    pub(in super::super) const OFFSET_DATA: u16 = 1;
    pub(in super::super) const ERROR: u16 = (1 << 15) + 1;
}

/// Splits a 16-bit number off the start of `bytes`.
pub(super) fn u16_of(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u16::from_be_bytes(*number), rest))
}

/// As [`u16_of`], for 32 bits.
pub(super) fn u32_of(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

/// As [`u16_of`], for 64 bits.
pub(super) fn u64_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

/// Splits a string, preceded by its 32-bit length, off the start of `bytes`.
pub(super) fn string_of(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = u32_of(bytes)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}

/// A request's header; the payload of a write follows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Header {
    /// Parses the header at the start of `bytes`; `None` if it is incomplete.
    pub(super) fn of(bytes: &[u8]) -> Option<Header> {
        let (_magic, rest) = u32_of(bytes)?;
        let (flags, rest) = u16_of(rest)?;
        let (command, rest) = u16_of(rest)?;
        let (cookie, rest) = u64_of(rest)?;
        let (offset, rest) = u64_of(rest)?;
        let (length, _) = u32_of(rest)?;
        Some(Header { flags, command, cookie, offset, length })
    }
}

/// Appends a reply to an option.
pub(super) fn option_reply(output: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    output.extend_from_slice(&OPTION_REPLY.to_be_bytes());
    output.extend_from_slice(&option.to_be_bytes());
    output.extend_from_slice(&kind.to_be_bytes());
    // A name of a few kilobytes at most.
    let length = data.iter().map(|part| part.len()).sum::<usize>() as u32;
    output.extend_from_slice(&length.to_be_bytes());
    data.iter().for_each(|part| output.extend_from_slice(part));
}

/// Appends the header of a simple reply; the data of a successful read follows it.
pub(super) fn simple_reply(output: &mut Vec<u8>, cookie: u64, error: u32) {
    output.extend_from_slice(&SIMPLE_REPLY.to_be_bytes());
    output.extend_from_slice(&error.to_be_bytes());
    output.extend_from_slice(&cookie.to_be_bytes());
}

/// Appends a chunk of a structured reply. The payload is at most one piece of a request.
pub(super) fn chunk(
    output: &mut Vec<u8>,
    (flags, kind): (u16, u16),
    cookie: u64,
    payload: &[&[u8]],
) {
    output.extend_from_slice(&STRUCTURED_REPLY.to_be_bytes());
    output.extend_from_slice(&flags.to_be_bytes());
    output.extend_from_slice(&kind.to_be_bytes());
    output.extend_from_slice(&cookie.to_be_bytes());
    let length = payload.iter().map(|part| part.len()).sum::<usize>() as u32;
    output.extend_from_slice(&length.to_be_bytes());
    payload.iter().for_each(|part| output.extend_from_slice(part));
}
