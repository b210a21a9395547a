//! A file behind io_uring: it behaves like an array, and reports what it cannot do.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use napkin_serve::disk::{Disk, DiskError, FileStore};
use napkin_service::nbd::{Action, BlockStore, Operation, StoreError};
use napkin_testing::{needs, test};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SIZE: u64 = 300_001;

/// A temporary file of one test.
struct Own(PathBuf);

impl Own {
    fn new(directory: &Path, size: u64) -> Own {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("napkin-disk-{}-{number}", std::process::id()));
        File::create(&path).expect("a file").set_len(size).expect("a size");
        Own(path)
    }

    fn disk(&self) -> Disk {
        Disk::open(&self.0, false).expect("a disk")
    }

    fn store(&self) -> FileStore {
        let store = self.disk().handle();
        needs(!matches!(store, Err(DiskError::Ring(_))), "io_uring");
        store.expect("a handle")
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn folder() -> PathBuf {
    std::env::temp_dir()
}

/// Collects completed operations until there are `count`.
fn collect(store: &mut FileStore, count: usize) -> Vec<(Operation, Result<(), StoreError>)> {
    let mut ended = Vec::new();
    while ended.len() < count {
        store.submit();
        match store.ended() {
            Some(operation) => ended.push(operation),
            None => std::thread::yield_now(),
        }
    }
    ended
}

fn one(store: &mut FileStore, offset: u64, action: Action) -> (Action, Result<(), StoreError>) {
    assert_eq!(store.begin(Operation { tag: 9, offset, action }), None);
    let (operation, result) = collect(store, 1).pop().expect("one");
    assert_eq!((operation.tag, operation.offset), (9, offset));
    (operation.action, result)
}

fn read(store: &mut FileStore, offset: u64, length: u64) -> Vec<u8> {
    match one(store, offset, Action::Read(vec![0xee; length as usize])) {
        (Action::Read(bytes), Ok(())) => bytes,
        other => panic!("{other:?}"),
    }
}

fn array(directory: &Path) {
    let place = prop_oneof![0..SIZE, prop::sample::select(vec![0, 4_096, 65_536, 131_072, SIZE])];
    let ranges = prop::collection::vec((0..6u8, place.clone(), place), 1..20);
    let check = |operations: Vec<(u8, u64, u64)>| {
        let own = Own::new(directory, SIZE);
        let (mut store, mut model) = (own.store(), vec![0u8; SIZE as usize]);
        for (turn, (kind, at, length)) in operations.into_iter().enumerate() {
            // The kernel refuses to allocate 0 bytes, and a server never asks for it.
            let length = length.min(SIZE - at).max(1).min(SIZE - at);
            let range = at as usize..(at + length) as usize;
            if length == 0 {
                continue;
            }
            let action = match kind {
                0 | 1 => Action::Write(vec![turn as u8 + 1; length as usize]),
                2 => Action::Zero { length, hole: true },
                3 => Action::Zero { length, hole: false },
                4 => Action::Trim(length),
                _ => Action::Flush,
            };
            let (_, result) = one(&mut store, at, action);
            assert_eq!(result, Ok(()), "{kind} of {length} at {at}");
            match kind {
                0 | 1 => model[range].fill(turn as u8 + 1),
                2 | 3 => model[range].fill(0),
                // Trimmed bytes are unchanged or zero.
                4 => {
                    let left = read(&mut store, at, length);
                    let kept = |(now, before): (&u8, &u8)| now == before || *now == 0;
                    assert!(left.iter().zip(&model[range.clone()]).all(kept));
                    model[range].copy_from_slice(&left);
                }
                _ => {}
            }
        }
        assert!(read(&mut store, 0, SIZE) == model);
        drop(store);
        assert!(std::fs::read(&own.0).expect("the file") == model, "its size and its bytes");
        Ok(())
    };
    let mut runner =
        TestRunner::new(Config { cases: 32, failure_persistence: None, ..Config::default() });
    runner.run(&ranges, check).expect("no counterexample");
}

#[test]
fn a_file_does_what_an_array_would() {
    drop(Own::new(&folder(), 1).store());
    array(&folder());
}

#[test]
fn where_zeroes_cannot_be_asked_for_they_are_written() {
    // tmpfs supports punching holes, but not zeroing a range.
    let directory = Path::new("/dev/shm");
    needs(directory.is_dir(), "/dev/shm");
    drop(Own::new(directory, 1).store());
    array(directory);
}

#[test]
fn forgotten_operations_are_dropped() {
    let own = Own::new(&folder(), 4_096 * 1_000);
    let mut store = own.store();
    for tag in 0..1_000 {
        let action = Action::Write(vec![1; 4_096]);
        assert_eq!(store.begin(Operation { tag, offset: tag * 4_096, action }), None);
    }
    // Some are submitted by then, in order.
    store.submit();
    store.forget(&|tag| tag >= 990);
    let (mut wanted, mut others) = (0, 0);
    while wanted < 10 {
        let (operation, result) = collect(&mut store, 1).pop().expect("one");
        assert_eq!(result, Ok(()));
        *if operation.tag >= 990 { &mut wanted } else { &mut others } += 1;
    }
    assert!(others <= 128, "{others} for nobody");
    let nothing = read(&mut store, 500 * 4_096, 4_096);
    assert!(nothing.iter().all(|byte| *byte == 0), "it was not written");
}

#[test]
fn forgotten_zero_writes_end_with_the_piece_in_flight() {
    let directory = Path::new("/dev/shm");
    needs(directory.is_dir(), "/dev/shm");
    let (size, own) = (16 << 20, Own::new(directory, 16 << 20));
    let mut store = own.store();
    let action = Action::Zero { length: size, hole: false };
    assert_eq!(store.begin(Operation { tag: 1, offset: 0, action }), None);
    store.submit();
    store.forget(&|_| false);
    // Time enough for more pieces than there are.
    for _ in 0..300 {
        assert_eq!(one(&mut store, 0, Action::Write(vec![1])).1, Ok(()));
    }
    let room = std::fs::metadata(&own.0).expect("the file").blocks() * 512;
    assert!(room <= 1 << 20, "{room} bytes were written");
}

#[test]
fn more_operations_than_the_kernel_takes_at_a_time_end_all() {
    let own = Own::new(&folder(), 4_096 * 1_000);
    let mut store = own.store();
    for tag in 0..1_000u64 {
        let action = Action::Write(vec![tag as u8; 4_096]);
        assert_eq!(store.begin(Operation { tag, offset: tag * 4_096, action }), None);
    }
    let mut tags: Vec<u64> = collect(&mut store, 1_000).iter().map(|it| it.0.tag).collect();
    tags.sort();
    assert!(tags.iter().copied().eq(0..1_000));
    // The completed writes are visible.
    assert_eq!(read(&mut store, 4_096 * 7, 1), [7]);
    // Dropping a handle waits for the operations in flight.
    for tag in 0..300u64 {
        store.begin(Operation { tag, offset: tag * 4_096, action: Action::Write(vec![1; 4_096]) });
    }
    store.submit();
    drop(store);
}

#[test]
fn two_handles_see_one_file() {
    let own = Own::new(&folder(), SIZE);
    drop(own.store());
    let disk = own.disk();
    let (mut one_s, mut other_s) = (disk.handle().expect("one"), disk.handle().expect("two"));
    assert_eq!(one(&mut one_s, 5, Action::Write(vec![1, 2, 3])).1, Ok(()));
    assert_eq!(read(&mut other_s, 4, 5), [0, 1, 2, 3, 0]);
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let own = Own::new(&folder(), SIZE);
    let mut store = own.store();
    let file = OpenOptions::new().write(true).open(&own.0).expect("the file");
    file.write_all_at(b"x", 99).expect("a write");
    file.set_len(100).expect("a size");
    assert_eq!(read(&mut store, 99, 1), b"x");
    assert_eq!(one(&mut store, 90, Action::Read(vec![0; 100])).1, Err(StoreError::Io));
}

#[test]
fn what_cannot_be_served_is_refused() {
    let missing = Disk::open(Path::new("/nonexistent/disk"), false).unwrap_err().to_string();
    assert!(missing.contains("truncate -s 1G /nonexistent/disk"), "{missing}");
    for path in ["/tmp", "/dev/null"] {
        let error = Disk::open(Path::new(path), true).unwrap_err();
        assert!(matches!(error, DiskError::Kind(_)), "{error}");
    }
    let empty = Own::new(&folder(), 0);
    assert!(matches!(Disk::open(&empty.0, true), Err(DiskError::Empty(_))));
    let (own, shared) = (Own::new(&folder(), 10), Own::new(&folder(), 10));
    let _writer = own.disk();
    let _readers = [(), ()].map(|()| Disk::open(&shared.0, true).expect("a reader"));
    // In parallel, because each waits for a while in case the lock is about to be released.
    std::thread::scope(|scope| {
        for (file, read_only) in [(&own, false), (&own, true), (&shared, false)] {
            scope.spawn(move || {
                let error = Disk::open(&file.0, read_only).unwrap_err();
                assert!(matches!(error, DiskError::Locked(_)), "{error}");
            });
        }
    });
}

napkin_testing::main!();
