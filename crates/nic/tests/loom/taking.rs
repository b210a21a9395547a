//! The list of free buffers: a buffer belongs to one holder at a time, whoever takes and puts back beside it.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread::spawn;

use crate::explore;
use crate::free::FreeList;

/// A list, and what each number is the key to: loom sees to it that whoever uses it has it alone, and sees what
/// the one before it did.
struct Scene {
    list: FreeList,
    buffers: [UnsafeCell<u32>; 3],
}

// SAFETY: what is in a cell is used by the thread that has its number; that it does is what the model shows.
unsafe impl Sync for Scene {}

impl Scene {
    fn new() -> Arc<Scene> {
        Arc::new(Scene { list: FreeList::new(3), buffers: [(); 3].map(|()| UnsafeCell::new(0)) })
    }

    /// Takes up to so many, uses them, and puts them back.
    fn turn(&self, most: usize) {
        let mut into = [0; 3];
        let taken = self.list.take_many(&mut into[..most]);
        for number in &into[..taken] {
            // SAFETY: the number is ours.
            self.buffers[*number as usize].with_mut(|it| unsafe { *it += 1 });
        }
        self.list.put_back_many(&into[..taken]);
    }
}

fn two_take(turns: [&'static [usize]; 2]) {
    explore(move || {
        let scene = Scene::new();
        let theirs = Arc::clone(&scene);
        let there = spawn(move || turns[1].iter().for_each(|most| theirs.turn(*most)));
        turns[0].iter().for_each(|most| scene.turn(*most));
        there.join().expect("it ends");
        let mut all = [9; 3];
        assert_eq!((scene.list.len(), scene.list.take_many(&mut all)), (3, 3));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2], "each is back once");
    });
}

#[test]
fn a_buffer_is_with_one_at_a_time() {
    two_take([&[1], &[1]]);
    two_take([&[2], &[3]]);
}

/// One reads the top and what is below it; the other takes both and puts the first back. The top is as before, and
/// what was below it is not free: the count of exchanges tells it.
#[test]
fn what_is_on_top_again_may_have_something_else_below_it() {
    explore(|| {
        let scene = Scene::new();
        let theirs = Arc::clone(&scene);
        let there = spawn(move || {
            let held = [theirs.list.take(), theirs.list.take()];
            let [Some(first), Some(second)] = held else { return None };
            theirs.list.put_back(first);
            Some(second)
        });
        let mine = scene.list.take();
        let next = scene.list.take();
        let second = there.join().expect("it ends");
        let mut out: Vec<_> = [mine, next, second].into_iter().flatten().collect();
        out.sort_unstable();
        out.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1], "one has two holders"));
    });
}

/// A frame that is dropped after the last handle of its pool: whoever sees all numbers back may free what they are
/// the keys to.
#[test]
fn who_sees_all_back_has_all_to_himself() {
    explore(|| {
        let scene = Scene::new();
        let number = scene.list.take().expect("there are three");
        let theirs = Arc::clone(&scene);
        let there = spawn(move || {
            // SAFETY: the number is ours.
            theirs.buffers[number as usize].with_mut(|it| unsafe { *it += 1 });
            theirs.list.put_back(number);
        });
        while scene.list.len() < 3 {
            loom::thread::yield_now();
        }
        // SAFETY: nobody has a number.
        scene.buffers.iter().for_each(|it| it.with_mut(|it| unsafe { *it += 1 }));
        there.join().expect("it ends");
    });
}
