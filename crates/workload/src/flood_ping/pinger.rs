//! `ping -f` without an operating system, at the other end of a wire: it polls its queue itself.
//!
//! Like the real ping, it sends the next echo request when it has received the reply, or after 10 ms.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use napkin_nic::PacketQueue;
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::FrameBuilder;

use crate::client_end::{ClientCpu, ClientEnd};
use crate::error::BenchError;
use crate::ping::PAYLOAD;
use crate::serving::{PEER, US};

/// Time after which a reply counts as lost.
const LOST: Ns = 10 * MILLISECOND;
/// The identifier of all requests.
pub(super) const IDENT: u16 = 7;
/// Bytes of a frame: Ethernet, IPv4 without options, ICMP, and ping's payload.
const FRAME: usize = 14 + 20 + 8 + PAYLOAD;

/// The flooding end of the wire: its queue and its CPU.
pub(super) struct Pinger {
    pub(super) queue: Box<dyn PacketQueue>,
    /// The CPU it runs on.
    pub(super) cpu: ClientCpu,
}

impl Pinger {
    /// Floods until `stop` is set.
    ///
    /// # Errors
    /// If its device disappears.
    pub(super) fn run(self, stop: &AtomicBool) -> Result<(), BenchError> {
        let mut end = ClientEnd::new(self.queue, &self.cpu)?;
        let (builder, mut frame) = (FrameBuilder::new(PEER, US), [0; FRAME]);
        let mut round = Round::default();
        while !stop.load(Relaxed) {
            let now = napkin_engine::now();
            end.poll(now)?.filter_map(|frame| reply(&frame)).for_each(|it| round.heard(it, now));
            if let Some(sequence) = round.next(now) {
                let length = builder.echo_request(&mut frame, IDENT, sequence, &[0x5a; PAYLOAD]);
                let length = length.map_err(|error| BenchError::Usage(error.to_string()))?;
                end.send(&frame[..length], now);
            } else {
                end.pause(now, round.due);
            }
        }
        Ok(())
    }
}

/// The outstanding request, and when the next one is due.
#[derive(Debug, Default)]
struct Round {
    sequence: u16,
    due: Ns,
}

impl Round {
    /// Handles a reply.
    fn heard(&mut self, sequence: u16, now: Ns) {
        if sequence == self.sequence {
            self.due = now;
        }
    }

    /// Returns the sequence number of the next request, if one is due.
    fn next(&mut self, now: Ns) -> Option<u16> {
        if now < self.due {
            return None;
        }
        (self.sequence, self.due) = (self.sequence.wrapping_add(1), now + LOST);
        Some(self.sequence)
    }
}

/// Returns the sequence number of the request that a frame answers; `None` if it is no reply to this client.
fn reply(frame: &[u8]) -> Option<u16> {
    let is_icmp = frame.get(12..14)? == [8, 0] && *frame.get(23)? == 1;
    let [kind, _, _, _, ident @ .., high, low] = frame.get(34..42)? else { return None };
    (is_icmp && *kind == 0 && *ident == IDENT.to_be_bytes())
        .then(|| u16::from_be_bytes([*high, *low]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::{PEER, US};

    #[test]
    fn a_reply_brings_the_next_request_and_so_does_the_lack_of_one() {
        let mut round = Round::default();
        assert_eq!((round.next(5), round.next(5)), (Some(1), None), "one at a time");
        round.heard(1, 7);
        assert_eq!((round.next(7), round.next(7)), (Some(2), None));
        round.heard(1, 8);
        assert_eq!(round.next(8), None, "that was an earlier one's");
        assert_eq!((round.next(6 + LOST), round.next(7 + LOST)), (None, Some(3)), "lost");
    }

    #[test]
    fn only_a_reply_to_a_request_of_ours_is_one() {
        let (mut frame, builder) = ([0; FRAME], FrameBuilder::new(US, PEER));
        let length = builder.echo_request(&mut frame, IDENT, 300, &[0; PAYLOAD]);
        assert_eq!((length.expect("it fits"), reply(&frame)), (FRAME, None), "a request");
        frame[34] = 0;
        assert_eq!(reply(&frame), Some(300));
        (0..42).for_each(|length| assert_eq!(reply(&frame[..length]), None));
        frame[39] ^= 1;
        assert_eq!(reply(&frame), None, "somebody else's");
    }
}
