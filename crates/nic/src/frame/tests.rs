//! Tests of a pool's frames: taking, filling and returning them.

use super::*;

#[test]
fn a_pool_gives_as_many_frames_as_it_has_and_takes_them_back() {
    let pool = Pool::new(2);
    let first = pool.take().expect("two are free");
    let second = pool.take().expect("one is free");
    assert!(pool.take().is_none());
    drop(first);
    assert_eq!(pool.available(), 1);
    assert!(pool.take().is_some());
    drop(second);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_frame_survives_its_pool_on_another_thread() {
    let pool = Pool::new(1);
    let mut frame = pool.take().expect("one is free");
    drop(pool);
    frame.buffer()[..3].copy_from_slice(b"abc");
    frame.set_len(3);
    let read = std::thread::spawn(move || frame.to_vec()).join().expect("the thread ends");
    assert_eq!(read, b"abc");
}

#[test]
fn a_length_beyond_the_buffer_is_the_buffer() {
    let mut frame = Pool::new(1).take().expect("one is free");
    assert!(frame.is_empty());
    frame.set_len(usize::MAX);
    assert_eq!(frame.len(), FRAME_CAPACITY);
}

#[test]
fn frames_that_are_done_with_go_back_together_each_to_its_pool() {
    let pools = [Pool::new(40), Pool::new(40)];
    let all = || (0..40).flat_map(|_| pools.iter().filter_map(Pool::take)).collect::<Vec<_>>();
    let mut spent = ReturnedFrames::default();
    spent.extend(all());
    spent.give_back();
    assert_eq!(pools.each_ref().map(Pool::available), [40, 40]);
    spent.extend(all());
    drop(spent);
    assert_eq!(pools.each_ref().map(Pool::available), [40, 40]);
}

#[test]
fn what_a_stash_has_left_goes_back() {
    let pool = Pool::new(3);
    let mut stash = pool.stash(9);
    stash.buffer().expect("three were free")[..2].copy_from_slice(b"ab");
    let frame = stash.frame(2, 7).expect("three were free");
    assert!(pool.take().is_none());
    drop(stash);
    assert_eq!((&*frame, frame.arrived(), pool.available()), (&b"ab"[..], 7, 2));
    let mut none = Pool::new(0);
    assert!(none.stash(1).buffer().is_none() && none.stash(1).frame(0, 0).is_none());
    none = pool.clone();
    drop(none);
}

#[test]
fn memory_goes_when_its_frames_are_back_and_not_before() {
    let pool = Pool::new(1);
    let (frame, memory) = (pool.take().expect("one is free"), pool.owner.0.0);
    let is_left = || {
        free_orphaned(None);
        ORPHANED.lock().expect("no test panics with it").iter().any(|it| it.0 == memory)
    };
    drop(pool);
    assert!(is_left(), "a frame is in it");
    drop(frame);
    assert!(!is_left());
}

#[test]
fn an_empty_pool_is_empty() {
    assert!(Pool::new(0).take().is_none());
}
