//! Splitting the input changes nothing, no input does harm, and an export behaves like an array.

use napkin_service::nbd::{Action, BlockStore, MemoryStore, Operation};
use proptest::prelude::*;

use crate::client::{
    Client, FLUSH, FUA, Late, NO_HOLE, READ, Reply, TRIM, WRITE, ZERO, asking, option_bytes,
    pattern, request,
};

const SIZE: u64 = 700_001;

/// An offset or a length, often at a boundary.
fn place() -> impl Strategy<Value = u64> {
    let around = prop::sample::select(vec![0u64, 512, 4_096, 65_536, 262_144, 524_288, SIZE]);
    prop_oneof![0..SIZE, (around, 0..3u64).prop_map(|(at, by)| (at + by).saturating_sub(1))]
}

fn requests() -> impl Strategy<Value = Vec<(u16, u16, u64, u64)>> {
    let command = prop::sample::select(vec![READ, WRITE, FLUSH, TRIM, ZERO]);
    let flags = prop::sample::select(vec![0, FUA]);
    prop::collection::vec((command, flags, place(), place()), 1..30)
}

/// Sends the requests one after the other, and compares the replies with those of an array.
fn compare<S: BlockStore>(mut client: Client<S>, requests: &[(u16, u16, u64, u64)]) {
    let mut model = vec![0u8; SIZE as usize];
    for (turn, &(command, mut flags, at, length)) in (0u64..).zip(requests) {
        let (at, length) = if command == FLUSH { (0, 0) } else { (at, length) };
        let range = at as usize..(at + length) as usize;
        let inside = at + length <= SIZE;
        let bytes = pattern(turn, length as usize);
        let heard = match command {
            WRITE => client.write(flags, at, &bytes),
            ZERO => {
                flags |= if turn % 2 == 0 { NO_HOLE } else { 0 };
                client.ask(ZERO, flags, at, length as u32)
            }
            _ => client.ask(command, flags, at, length as u32),
        };
        let expected = match command {
            READ | TRIM if !inside => Reply::Error(22),
            WRITE | ZERO if !inside => Reply::Error(28),
            READ if length > 0 => Reply::Data(model[range].to_vec()),
            WRITE => {
                model[range].copy_from_slice(&bytes);
                Reply::Done
            }
            // The store in memory drops what is trimmed.
            TRIM | ZERO => {
                model[range].fill(0);
                Reply::Done
            }
            _ => Reply::Done,
        };
        assert!(heard == expected, "{command} {flags} of {length} at {at}");
    }
    assert!(client.ask(READ, 0, 0, SIZE as u32) == Reply::Data(model), "at the end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_export_does_what_an_array_would(requests in requests(), structured: bool, late: bool) {
        let memory = MemoryStore::new(SIZE).unwrap();
        match late {
            true => compare(Client::ready(Late::new(memory), structured), &requests),
            false => compare(Client::ready(memory, structured), &requests),
        }
    }

    #[test]
    fn how_the_bytes_are_cut_changes_nothing(
        requests in requests(),
        structured: bool,
        cuts in prop::collection::vec(1usize..5_000, 1..20),
    ) {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(option_bytes(9, b"no such option"));
        if structured {
            bytes.extend(option_bytes(8, b""));
        }
        bytes.extend(option_bytes(7, &asking("", &[1, 3])));
        for (turn, (command, flags, at, length)) in (0..).zip(requests) {
            let length = length.min(40_000) as u32;
            bytes.extend(request(command, flags, turn, at, length));
            if command == WRITE {
                bytes.extend(pattern(turn, length as usize));
            }
        }
        let new = || Client::new(MemoryStore::new(SIZE).unwrap());
        let mut whole = new();
        whole.send(&bytes);
        let (mut cut, mut rest) = (new(), &bytes[..]);
        for piece in cuts.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*piece));
            cut.send(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(whole.heard == cut.heard && whole.closed == cut.closed);
    }

    #[test]
    fn no_bytes_harm(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        stage in 0..4,
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        late: bool,
    ) {
        // Noise from the start, after the flags, or after the handshake; or requests with corrupted bytes.
        let good = [
            request(READ, 0, 1, 0, 70_000),
            request(WRITE, FUA, 2, 100, 300),
            vec![5; 300],
            request(ZERO, NO_HOLE, 3, 9, 400_000),
            request(FLUSH, 0, 4, 0, 0),
        ]
        .concat();
        let mut bytes = if stage == 3 { good } else { noise };
        for (place, with) in places {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] ^= with;
            }
        }
        let memory = MemoryStore::new(SIZE).unwrap();
        if late {
            send(Late::new(memory), stage, &bytes);
        } else {
            send(memory, stage, &bytes);
        }
    }

    #[test]
    fn a_store_in_memory_gives_back_what_it_does_not_need(
        ranges in prop::collection::vec((place(), place(), any::<bool>()), 1..40),
    ) {
        let (mut store, mut model) = (MemoryStore::new(SIZE).unwrap(), vec![0u8; SIZE as usize]);
        for (at, length, write) in ranges {
            let at = at.min(SIZE);
            let length = length.min(SIZE - at);
            let range = at as usize..(at + length) as usize;
            let action = match write {
                true => Action::Write(vec![9; length as usize]),
                false => Action::Zero { length, hole: true },
            };
            model[range].fill(if write { 9 } else { 0 });
            store.begin(Operation { tag: 1, offset: at, action }).unwrap().1.unwrap();
            prop_assert!(store.allocated() <= SIZE.next_multiple_of(65_536));
        }
        let all = Action::Read(vec![1; SIZE as usize]);
        let (read, _) = store.begin(Operation { tag: 2, offset: 0, action: all }).unwrap();
        prop_assert!(read.action == Action::Read(model));
        store.begin(Operation { tag: 3, offset: 0, action: Action::Trim(SIZE) });
        // The last page is partial.
        prop_assert!(store.allocated() <= 65_536);
    }
}

/// Sends bytes at a stage of a connection, in pieces of 1, 2, 3 ... bytes; the harness asserts the rest.
fn send<S: BlockStore>(store: S, stage: i32, mut bytes: &[u8]) {
    let mut client = match stage {
        0 | 1 => Client::new(store),
        _ => Client::ready(store, stage == 2),
    };
    if stage == 1 {
        client.send(&1u32.to_be_bytes());
    }
    for length in 1.. {
        let (piece, rest) = bytes.split_at(bytes.len().min(length));
        client.send(piece);
        bytes = rest;
        if bytes.is_empty() {
            return;
        }
    }
}
