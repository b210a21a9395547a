//! Models of the free list: a buffer belongs to one holder at a time, whatever other threads take and return.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread::spawn;

use crate::explore;
use crate::free_list::FreeList;

/// A list, and a cell for each number. loom checks that a cell's user has it exclusively, and sees the writes of
/// its previous user.
struct Scene {
    list: FreeList,
    buffers: [UnsafeCell<u32>; 3],
}

// SAFETY: a cell is used only by the thread that has taken its number; that this is exclusive is what the model
// shows.
unsafe impl Sync for Scene {}

impl Scene {
    fn new() -> Arc<Scene> {
        Arc::new(Scene { list: FreeList::new(3), buffers: [(); 3].map(|()| UnsafeCell::new(0)) })
    }

    /// Takes up to `most` numbers, uses their cells, and returns them.
    fn turn(&self, most: usize) {
        let mut into = [0; 3];
        let taken = self.list.take_many(&mut into[..most]);
        for number in &into[..taken] {
            // SAFETY: this thread has taken the number.
            self.buffers[*number as usize].with_mut(|it| unsafe { *it += 1 });
        }
        self.list.put_back_many(&into[..taken]);
    }
}

fn two_take(turns: [&'static [usize]; 2]) {
    explore(move || {
        let scene = Scene::new();
        let thread_scene = Arc::clone(&scene);
        let peer_thread = spawn(move || turns[1].iter().for_each(|most| thread_scene.turn(*most)));
        turns[0].iter().for_each(|most| scene.turn(*most));
        peer_thread.join().expect("it ends");
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

/// ABA: one thread reads the top and the number below it; the other takes both and returns the first. The top is as
/// before, but the number below it is not free: the count of exchanges tells.
#[test]
fn what_is_on_top_again_may_have_something_else_below_it() {
    explore(|| {
        let scene = Scene::new();
        let thread_scene = Arc::clone(&scene);
        let peer_thread = spawn(move || {
            let held = [thread_scene.list.take(), thread_scene.list.take()];
            let [Some(first), Some(second)] = held else { return None };
            thread_scene.list.put_back(first);
            Some(second)
        });
        let mine = scene.list.take();
        let next = scene.list.take();
        let second = peer_thread.join().expect("it ends");
        let mut out: Vec<_> = [mine, next, second].into_iter().flatten().collect();
        out.sort_unstable();
        out.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1], "one has two holders"));
    });
}

/// A frame dropped after the last handle of its pool: a thread that sees all numbers back may free their memory.
#[test]
fn who_sees_all_back_has_all_to_himself() {
    explore(|| {
        let scene = Scene::new();
        let number = scene.list.take().expect("there are three");
        let thread_scene = Arc::clone(&scene);
        let peer_thread = spawn(move || {
            // SAFETY: the number was taken above.
            thread_scene.buffers[number as usize].with_mut(|it| unsafe { *it += 1 });
            thread_scene.list.put_back(number);
        });
        while scene.list.len() < 3 {
            loom::thread::yield_now();
        }
        // SAFETY: all numbers are back.
        scene.buffers.iter().for_each(|it| it.with_mut(|it| unsafe { *it += 1 }));
        peer_thread.join().expect("it ends");
    });
}
