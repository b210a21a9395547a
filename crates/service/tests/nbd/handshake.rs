//! Negotiation of the export and of the kind of replies.

use napkin_service::nbd::{MemoryStore, NAME_LIMIT, NameError, Nbd};

use crate::client::{Client, NAME, READ, Reply, asking, option_bytes};

const ACK: (u32, Vec<u8>) = (1, Vec::new());
const UNSUPPORTED: u32 = (1 << 31) + 1;
const INVALID: u32 = (1 << 31) + 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const TOO_BIG: u32 = (1 << 31) + 9;
/// `HAS_FLAGS`, flush, force unit access, trim, write-zeroes, multiple connections.
const FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256;
const SIZE: u64 = 100_000;

fn memory() -> MemoryStore {
    MemoryStore::new(SIZE).expect("a size")
}

/// A client that has sent its flags.
fn client(flags: u32) -> Client<MemoryStore> {
    let mut client = Client::new(memory());
    client.send(&flags.to_be_bytes());
    client
}

fn export() -> Vec<u8> {
    [&[0, 0][..], &SIZE.to_be_bytes(), &FLAGS.to_be_bytes()].concat()
}

#[test]
fn the_old_way_names_an_export_and_hears_its_size() {
    for (flags, zeroes) in [(3, 0), (1, 124), (2, 0), (0, 124)] {
        for name in [NAME, ""] {
            let mut client = client(flags);
            client.send(&option_bytes(1, name.as_bytes()));
            assert_eq!(client.take(10), export()[2..]);
            assert_eq!(client.take(zeroes), vec![0; zeroes]);
            assert_eq!(client.ask(READ, 0, 5, 3), Reply::Data(vec![0; 3]));
        }
    }
}

#[test]
fn the_new_way_asks_for_what_it_wants_to_know() {
    let mut client = client(3);
    let name = [&[0, 1], NAME.as_bytes()].concat();
    let sizes: Vec<u8> = [0u8, 3]
        .into_iter()
        .chain([1u32, 4_096, 32 << 20].map(u32::to_be_bytes).concat())
        .collect();
    // 9 is an unknown information type, which is not an error.
    for (asked, answer) in [
        (&[][..], vec![(3, export()), ACK]),
        (&[3], vec![(3, export()), (3, sizes.clone()), ACK]),
        (&[9, 3, 1], vec![(3, export()), (3, name), (3, sizes), ACK]),
    ] {
        assert_eq!(client.option(6, &asking(NAME, asked)), answer);
    }
    assert_eq!(client.option(6, &asking("", &[])), [(3, export()), ACK]);
    // INFO stays in the handshake; GO ends it.
    assert_eq!(client.option(7, &asking(NAME, &[])), [(3, export()), ACK]);
    assert_eq!(client.ask(READ, 0, 0, 1), Reply::Data(vec![0]));
}

#[test]
fn exports_are_listed() {
    let mut client = client(1);
    let server = [&[0, 0, 0, NAME.len() as u8][..], NAME.as_bytes()].concat();
    assert_eq!(client.option(3, b""), [(2, server), ACK]);
    let replies = client.option(3, b"x");
    assert!(matches!(&replies[..], [(INVALID, _)]), "{replies:?}");
}

#[test]
fn what_is_not_known_is_refused_in_words_and_the_next_is_read() {
    let mut client = client(1);
    for option in [0, 4, 5, 9, 10, 11, 12, u32::MAX] {
        for length in [0, 1, 5_000, 200_000] {
            assert_eq!(client.option(option, &vec![7; length]), [(UNSUPPORTED, Vec::new())]);
        }
    }
    let kind = |replies: Vec<(u32, Vec<u8>)>| replies.last().map(|it| it.0);
    assert_eq!(kind(client.option(7, &asking("other", &[]))), Some(UNKNOWN));
    assert_eq!(kind(client.option(7, &asking(&"n".repeat(NAME_LIMIT), &[]))), Some(UNKNOWN));
    assert_eq!(kind(client.option(6, &asking(NAME, &[3; 5_000]))), Some(TOO_BIG));
    // The name longer than the data, fewer or more requests than announced, half a request, no data.
    let all = asking(NAME, &[3]);
    let short = [&[0, 0, 0, 90][..], &all[4..]].concat();
    for wrong in [&short, &all[..all.len() - 2], &[&all[..], &[0, 3]].concat(), &all[..9], b""] {
        assert_eq!(kind(client.option(7, wrong)), Some(INVALID), "{wrong:?}");
    }
    assert_eq!(kind(client.option(8, b"x")), Some(INVALID));
    assert_eq!(client.option(8, b""), [ACK]);
    assert_eq!(client.option(7, &all).last(), Some(&ACK));
}

#[test]
fn a_violation_of_the_handshake_closes_the_connection() {
    // Flags that were not offered; not an option; an export that does not exist; an invalid name.
    for flags in [4u32, 1 << 31, u32::MAX] {
        assert!(client(flags).closed, "{flags}");
    }
    let long = option_bytes(1, &[b'x'; 10_000]);
    for wrong in [&b"IHAVEOPX\0\0\0\x03\0\0\0\0"[..], &option_bytes(1, b"other"), &long] {
        let mut client = client(3);
        client.send(wrong);
        assert!(client.closed && client.heard.is_empty(), "{:?}", client.heard);
    }
}

#[test]
fn an_abort_is_acknowledged_and_closes_the_connection() {
    for data in [&b""[..], b"because"] {
        let mut client = client(1);
        assert_eq!(client.option(2, data), [ACK]);
        assert!(client.closed);
    }
}

#[test]
fn a_read_only_export_says_so() {
    let mut client = Client::of(Nbd::new("", true, memory()).expect("a name"));
    client.send(&1u32.to_be_bytes());
    let replies = client.option(7, &asking("", &[]));
    assert_eq!(replies[0].1[10..], (1u16 | 2 | 4 | 8 | 256).to_be_bytes());
    assert_eq!(client.write(0, 0, b"x"), Reply::Error(1));
    assert_eq!(client.ask(4, 0, 0, 1), Reply::Error(1));
    assert_eq!(client.ask(6, 0, 0, 1), Reply::Error(1));
    assert_eq!(client.ask(READ, 0, 0, 1), Reply::Data(vec![0]));
    assert_eq!(client.ask(3, 0, 0, 0), Reply::Done);
}

#[test]
fn names_and_sizes_that_cannot_be_are_refused() {
    assert_eq!(Nbd::new("a\0b", false, memory()).err(), Some(NameError));
    assert_eq!(Nbd::new(&"n".repeat(NAME_LIMIT + 1), false, memory()).err(), Some(NameError));
    assert!(Nbd::new(&"n".repeat(NAME_LIMIT), false, memory()).is_ok());
    for size in [0, (64 << 30) + 1, u64::MAX] {
        assert!(MemoryStore::new(size).is_err(), "{size}");
    }
}
