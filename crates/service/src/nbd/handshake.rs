//! The fixed newstyle handshake: negotiates the export and the kind of replies.

use super::wire::{self, info, option, reply};
use super::{Export, PAYLOAD_LIMIT, PREFERRED_BLOCK};

/// Longest option data in bytes that is read: a name of 4096 bytes, the protocol's limit, and all information
/// requests several times over. The data of a longer option is discarded.
pub(super) const OPTION_LIMIT: usize = 8 * 1_024;

/// The state of a connection's handshake.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    greeted: bool,
    /// `None` until the client's flags arrived; then whether to omit the zeroes after the answer to `EXPORT_NAME`.
    no_zeroes: Option<bool>,
    structured: bool,
    /// Bytes of a refused option that are still to be discarded.
    discard: u32,
}

/// The result of one handshake step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes were taken and answered.
    Took(usize),
    /// So many bytes were discarded.
    Discarded(usize),
    More,
    Close,
    /// So many bytes were taken, and the transmission phase begins.
    Ready(usize),
}

impl Handshake {
    /// Sends the server's greeting, once.
    pub(super) fn greet(&mut self, output: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.greeted, true) {
            output.extend_from_slice(&wire::GREETING.to_be_bytes());
            output.extend_from_slice(&wire::OPTION.to_be_bytes());
            let flags = wire::FIXED_NEWSTYLE | wire::NO_ZEROES;
            output.extend_from_slice(&flags.to_be_bytes());
        }
    }

    /// Whether structured replies were negotiated.
    pub(super) fn structured(&self) -> bool {
        self.structured
    }

    pub(super) fn serve(&mut self, export: &Export, input: &[u8], output: &mut Vec<u8>) -> Step {
        if self.discard > 0 {
            let bytes = self.discard.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
            self.discard -= bytes;
            return Step::Discarded(bytes as usize);
        }
        let Some(no_zeroes) = self.no_zeroes else { return self.flags(input) };
        let Some((magic, rest)) = wire::u64_of(input) else { return Step::More };
        if magic != wire::OPTION {
            return Step::Close;
        }
        let Some((option, rest)) = wire::u32_of(rest) else { return Step::More };
        let Some((length, rest)) = wire::u32_of(rest) else { return Step::More };
        let known = matches!(
            option,
            option::EXPORT_NAME
                | option::ABORT
                | option::LIST
                | option::INFO
                | option::GO
                | option::STRUCTURED_REPLY
        );
        let long = length as usize > OPTION_LIMIT;
        if !known || long {
            let kind = if known { reply::TOO_BIG } else { reply::UNSUPPORTED };
            return match option {
                // `EXPORT_NAME` has no error reply.
                option::EXPORT_NAME => Step::Close,
                _ => {
                    wire::option_reply(output, option, kind, &[]);
                    self.discard = length;
                    Step::Took(wire::OPTION_HEADER)
                }
            };
        }
        let Some(data) = rest.get(..length as usize) else { return Step::More };
        let took = wire::OPTION_HEADER + data.len();
        let mut answer = |kind, data: &[&[u8]]| wire::option_reply(output, option, kind, data);
        match option {
            option::EXPORT_NAME => {
                if !export.has_name(data) {
                    return Step::Close;
                }
                output.extend_from_slice(&export.size.to_be_bytes());
                output.extend_from_slice(&export.flags().to_be_bytes());
                if !no_zeroes {
                    output.extend_from_slice(&[0; 124]);
                }
                return Step::Ready(took);
            }
            option::ABORT => {
                answer(reply::ACK, &[]);
                return Step::Close;
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                answer(reply::INVALID, &[b"this option has no data"]);
            }
            option::LIST => {
                let name = export.name.as_bytes();
                answer(reply::SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                answer(reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                answer(reply::ACK, &[]);
            }
            _ => match asked_for(data) {
                None => answer(reply::INVALID, &[b"the lengths in this option disagree"]),
                Some((name, _)) if !export.has_name(name) => {
                    answer(reply::UNKNOWN, &[b"there is no export of this name"]);
                }
                Some((_, asked)) => {
                    let information = |kind: u16| kind.to_be_bytes();
                    let (size, flags) = (export.size.to_be_bytes(), export.flags().to_be_bytes());
                    answer(reply::INFO, &[&information(info::EXPORT), &size, &flags]);
                    if asked.contains(&info::NAME) {
                        answer(reply::INFO, &[&information(info::NAME), export.name.as_bytes()]);
                    }
                    if asked.contains(&info::BLOCK_SIZE) {
                        let [least, preferred, most] =
                            [1, PREFERRED_BLOCK, PAYLOAD_LIMIT].map(u32::to_be_bytes);
                        let kind = information(info::BLOCK_SIZE);
                        answer(reply::INFO, &[&kind, &least, &preferred, &most]);
                    }
                    answer(reply::ACK, &[]);
                    if option == option::GO {
                        return Step::Ready(took);
                    }
                }
            },
        }
        Step::Took(took)
    }

    /// Takes the client's flags; closes on any that were not offered.
    fn flags(&mut self, input: &[u8]) -> Step {
        let Some((flags, _)) = wire::u32_of(input) else { return Step::More };
        if flags & !u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
            return Step::Close;
        }
        self.no_zeroes = Some(flags & u32::from(wire::NO_ZEROES) != 0);
        Step::Took(4)
    }
}

/// Parses the data of `INFO` and `GO`: the export's name, and the information types requested. `None` if the
/// lengths in it do not match the data.
fn asked_for(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = wire::string_of(data)?;
    let (count, rest) = wire::u16_of(rest)?;
    let (pairs, odd) = rest.as_chunks::<2>();
    let asked = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
    (pairs.len() == usize::from(count) && odd.is_empty()).then_some((name, asked))
}
