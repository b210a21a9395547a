//! The remote disk's handshake and requests: nothing panics or is waited for beyond the longest, what is
//! held stays within its window, and how the bytes are cut changes no answer.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use napkin_service::nbd::{MemoryStore, Nbd};
use napkin_service::{Served, StreamService};
use napkin_stack::Flow;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FLOW: Flow = Flow::new(SocketAddr::new(HOST, 10_809), SocketAddr::new(HOST, 40_000));
const SIZE: u64 = 200_001;
/// Bytes of answers that one look at the input may add: a window.
const MOST: usize = (1 << 20) + 64 * 1_024;

fn answered(start: &[u8], bytes: &[u8], piece: usize, read_only: bool) -> Vec<u8> {
    let store = MemoryStore::new(SIZE).expect("a size");
    let mut nbd = Nbd::new("disk", read_only, store).expect("a name");
    let (mut session, mut output) = (nbd.open(FLOW), Vec::new());
    let (mut input, mut all) = (Vec::new(), Vec::new());
    let parts = bytes.chunks(piece.max(1));
    for part in std::iter::once(start).chain(parts) {
        input.extend_from_slice(part);
        loop {
            nbd.proceed(&mut session, &mut output, 0);
            assert!(output.len() <= MOST, "{} bytes at once", output.len());
            all.append(&mut output);
            if input.is_empty() {
                break;
            }
            match nbd.serve(&mut session, &input, &mut output, 0) {
                Served::Request(taken) | Served::Continued(taken) => {
                    assert!((1..=input.len()).contains(&taken));
                    input.drain(..taken);
                }
                Served::More => {
                    assert!(input.len() < nbd.longest_request(), "waits for ever");
                    break;
                }
                // What it waits for has ended with the call: memory answers at once.
                Served::Wait => {}
                Served::Close => {
                    all.append(&mut output);
                    return all;
                }
            }
            // So that a long run of large reads does not hold it all.
            if all.len() > 4 << 20 {
                return all;
            }
        }
        all.append(&mut output);
    }
    all
}

fuzz_target!(|data: &[u8]| {
    let Some(([how, piece], bytes)) = data.split_first_chunk() else { return };
    // From nothing, past the client's flags, in transmission with simple replies, or structured ones.
    let flags = [0, 0, 0, 3];
    let option = |number: u8, data: &[u8]| {
        [b"IHAVEOPT", &[0, 0, 0, number][..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let start = match how % 4 {
        0 => Vec::new(),
        1 => flags.to_vec(),
        2 => [&flags[..], &option(1, b"")].concat(),
        _ => [&flags[..], &option(8, b""), &option(7, &[0; 6])].concat(),
    };
    // In transmission a request's magic number is given, and what its words have in common.
    let requests: Vec<u8> = match how % 4 {
        2 | 3 if how & 4 != 0 => bytes
            .chunks(12)
            .flat_map(|it| {
                let at = |place: usize| it.get(place).copied().unwrap_or(0);
                let length = [0, at(5) & 2, at(6), at(7)];
                let payload = match at(3) % 8 {
                    // Most writes come in whole.
                    1 if at(8) & 7 != 0 => u32::from_be_bytes(length) as usize,
                    _ => 0,
                };
                let head: [&[u8]; 6] = [
                    &[0x25, 0x60, 0x95, 0x13, at(0) & 1, at(1) & 3, 0, at(3) % 8],
                    &[0, 0, 0, 0, 0, 0, 0, at(9)],
                    &[at(2) & 1 & at(10), 0, 0, 0, 0, at(10) & 3, at(11), at(4)],
                    &length,
                    &vec![at(9); payload],
                    &[],
                ];
                head.concat()
            })
            .collect(),
        _ => bytes.to_vec(),
    };
    let read_only = how & 8 != 0;
    let whole = answered(&start, &requests, usize::MAX, read_only);
    let pieces = answered(&start, &requests, usize::from(*piece) * 64 + 1, read_only);
    let common = whole.len().min(pieces.len());
    assert!(whole[..common] == pieces[..common], "how it is cut changes the answer");
    if common < 4 << 20 {
        assert_eq!(whole.len(), pieces.len());
    }
});
