//! Requests, and their replies.

use napkin_service::nbd::MemoryStore;

use crate::client::{
    Client, DISCONNECT, FLUSH, FUA, Late, NO_HOLE, READ, Reply, TRIM, WRITE, ZERO, pattern, request,
};

const SIZE: u64 = 80 << 20;
const INVALID: Reply = Reply::Error(22);
const NO_SPACE: Reply = Reply::Error(28);
const INPUT_OUTPUT: Reply = Reply::Error(5);
const MIB: u64 = 1 << 20;

fn memory() -> MemoryStore {
    MemoryStore::new(SIZE).expect("a size")
}

#[test]
fn what_is_written_is_read_across_every_boundary_of_size() {
    for structured in [false, true] {
        let mut now = Client::ready(memory(), structured);
        let mut late = Client::ready(Late::new(memory()), structured);
        let page = 64 * 1_024;
        for around in [1, 512, 4_096, page, 4 * page, MIB, MIB + page, 8 * MIB, 32 * MIB] {
            for length in [around - 1, around, around + 1] {
                let length = length.min(32 * MIB);
                for at in [1, page - 1, SIZE - length, 0].into_iter().take(if length > MIB * 2 {
                    1
                } else {
                    4
                }) {
                    let bytes = pattern(at ^ length, length as usize);
                    let read = match length {
                        0 => Reply::Done,
                        _ => Reply::Data(bytes.clone()),
                    };
                    let flags = if length % 2 == 0 { FUA } else { 0 };
                    assert_eq!(now.write(flags, at, &bytes), Reply::Done);
                    assert!(now.ask(READ, 0, at, length as u32) == read, "{length} at {at}");
                    if around <= 2 * MIB {
                        assert_eq!(late.write(flags, at, &bytes), Reply::Done);
                        assert!(late.ask(READ, 0, at, length as u32) == read, "{length} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn zeroes_and_trims_read_as_zeroes_here() {
    for (command, flags) in
        [(ZERO, 0), (ZERO, NO_HOLE), (ZERO, FUA | NO_HOLE), (TRIM, 0), (TRIM, FUA)]
    {
        let mut client = Client::ready(memory(), true);
        let bytes = pattern(1, 300_000);
        assert_eq!(client.write(0, 1_000, &bytes), Reply::Done);
        assert_eq!(client.ask(command, flags, 2_000, 200_000), Reply::Done);
        let mut expected = [vec![0; 1_000], bytes].concat();
        expected[2_000..202_000].fill(0);
        assert!(client.ask(READ, 0, 0, 301_000) == Reply::Data(expected), "{command} {flags}");
        // The whole export, however large.
        assert_eq!(client.ask(command, flags, 0, SIZE as u32), Reply::Done);
        assert_eq!(client.nbd.store().allocated(), 0, "it takes no room");
    }
}

#[test]
fn what_must_outlast_the_loss_of_power_is_flushed_before_it_is_answered() {
    let mut client = Client::ready(Late::new(memory()), false);
    let flushes = |client: &mut Client<Late>| client.nbd.store().flushes;
    assert_eq!(client.write(0, 0, &pattern(1, 600_000)), Reply::Done);
    assert_eq!(flushes(&mut client), 0);
    assert_eq!(client.write(FUA, 0, &pattern(2, 600_000)), Reply::Done);
    assert_eq!(flushes(&mut client), 1);
    for command in [TRIM, ZERO] {
        let before = flushes(&mut client);
        assert_eq!(client.ask(command, FUA, 0, 10), Reply::Done);
        assert_eq!(flushes(&mut client), before + 1);
    }
    assert_eq!(client.ask(FLUSH, 0, 0, 0), Reply::Done);
    assert_eq!(flushes(&mut client), 4);
    // On a read, the flag is accepted and has no effect.
    assert_eq!(client.ask(READ, FUA, 0, 1), Reply::Data(pattern(2, 1)).zeroed());
    assert_eq!(flushes(&mut client), 4);
}

impl Reply {
    /// The same reply with all data zero.
    fn zeroed(self) -> Reply {
        match self {
            Reply::Data(bytes) => Reply::Data(vec![0; bytes.len()]),
            other => other,
        }
    }
}

#[test]
fn ranges_beyond_the_export_are_refused_and_the_connection_goes_on() {
    for structured in [false, true] {
        let mut client = Client::ready(memory(), structured);
        for (at, length) in [
            (SIZE, 1),
            (SIZE - 1, 2),
            (SIZE + 1, 0),
            (u64::MAX, 1),
            (u64::MAX, u32::MAX),
            (1 << 63, 9),
        ] {
            assert_eq!(client.ask(READ, 0, at, length), INVALID, "read {length} at {at}");
            assert_eq!(client.ask(TRIM, 0, at, length), INVALID, "trim {length} at {at}");
            assert_eq!(client.ask(ZERO, 0, at, length), NO_SPACE, "zero {length} at {at}");
            if length < 100 {
                let bytes = vec![1; length as usize];
                assert_eq!(client.write(0, at, &bytes), NO_SPACE, "write {length} at {at}");
            }
        }
        // The payload of a refused write is not read as requests.
        let payload = request(DISCONNECT, 0, 0, 0, 0).repeat(1_000);
        assert_eq!(client.write(0, SIZE - 5, &payload), NO_SPACE);
        assert_eq!(client.ask(READ, 0, SIZE - 5, 5), Reply::Data(vec![0; 5]));
        for (command, at) in [(READ, 0), (READ, SIZE), (TRIM, SIZE), (ZERO, 0), (ZERO, SIZE)] {
            assert_eq!(client.ask(command, 0, at, 0), Reply::Done, "{command} of nothing");
        }
        assert_eq!(client.write(FUA, SIZE, b""), Reply::Done);
    }
}

#[test]
fn what_is_not_known_is_refused_and_the_connection_goes_on() {
    for structured in [false, true] {
        let mut client = Client::ready(memory(), structured);
        for command in [5, 7, 8, 255, u16::MAX] {
            assert_eq!(client.ask(command, 0, 0, 16), INVALID, "command {command}");
        }
        for (command, flags) in
            [(READ, 2), (READ, 4), (READ, 16), (TRIM, 2), (ZERO, 16), (ZERO, 0x8000), (FLUSH, 8)]
        {
            assert_eq!(client.ask(command, flags, 0, 0), INVALID, "{command} with {flags}");
        }
        assert_eq!(client.write(2, 0, b"not to be written"), INVALID);
        assert_eq!(client.ask(FLUSH, 0, 1, 0), INVALID);
        assert_eq!(client.ask(FLUSH, 0, 0, 1), INVALID);
        assert_eq!(client.ask(READ, 0, 0, 3), Reply::Data(vec![0; 3]));
    }
}

#[test]
fn more_than_32_mib_at_a_time_is_refused() {
    let mut simple = Client::ready(memory(), false);
    assert_eq!(simple.ask(READ, 0, 0, (32 << 20) + 1), INVALID);
    let mut structured = Client::ready(memory(), true);
    assert_eq!(structured.ask(READ, 0, 0, (32 << 20) + 1), Reply::Error(75));
    // A write of this size is not received only to be refused.
    structured.send(&request(WRITE, 0, 7, 0, (32 << 20) + 1));
    assert!(structured.closed && structured.heard.is_empty());
}

#[test]
fn what_is_no_request_ends_the_connection() {
    for wrong in [&[0u8; 28][..], b"x", b"\x25\x60\x95\x14"] {
        let mut client = Client::ready(memory(), true);
        client.send(wrong);
        // A single byte may still become a request.
        assert_eq!((client.closed, client.heard.len()), (wrong.len() > 3, 0), "{wrong:?}");
    }
}

#[test]
fn a_disconnect_is_served_after_the_requests_in_flight() {
    let mut client = Client::ready(Late::new(memory()), false);
    let many = (0..10u64).flat_map(|at| request(READ, 0, 7, at, 1)).collect::<Vec<_>>();
    client.send(&[many, request(DISCONNECT, 0, 0, 0, 0)].concat());
    assert!(client.closed);
    assert_eq!(client.heard.len(), 10 * 17);
}

#[test]
fn requests_are_answered_as_they_end() {
    let mut client = Client::ready(Late::new(memory()), false);
    client.nbd.store_mut().stuck = true;
    client.send(&[request(READ, 0, 1, 0, 1), request(READ, 0, 2, 0, 1)].concat());
    assert!(client.heard.is_empty());
    client.nbd.store_mut().stuck = false;
    client.look();
    let cookies: Vec<u8> = client.heard.chunks(17).map(|reply| reply[15]).collect();
    assert_eq!(cookies, [2, 1], "the last ended first");
}

#[test]
fn a_large_simple_read_is_not_mixed_with_others() {
    let mut client = Client::ready(Late::new(memory()), false);
    assert_eq!(client.write(0, 0, &pattern(3, 2 << 20)), Reply::Done);
    let length = 2 << 20;
    let requests =
        [request(READ, 0, 1, 0, 1), request(READ, 0, 2, 0, length), request(READ, 0, 3, 0, 1)];
    client.send(&requests.concat());
    assert_eq!(client.take(17)[15], 1);
    assert_eq!(client.take(16)[15], 2);
    assert!(client.take(length as usize) == pattern(3, length as usize));
    assert_eq!(client.take(17)[15], 3);
}

#[test]
fn a_device_error_is_reported_or_ends_the_connection() {
    let bad = |place| {
        let mut late = Late::new(memory());
        late.bad = Some(place);
        late
    };
    for structured in [false, true] {
        let mut client = Client::ready(bad(5), structured);
        for (command, length) in [(READ, 10), (READ, 2 << 20), (ZERO, 6), (TRIM, 9)] {
            assert_eq!(client.ask(command, FUA, 0, length), INPUT_OUTPUT, "{command}");
        }
        assert_eq!(client.write(FUA, 0, &pattern(1, 1_000_000)), INPUT_OUTPUT);
        assert_eq!(client.nbd.store().flushes, 0, "what failed is not flushed");
        assert_eq!(client.ask(READ, 0, 6, 2 << 20).zeroed(), Reply::Data(vec![0; 2 << 20]));
    }
    // A failure in the middle of a read, after part of the data was sent.
    let mut client = Client::ready(bad(1_000_000), true);
    assert_eq!(client.ask(READ, 0, 0, 2 << 20), INPUT_OUTPUT);
    assert_eq!(client.write(0, 0, &pattern(1, 8 << 20)), INPUT_OUTPUT);
    assert!(!client.closed);
    let mut client = Client::ready(bad(1_000_000), false);
    client.send(&request(READ, 0, 7, 0, 2 << 20));
    assert!(client.closed, "there is no other way to say it");
    assert!(client.heard.len() < 2 << 20);
}

#[test]
fn a_client_that_does_not_read_is_not_served_and_its_memory_is_bounded() {
    for structured in [false, true] {
        for (length, times) in [(1, 20_000), (100_000, 5_000), (32 << 20, 4)] {
            let mut client = Client::ready(memory(), structured);
            client.reading = false;
            // The harness asserts that unsent output is bounded.
            client.send(&request(READ, 0, 7, 0, length).repeat(times));
            assert!(client.waiting() > 0, "all of {length} were taken");
            (client.reading, client.forgotten) = (true, Some(0));
            client.look();
            assert_eq!(client.waiting(), 0);
            let all = (length as usize + 16) * times;
            assert!(client.forgotten.is_some_and(|bytes| bytes >= all), "{:?}", client.forgotten);
        }
    }
}

#[test]
fn a_store_that_does_not_answer_holds_a_window() {
    let mut client = Client::ready(Late::new(memory()), true);
    client.nbd.store_mut().stuck = true;
    client.send(&request(READ, 0, 7, 0, 32 << 20).repeat(100));
    assert!(client.nbd.store().in_flight() <= 1 << 20);
    let mut client = Client::ready(Late::new(memory()), true);
    client.nbd.store_mut().stuck = true;
    client.send(&[request(WRITE, 0, 7, 0, 32 << 20), vec![1; 32 << 20]].concat());
    assert!(client.nbd.store().in_flight() <= 1 << 20);
    assert!(client.waiting() >= (32 << 20) - (2 << 20), "the rest waits with the peer");
    let mut client = Client::ready(Late::new(memory()), true);
    client.nbd.store_mut().stuck = true;
    client.send(&request(FLUSH, 0, 7, 0, 0).repeat(1_000));
    assert_eq!(client.waiting(), (1_000 - 128) * 28);
}

#[test]
fn operations_of_a_closed_connection_are_forgotten() {
    let mut client = Client::ready(Late::new(memory()), true);
    client.nbd.store_mut().stuck = true;
    client.send(&request(READ, 0, 1, 0, 100_000));
    assert_eq!(client.nbd.store().in_flight(), 100_000);
    let nbd = client.leave();
    assert_eq!(nbd.store().in_flight(), 0, "nobody waits for it");
    // The next connection has its own operations, and nothing of the previous one's.
    let mut next = Client::of(nbd).go(true);
    next.send(&request(READ, 0, 7, 0, 50_000));
    assert_eq!(next.nbd.store().in_flight(), 50_000);
    next.nbd.store_mut().stuck = false;
    next.look();
    assert_eq!(next.reply(50_000), Reply::Data(vec![0; 50_000]));
}
