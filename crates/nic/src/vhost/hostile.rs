//! A peer that acts as input bytes direct: the target of the fuzzer. It needs no sockets and no threads: messages
//! go to the session, memory is written to, and the queue is polled in between.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::control::Peers;
use super::inflight::InflightAt;
use super::memory::{Memory, RegionAt};
use super::message::{Message, inflight, request, two};
use super::queue::VhostQueue;
use super::session::Session;
use super::{features, ports};
use crate::{PacketQueue, Pool};

/// The address of the peer's memory, in descriptors and messages alike.
const START: u64 = 0x10_0000;
const LEN: u64 = 0x1_0000;

/// The input bytes, followed by zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let n = N.min(self.0.len());
        bytes[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        bytes
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }
}

fn event() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

/// Memory that the peer may truncate.
fn unsealed() -> Option<(Memory, OwnedFd)> {
    let file = memfd_create("napkin-hostile", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, LEN).ok()?;
    let at = RegionAt { guest: START, len: LEN, user: START, offset: 0 };
    let memory = Memory::map(&[(at, file.as_fd().try_clone_to_owned().ok()?)]).ok()?;
    Some((memory, file))
}

/// Serves a peer that follows `data`. Panics if a frame is lost or counted twice, or a buffer is not returned.
pub fn serve(data: &[u8]) {
    let mut input = Input(data);
    let pool = Pool::new(16);
    let Ok(ports) = ports(2, &pool) else { return };
    let peers = Arc::<Peers>::default();
    let copy = |file: &OwnedFd| file.as_fd().try_clone_to_owned().ok();
    let Some((memory, file)) = unsealed() else { return };
    let mut session = Session::new(&ports, &peers);
    let mut queue = VhostQueue::new(&ports, 0, &peers, None);
    let wire = queue.transmitter();
    let mut frames = Vec::with_capacity(64);
    let (mut taken, mut sent) = (0, 0);
    let mut round = 0;
    // Each step reads at least a byte, so the input's length bounds the work.
    while !input.0.is_empty() && round < 400 {
        round += 1;
        let asked = match input.byte() % 10 {
            // An arbitrary message.
            0 => {
                let [request, flags, size, files] = input.bytes();
                let mut payload = vec![0; usize::from(size)];
                payload.iter_mut().for_each(|it| *it = input.byte());
                let kinds = (0..files % 10).filter_map(|at| match (files / 10 + at) % 3 {
                    0 => copy(&file),
                    1 => event(),
                    _ => rustix::pipe::pipe().ok().map(|(read, _)| read),
                });
                let flags = u32::from(flags) & 0xc | 1;
                let (request, files) = (request.into(), kinds.collect());
                vec![Message { request, flags, payload, files }]
            }
            // A whole set-up, with parts of rings at arbitrary places.
            1 => {
                let [options, size, base, table, driver, device] = input.bytes();
                let mut taken = features::VERSION_1;
                let bits = [
                    features::EVENT_IDX,
                    features::MRG_RXBUF,
                    features::RING_PACKED,
                    features::INDIRECT_DESC,
                    features::CSUM,
                    features::HOST_TSO4,
                    features::HOST_TSO6,
                ];
                for (bit, feature) in bits.iter().enumerate() {
                    taken |= if options & 1 << bit != 0 { *feature } else { 0 };
                }
                let at = |part: u8| START + u64::from(part) * 0x100;
                let region = [START, LEN, START, 0].map(u64::to_ne_bytes).concat();
                let mut all = vec![
                    Message::ask(request::SET_FEATURES, taken.to_ne_bytes().to_vec(), vec![]),
                    Message::ask(
                        request::SET_MEM_TABLE,
                        [two(1, 0), region].concat(),
                        copy(&file).into_iter().collect(),
                    ),
                ];
                for ring in 0..2u32 {
                    let number = u64::from(ring).to_ne_bytes().to_vec();
                    let parts = [at(table), at(device), at(driver), 0].map(u64::to_ne_bytes);
                    all.extend([
                        Message::ask(request::SET_VRING_NUM, two(ring, size.into()), vec![]),
                        Message::ask(
                            request::SET_VRING_BASE,
                            two(ring, u32::from(base) << 8),
                            vec![],
                        ),
                        Message::ask(
                            request::SET_VRING_ADDR,
                            [two(ring, 0), parts.concat()].concat(),
                            vec![],
                        ),
                        Message::ask(
                            request::SET_VRING_CALL,
                            number.clone(),
                            event().into_iter().collect(),
                        ),
                        Message::ask(
                            request::SET_VRING_KICK,
                            number,
                            event().into_iter().collect(),
                        ),
                    ]);
                }
                all
            }
            // An arbitrary word anywhere in the memory, as indices and flags are.
            2 => {
                let [place, word] = [(); 2].map(|()| u16::from_le_bytes(input.bytes()));
                memory.write(START + u64::from(place & !1), &word.to_le_bytes());
                vec![]
            }
            // A descriptor in the first table, mostly of valid memory.
            3 => {
                let [slot, id, flags, high] = input.bytes();
                let [at, len] = [(); 2].map(|()| u16::from_le_bytes(input.bytes()));
                let address = if high == 0xff { u64::MAX - 8 } else { START + u64::from(at) };
                let rest =
                    [u32::from(len).to_le_bytes(), [id, 0, flags & 7, flags & 0x80]].concat();
                memory.write(START + u64::from(slot) * 16, &address.to_le_bytes());
                memory.write(START + u64::from(slot) * 16 + 8, &rest);
                vec![]
            }
            4 => {
                let budget = u16::from(input.byte() % 65);
                let work = queue.poll(budget, 0, &mut frames);
                assert!(work.rx <= budget && frames.len() <= work.rx.into());
                taken += u64::from(work.rx);
                frames.clear();
                vec![]
            }
            5 => {
                let frame = vec![7; usize::from(u16::from_le_bytes(input.bytes()) % 2_100)];
                let _ = wire.send(&frame, 0);
                sent += 1;
                vec![]
            }
            6 => {
                queue.mask();
                queue.acknowledge();
                vec![]
            }
            7 => {
                queue.unmask(0);
                vec![]
            }
            // An in-flight record of a previous backend, somewhere in the memory.
            8 => {
                let [place, size] = input.bytes();
                let offset = u64::from(place) * 0x100;
                let at = InflightAt { len: LEN - offset, offset, rings: 2, size: size.into() };
                let agreed = features::PROTOCOL_OFFERED.to_ne_bytes().to_vec();
                // With the version and number of entries that make it valid.
                memory.write(START + offset + 8, &[1, 0, size, 0]);
                vec![
                    Message::ask(request::SET_PROTOCOL_FEATURES, agreed, vec![]),
                    Message::ask(
                        request::SET_INFLIGHT_FD,
                        inflight(at),
                        copy(&file).into_iter().collect(),
                    ),
                ]
            }
            // Truncates the file.
            _ => {
                let _ = ftruncate(&file, u64::from(input.byte()) << 8);
                vec![]
            }
        };
        for message in asked {
            // A refused peer is gone; the next one finds a new session.
            if session.handle(message).is_err() {
                drop(std::mem::replace(&mut session, Session::new(&ports, &peers)));
            }
        }
    }
    drop(session);
    let counts = queue.counters().read();
    assert_eq!(counts.rx_packets + counts.rx_dropped(), taken);
    assert_eq!(counts.tx_packets + counts.tx_dropped, sent);
    assert_eq!(pool.available(), 16, "a buffer was lost");
    assert!(wire.send(&[7; 60], 0).is_err(), "nobody is there");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_peer_that_does_anything_harms_nobody(
            data in prop::collection::vec(any::<u8>(), 0..600),
            begins: bool,
        ) {
            // A set-up with parts of rings that do not overlap, and 16 entries.
            let begin = [1, 3, 16, 0, 0, 0x80, 0xc0];
            super::serve(&[if begins { &begin[..] } else { &[] }, &data].concat());
        }
    }
}
