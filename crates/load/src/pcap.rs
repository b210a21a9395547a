//! A reader of capture files, pcap and pcapng, on pcap-parser.
//!
//! The file is read as a stream with bounded memory, and its contents are not trusted: what does not parse is an
//! error with the offset at which it begins.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use thiserror::Error;

/// Bytes of the file held in memory: more than a block with the longest captured frame (256 KiB).
const BUFFER: usize = 1 << 20;
/// Maximum number of interfaces in one section of a pcapng file.
const INTERFACES: usize = 4_096;

/// Why a file could not be read, or not to its end.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct PcapFileError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug, Error)]
enum Problem {
    #[error("cannot be read: {0}")]
    Open(std::io::Error),
    #[error("is no regular file: what a pipe has may come at any time or never, so save it first")]
    NoFile,
    #[error("is neither pcap nor pcapng: it begins with none of their numbers")]
    Neither,
    #[error("cannot be read on from byte {at}")]
    Read { at: u64 },
    #[error("ends in the middle of what begins at byte {at}: it was cut off")]
    Cut { at: u64 },
    #[error("what begins at byte {at} is longer than the {BUFFER} bytes that are looked at")]
    Long { at: u64 },
    #[error("what begins at byte {at} is no block of a capture")]
    Block { at: u64 },
    #[error("the block at byte {at} is of interface {interface}, which the file has not described")]
    Interface { at: u64, interface: u32 },
    #[error("the block at byte {at} describes more than {INTERFACES} interfaces")]
    Interfaces { at: u64 },
    #[error("the frames at byte {at} are not Ethernet (link type {kind}): only those are sent")]
    NotEthernet { at: u64, kind: i32 },
    #[error("has no frame that could be sent")]
    Empty,
}

/// The metadata of a captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Captured {
    /// Capture time, in nanoseconds since 1970.
    pub(crate) at: i128,
    /// Number of bytes in the file.
    pub(crate) length: usize,
    /// Whether the frame was longer when it was captured.
    pub(crate) cut: bool,
}

/// An interface of a pcapng section, which defines the format of its timestamps.
#[derive(Debug, Clone, Copy)]
struct Interface {
    /// Timestamp units per second.
    resolution: u64,
    /// Seconds to add to a timestamp.
    offset: i64,
    ethernet: bool,
    kind: i32,
}

impl Interface {
    fn time(self, units: u64) -> i128 {
        let (whole, rest) = (units / self.resolution, units % self.resolution);
        let ns = u128::from(rest) * 1_000_000_000 / u128::from(self.resolution);
        (i128::from(whole) + i128::from(self.offset)) * 1_000_000_000 + ns as i128
    }
}

/// The units per second encoded in the `if_tsresol` option: a power of ten, or of two if the highest bit is set.
fn resolution(option: u8) -> Option<u64> {
    match option & 0x80 {
        0 => 10u64.checked_pow(option.into()),
        _ => 1u64.checked_shl(u32::from(option & 0x7f)),
    }
}

/// An open capture file.
pub(crate) struct Pcap {
    path: PathBuf,
    reader: Box<dyn PcapReaderIterator + Send>,
    /// Offset of the next block.
    at: u64,
    /// For pcap files: nanoseconds per unit of the sub-second timestamp.
    unit: u32,
    interfaces: Vec<Interface>,
}

impl Pcap {
    pub(crate) fn open(path: &Path) -> Result<Pcap, PcapFileError> {
        let open = |error| wrong(path, Problem::Open(error));
        // Opening a pipe would block until it has a writer.
        if !std::fs::metadata(path).map_err(open)?.is_file() {
            return Err(wrong(path, Problem::NoFile));
        }
        let file = File::open(path).map_err(open)?;
        Pcap::read(path, file)
    }

    /// Reads a capture from the bytes of a file.
    fn read(path: &Path, file: impl Read + Send + 'static) -> Result<Pcap, PcapFileError> {
        let reader = create_reader(BUFFER, file).map_err(|error| {
            wrong(
                path,
                match error {
                    PcapError::Eof => Problem::Empty,
                    PcapError::ReadError => Problem::Read { at: 0 },
                    PcapError::Incomplete(_) | PcapError::UnexpectedEof => Problem::Cut { at: 0 },
                    _ => Problem::Neither,
                },
            )
        })?;
        Ok(Pcap { path: path.to_owned(), reader, at: 0, unit: 1_000, interfaces: Vec::new() })
    }

    /// The error for a file without usable frames.
    pub(crate) fn empty(&self) -> PcapFileError {
        wrong(&self.path, Problem::Empty)
    }

    /// Reads the next frame, as much of it as `into` holds; `None` at the end.
    pub(crate) fn next(&mut self, into: &mut [u8]) -> Result<Option<Captured>, PcapFileError> {
        let mut before = usize::MAX;
        loop {
            let at = self.at;
            let problem = match self.reader.next() {
                Ok((bytes, block)) => {
                    let found =
                        evaluate_block(&block, at, &mut self.unit, &mut self.interfaces, into);
                    self.reader.consume(bytes);
                    self.at += bytes as u64;
                    before = usize::MAX;
                    match found {
                        Ok(None) => continue,
                        Ok(found) => return Ok(found),
                        Err(problem) => problem,
                    }
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_)) => {
                    let buffered = self.reader.data().len();
                    if self.reader.refill().is_err() {
                        Problem::Read { at }
                    } else if buffered == before && !self.reader.reader_exhausted() {
                        // The buffer is full, and the block still incomplete.
                        Problem::Long { at }
                    } else {
                        before = buffered;
                        continue;
                    }
                }
                Err(PcapError::BufferTooSmall) => Problem::Long { at },
                Err(PcapError::UnexpectedEof) => Problem::Cut { at },
                Err(PcapError::ReadError) => Problem::Read { at },
                Err(_) => Problem::Block { at },
            };
            return Err(wrong(&self.path, problem));
        }
    }
}

fn wrong(path: &Path, problem: Problem) -> PcapFileError {
    PcapFileError { path: path.to_owned(), problem }
}

/// Evaluates a block: returns a frame, or records what applies to later frames.
fn evaluate_block(
    block: &PcapBlockOwned<'_>,
    at: u64,
    unit: &mut u32,
    interfaces: &mut Vec<Interface>,
    into: &mut [u8],
) -> Result<Option<Captured>, Problem> {
    let mut frame = |time: i128, bytes: &[u8], whole: u32| {
        let kept = bytes.len().min(into.len());
        into[..kept].copy_from_slice(&bytes[..kept]);
        Some(Captured { at: time, length: bytes.len(), cut: (whole as usize) > bytes.len() })
    };
    let of = |interfaces: &[Interface], number: u32| {
        let found = interfaces.get(number as usize).copied();
        let found = found.ok_or(Problem::Interface { at, interface: number })?;
        match found.ethernet {
            true => Ok(found),
            false => Err(Problem::NotEthernet { at, kind: found.kind }),
        }
    };
    Ok(match block {
        PcapBlockOwned::LegacyHeader(header) => {
            if header.network != Linktype::ETHERNET {
                return Err(Problem::NotEthernet { at, kind: header.network.0 });
            }
            *unit = if header.is_nanosecond_precision() { 1 } else { 1_000 };
            None
        }
        PcapBlockOwned::Legacy(block) => {
            let ns = i128::from(block.ts_usec) * i128::from(*unit);
            frame(i128::from(block.ts_sec) * 1_000_000_000 + ns, block.data, block.origlen)
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            None
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
            if interfaces.len() == INTERFACES {
                return Err(Problem::Interfaces { at });
            }
            interfaces.push(Interface {
                resolution: resolution(block.if_tsresol).ok_or(Problem::Block { at })?,
                offset: block.if_tsoffset,
                ethernet: block.linktype == Linktype::ETHERNET,
                kind: block.linktype.0,
            });
            None
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
            let interface = of(interfaces, block.if_id)?;
            let units = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
            frame(interface.time(units), block.packet_data(), block.origlen)
        }
        PcapBlockOwned::NG(Block::SimplePacket(block)) => {
            // It has no timestamp, and belongs to the first interface.
            of(interfaces, 0)?;
            let bytes = &block.data[..block.data.len().min(block.origlen as usize)];
            frame(0, bytes, block.origlen)
        }
        PcapBlockOwned::NG(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A pcap file of 60-byte frames at these times, in nanoseconds.
    fn pcap(times: &[u64]) -> Vec<u8> {
        let mut file: Vec<u8> = [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, 65_535, 1]
            .iter()
            .flat_map(|it| it.to_le_bytes())
            .collect();
        for (number, time) in times.iter().enumerate() {
            let (seconds, ns) = ((time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32);
            file.extend([seconds, ns, 60, 60].iter().flat_map(|it| it.to_le_bytes()));
            file.extend([number as u8; 60]);
        }
        file
    }

    /// A pcapng block.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    /// A pcapng file with one interface; its timestamps are in units of 2^-20 s, less an offset of 5 s.
    fn pcapng() -> Vec<u8> {
        let section = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
        // if_tsresol (9) has one byte, if_tsoffset (14) eight.
        let options = words(&[9 | 1 << 16, 0x94, 14 | 8 << 16, 5, 0, 0]);
        let interface = block(1, &[words(&[1, 65_535]), options].concat());
        let frame = |units: u64, whole: u32| {
            let head = words(&[0, (units >> 32) as u32, units as u32, 60, whole]);
            block(6, &[&head[..], &[7; 60]].concat())
        };
        [section, interface, frame(3 << 20, 60), block(0x99, &[1; 8]), frame(7 << 19, 90)].concat()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Captured>, String> {
        let message = |error: PcapFileError| error.to_string();
        let mut pcap =
            Pcap::read(Path::new("x"), std::io::Cursor::new(bytes.to_vec())).map_err(message)?;
        let mut frames = Vec::new();
        let mut into = [0; 64];
        while let Some(frame) = pcap.next(&mut into).map_err(message)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn frames_come_with_their_times_of_either_format() {
        let captured = |at: i128, cut| Captured { at, length: 60, cut };
        assert_eq!(
            read(&pcap(&[1_500_000_007, 2_000_000_000])),
            Ok(vec![captured(1_500_000_007, false), captured(2_000_000_000, false)])
        );
        assert_eq!(
            read(&pcapng()),
            Ok(vec![captured(8_000_000_000, false), captured(8_500_000_000, true)])
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_byte() {
        let message = |bytes: &[u8]| read(bytes).expect_err("refused");
        let good = pcap(&[0, 1, 2]);
        assert!(message(b"").contains("no frame that could be sent"), "{}", message(b""));
        assert!(message(&[7; 100]).contains("neither pcap nor pcapng"));
        assert!(message(&good[..good.len() - 1]).contains("begins at byte 176"));
        assert!(message(&good[..105]).contains("begins at byte 100"));
        let mut long = good.clone();
        long[108..112].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(message(&long).contains("at byte 100 is longer than"), "{}", message(&long));
        let mut token_ring = good;
        token_ring[20] = 6;
        assert!(message(&token_ring).contains("link type 6"));
        let frame = [words(&[3, 0, 0, 60, 60]), vec![0; 60]].concat();
        let stray = [pcapng(), block(6, &frame)].concat();
        assert!(message(&stray).contains("interface 3, which"), "{}", message(&stray));
        let torn = [pcapng(), vec![6, 0, 0, 0, 7, 0, 0, 0, 1, 1, 1, 1]].concat();
        assert!(message(&torn).contains(&format!("byte {}", pcapng().len())), "{}", message(&torn));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn whatever_a_file_holds_it_comes_to_an_end(
            ng: bool,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            end in any::<prop::sample::Index>(),
        ) {
            let mut bytes = if ng { pcapng() } else { pcap(&[0, 1, 2]) };
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(end.index(bytes.len()) + 1);
            let frames = read(&bytes).map_or(0, |frames| frames.len());
            prop_assert!(frames <= bytes.len() / 16);
        }
    }
}
