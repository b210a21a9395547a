//! A kernel that writes arbitrary values into its rings, as directed by input bytes: the target of the fuzzer. The
//! rings are in this process, so it needs no privileges. Some steps act as a correct kernel would, so that polls
//! find frames.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::queue::XdpQueue;
use super::ring::{Consumer, OwnRing, Producer};
use super::socket::XdpSocket;
use super::transmitter::Wire;
use crate::{FRAME_CAPACITY, Frame, PacketQueue, Pool};

/// Entries of a ring.
const SIZE: u32 = 8;
/// Buffers of the pool.
const BUFFERS: usize = 40;

/// The input bytes, followed by zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// An address, an index or a length, plausible or not.
    fn value(&mut self) -> u64 {
        let number = u64::from(self.byte());
        match self.byte() % 5 {
            0 => number,
            1 => number * FRAME_CAPACITY as u64 + u64::from(self.byte()) * 8,
            2 => number.wrapping_neg(),
            3 => (number << 32) | (u64::from(self.byte()) * 8),
            _ => (0..7).fold(number, |value, _| value << 8 | u64::from(self.byte())),
        }
    }
}

/// A step of a correct kernel: moves the oldest entry of one ring to the end of another.
fn moves(from: &OwnRing, to: &OwnRing, entry: impl FnOnce(u64) -> [u64; 2], words: usize) {
    let (read, written) = (from.words[1].load(Relaxed) as u32, from.words[0].load(Relaxed) as u32);
    let end = to.words[0].load(Relaxed) as u32;
    if read == written {
        return;
    }
    // An entry of one kind is one word, of the other two.
    let of = |ring: &OwnRing, place: u32, words: usize| {
        let size = (ring.words.len() - OwnRing::ENTRIES) as u32 / 2;
        OwnRing::ENTRIES + (place & (size - 1)) as usize * words
    };
    let entry = entry(from.words[of(from, read, 3 - words)].load(Relaxed));
    from.words[1].store(read.wrapping_add(1).into(), Relaxed);
    for (place, word) in (of(to, end, words)..).zip(&entry[..words]) {
        to.words[place].store(*word, Relaxed);
    }
    to.words[0].store(end.wrapping_add(1).into(), Relaxed);
}

/// A correct kernel for tests: each call sends up to a set number of frames.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) transmit: OwnRing,
    pub(super) complete: OwnRing,
    pub(super) frames_a_call: std::sync::atomic::AtomicU32,
    pub(super) calls: std::sync::atomic::AtomicU32,
    /// Number of calls to receive.
    pub(super) received: std::sync::atomic::AtomicU32,
    /// Number of frames dropped for lack of room.
    pub(super) dropped: std::sync::atomic::AtomicU32,
}

#[cfg(test)]
impl Kernel {
    pub(super) fn new(transmit: OwnRing, complete: OwnRing, frames_a_call: u32) -> Kernel {
        Kernel {
            transmit,
            complete,
            frames_a_call: frames_a_call.into(),
            calls: Default::default(),
            received: Default::default(),
            dropped: Default::default(),
        }
    }

    pub(super) fn send(&self) -> super::socket::CallResult {
        self.calls.fetch_add(1, Relaxed);
        for _ in 0..self.frames_a_call.load(Relaxed) {
            moves(&self.transmit, &self.complete, |address| [address, 0], 1);
        }
        super::socket::CallResult::Done
    }
}

/// Runs a queue against a kernel that follows `data`. Panics if a frame is counted twice or not at all, if two
/// frames share a buffer, or if a buffer is not returned.
pub fn serve(data: &[u8]) {
    let mut input = Input(data);
    let pool = Pool::new(BUFFERS);
    // An unconnected socket of another kind, which refuses every call.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None) else {
        return;
    };
    let [fill, receive, transmit] = [(); 3].map(|()| OwnRing::new(SIZE));
    let complete = OwnRing::new(2 * SIZE);
    let out = (Producer::over(&transmit), Consumer::over(&complete));
    let socket = XdpSocket::other(socket);
    let Ok(wire) = Wire::new(socket, out, &pool, SIZE as usize, Arc::new(())) else { return };
    let wire = Arc::new(wire);
    let (queue_wire, busy) = (Arc::clone(&wire), input.byte() % 4 == 0);
    let rings = (Consumer::over(&receive), Producer::over(&fill));
    let Ok(mut queue) = XdpQueue::new(queue_wire, rings.0, rings.1, &pool, SIZE, busy) else {
        return;
    };
    let sender = queue.transmitter();
    let (mut frames, mut held) = (Vec::with_capacity(64), Vec::<Frame>::new());
    let (mut taken, mut sent, mut refused) = (0, 0, 0);
    while !input.0.is_empty() {
        match input.byte() % 9 {
            0 => {
                let ring = [&fill, &receive, &transmit, &complete][usize::from(input.byte() % 4)];
                let word = usize::from(input.byte()) % ring.words.len();
                ring.words[word].store(input.value(), Relaxed);
            }
            1 => {
                let (start, length) = (u64::from(input.byte()), u64::from(input.byte()) * 8);
                moves(&fill, &receive, |address| [address.wrapping_add(start), length], 2);
            }
            2 => moves(&transmit, &complete, |address| [address, 0], 1),
            3 | 4 => {
                let budget = u16::from(input.byte() % 65);
                let work = queue.poll(budget, 0, &mut frames);
                assert!(work.rx <= budget && frames.len() <= work.rx.into());
                taken += u64::from(work.rx);
                for frame in frames.drain(..) {
                    let (base, bytes) = pool.shared();
                    let at = frame.as_ptr().addr() - base.as_ptr().addr();
                    assert!(at + frame.len() <= bytes, "outside of the memory");
                    held.push(frame);
                }
                let mut buffers: Vec<_> =
                    held.iter().map(|it| it.as_ptr().addr() / FRAME_CAPACITY).collect();
                buffers.sort_unstable();
                assert!(buffers.windows(2).all(|two| two[0] != two[1]), "two have one buffer");
            }
            5 => {
                let frame = vec![7; usize::from(input.byte()) * 9];
                match if input.byte() % 2 == 0 {
                    sender.send(&frame, 0)
                } else {
                    sender.post(&frame, 0)
                } {
                    Ok(()) => sent += 1,
                    Err(_) => refused += 1,
                }
            }
            8 => {
                let mut frames = held.split_off(held.len() / 2);
                let (given, went) = (frames.len(), sender.send_owned(&mut frames, 0));
                assert_eq!(went + frames.len(), given);
                sent += went as u64;
                refused += u64::from(!frames.is_empty());
            }
            6 => held.truncate(usize::from(input.byte() % 8)),
            _ => {
                sender.flush();
                queue.acknowledge();
                queue.unmask(0);
            }
        }
        let everywhere = pool.available() + held.len() + queue.buffers() + wire.buffers();
        assert_eq!(everywhere, BUFFERS, "a buffer is nowhere, or twice");
    }
    let counts = queue.counters().read();
    assert_eq!(counts.rx_packets + counts.rx_dropped(), taken);
    assert_eq!((counts.tx_packets, counts.tx_dropped), (sent, refused));
    drop((queue, sender, wire));
    assert_eq!(pool.available() + held.len(), BUFFERS, "a buffer is not back after the end");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn a_kernel_that_writes_anything_harms_nobody(
            data in prop::collection::vec(prop_oneof![any::<u8>(), 0..8u8], 0..600),
        ) {
            super::serve(&data);
        }
    }
}
