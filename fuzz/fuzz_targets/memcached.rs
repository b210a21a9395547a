//! memcached's text protocol and meta commands: nothing panics, no request is waited for beyond the
//! longest, how the bytes are cut changes no answer, and what is held stays within its bounds.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use napkin_service::memcached::{Limits, Memcached};
use napkin_service::{Served, StreamService};
use napkin_stack::Flow;

const FLOW: Flow = Flow::new(
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 11_211),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_000),
);
const LIMITS: Limits = Limits { memory: 16 * 1_024, item: 2_000 };
/// Bytes of answers that one look at the input may add: a value and what belongs to it, or statistics.
const MOST: usize = 64 * 1_024 + 2_000 + 1_024;

/// What is answered to these bytes, given `piece` at a time.
fn answered(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut memcached = Memcached::new(LIMITS, 1_700_000_000).expect("limits that agree");
    let (mut client, mut output) = (memcached.open(FLOW), Vec::new());
    let (mut input, mut now) = (Vec::new(), 1_000_000_000);
    for part in bytes.chunks(piece.max(1)) {
        input.extend_from_slice(part);
        while !input.is_empty() {
            let before = output.len();
            let served = memcached.serve(&mut client, &input, &mut output, now);
            assert!(output.len() - before <= MOST, "{} bytes at once", output.len() - before);
            match served {
                Served::Request(taken) | Served::Continued(taken) => {
                    assert!((1..=input.len()).contains(&taken));
                    // Time passes with requests, not with how they come.
                    now += match served {
                        Served::Request(_) => 100_000_000,
                        _ => 0,
                    };
                    input.drain(..taken);
                }
                Served::More => {
                    assert!(input.len() < memcached.longest_request(), "waits for ever");
                    break;
                }
                Served::Wait => panic!("nothing of memcached's is under way"),
                Served::Close => return output,
            }
            assert!(memcached.store().bytes() <= LIMITS.memory, "more than the limit is held");
        }
    }
    output
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, bytes)) = data.split_first() else { return };
    assert_eq!(answered(bytes, usize::MAX), answered(bytes, usize::from(*piece)));
});
