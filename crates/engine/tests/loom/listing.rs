//! Ready lists: a thread that looks, finds nothing and sleeps misses no announcement.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use loom::thread::{JoinHandle, spawn};
use napkin_core::NEVER;

use crate::explore;
use crate::parker::Parker;
use crate::ready::{Event, ReadyList, Source, Watch};
use crate::sync::{self, ArrayQueue, Ordering};

/// A socket. Relaxed: it is the list that hands over what was brought.
#[derive(Debug, Default)]
struct Socket {
    frames: AtomicU32,
    closed: AtomicBool,
}

impl Source for Socket {
    fn readable(&self) -> bool {
        self.frames.load(Relaxed) > 0
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

/// The protocol, in its present version and in wrong ones.
trait Lists: Send + Sync + 'static {
    type Watch: Send + Sync;
    fn new() -> Self;
    fn watch(socket: Arc<Socket>, token: u64) -> Arc<Self::Watch>;
    fn announce(&self, watch: &Arc<Self::Watch>, wake: impl FnOnce());
    fn look(&self, wait: u64, events: &mut Vec<Event>, max: usize);
}

impl Lists for ReadyList<Socket> {
    type Watch = Watch<Socket>;

    fn new() -> Self {
        ReadyList::new(2)
    }

    fn watch(socket: Arc<Socket>, token: u64) -> Arc<Watch<Socket>> {
        Watch::new(socket, token)
    }

    fn announce(&self, watch: &Arc<Watch<Socket>>, wake: impl FnOnce()) {
        ReadyList::announce(self, watch, wake);
    }

    fn look(&self, wait: u64, events: &mut Vec<Event>, max: usize) {
        ReadyList::look(self, wait, events, max);
    }
}

/// The former version: the flag is cleared by a store, so that the look may miss what came before an announcement
/// that found the flag set.
const STORED: u8 = 0;
/// The flag is cleared after the look, which loses an announcement in between.
const CLEARED_LATE: u8 = 1;
/// The waiting thread is woken before there is something on the list.
const WOKEN_EARLY: u8 = 2;

/// A wrong list, reduced to what its scenes need.
struct Wrong<const FAULT: u8>(ArrayQueue<Arc<Flagged>>);

struct Flagged {
    socket: Arc<Socket>,
    token: u64,
    listed: sync::AtomicBool,
}

impl<const FAULT: u8> Wrong<FAULT> {
    fn list(&self, watch: &Arc<Flagged>) {
        if !watch.listed.swap(true, Ordering::AcqRel) {
            assert!(self.0.push(Arc::clone(watch)).is_ok(), "more watches than slots");
        }
    }
}

impl<const FAULT: u8> Lists for Wrong<FAULT> {
    type Watch = Flagged;

    fn new() -> Self {
        Wrong(ArrayQueue::new(2))
    }

    fn watch(socket: Arc<Socket>, token: u64) -> Arc<Flagged> {
        Arc::new(Flagged { socket, token, listed: sync::AtomicBool::new(false) })
    }

    fn announce(&self, watch: &Arc<Flagged>, wake: impl FnOnce()) {
        if FAULT == WOKEN_EARLY {
            wake();
            self.list(watch);
        } else {
            self.list(watch);
            wake();
        }
    }

    fn look(&self, _: u64, events: &mut Vec<Event>, max: usize) {
        for _ in 0..self.0.len() {
            if events.len() >= max {
                return;
            }
            let Some(watch) = self.0.pop() else { return };
            match FAULT {
                STORED => watch.listed.store(false, Ordering::SeqCst),
                CLEARED_LATE => {}
                _ => {
                    watch.listed.swap(false, Ordering::AcqRel);
                }
            }
            let readable = watch.socket.readable();
            if FAULT == CLEARED_LATE {
                watch.listed.swap(false, Ordering::AcqRel);
            }
            if readable {
                self.list(&watch);
                events.push(Event { token: watch.token });
            }
        }
    }
}

/// Two sockets, and one thread that waits for them.
struct Scene<L: Lists> {
    list: L,
    sockets: [Arc<Socket>; 2],
    watches: [Arc<L::Watch>; 2],
    parker: Parker,
}

impl<L: Lists> Scene<L> {
    fn new() -> Arc<Self> {
        let sockets = [(); 2].map(|()| Arc::new(Socket::default()));
        let watches = [0, 1].map(|token| L::watch(sockets[token].clone(), token as u64));
        Arc::new(Scene { list: L::new(), sockets, watches, parker: Parker::default() })
    }

    /// A frame comes for a socket.
    fn bring(&self, socket: usize) {
        self.sockets[socket].frames.fetch_add(1, Relaxed);
        self.announce(socket);
    }

    fn close(&self, socket: usize) {
        self.sockets[socket].closed.store(true, Relaxed);
        self.announce(socket);
    }

    fn announce(&self, socket: usize) {
        self.list.announce(&self.watches[socket], || {
            self.parker.unpark();
        });
    }

    /// Another thread brings a frame for each of these sockets, one after the other.
    fn bringer(self: &Arc<Self>, sockets: &'static [usize]) -> JoinHandle<()> {
        let scene = self.clone();
        spawn(move || sockets.iter().for_each(|&socket| scene.bring(socket)))
    }

    /// One wait: the tokens of at most `max` sockets.
    fn wait(&self, number: u64, max: usize) -> Vec<u64> {
        let mut events = Vec::new();
        self.parker.forget();
        loop {
            self.list.look(number, &mut events, max);
            if !events.is_empty() {
                return events.iter().map(|event| event.token).collect();
            }
            self.parker.park(NEVER, || {});
        }
    }

    /// Waits, `max` sockets at a time, and takes what is there until that many frames have come.
    fn receive(&self, frames: u32, max: usize) {
        let mut taken = 0;
        for number in 1.. {
            if taken == frames {
                return;
            }
            for token in self.wait(number, max) {
                taken += self.sockets[token as usize].frames.swap(0, Relaxed);
            }
        }
    }
}

fn ends(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("a bringer"));
}

/// Two threads bring a frame each for the same socket.
fn one_socket<L: Lists>() {
    let scene = Scene::<L>::new();
    let threads = [scene.bringer(&[0]), scene.bringer(&[0])];
    scene.receive(2, 2);
    ends(threads);
}

/// One thread brings two frames, one after the other.
fn one_after_the_other<L: Lists>() {
    let scene = Scene::<L>::new();
    let thread = scene.bringer(&[0, 0]);
    scene.receive(2, 2);
    ends([thread]);
}

/// Two threads bring frames for two sockets, of which one is reported at a time.
fn two_sockets<L: Lists>() {
    let scene = Scene::<L>::new();
    let threads = [scene.bringer(&[0]), scene.bringer(&[1])];
    scene.receive(2, 1);
    ends(threads);
}

#[test]
fn a_frame_that_comes_during_a_look_is_reported() {
    explore(one_socket::<ReadyList<Socket>>);
    explore(one_after_the_other::<ReadyList<Socket>>);
}

#[test]
fn two_sockets_that_become_ready_are_both_reported() {
    explore(two_sockets::<ReadyList<Socket>>);
}

#[test]
fn a_socket_that_closes_is_reported() {
    explore(|| {
        let scene = Scene::<ReadyList<Socket>>::new();
        let shared = scene.clone();
        let thread = spawn(move || {
            shared.bring(0);
            shared.close(0);
        });
        scene.receive(1, 2);
        while !scene.sockets[0].is_closed() {
            scene.wait(NEVER, 2);
        }
        ends([thread]);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_a_store_a_frame_that_comes_during_a_look_is_missed() {
    explore(one_after_the_other::<Wrong<STORED>>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_the_flag_cleared_after_the_look_a_frame_is_missed() {
    explore(one_after_the_other::<Wrong<CLEARED_LATE>>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn woken_before_the_list_has_it_the_waiter_sleeps_on() {
    explore(one_after_the_other::<Wrong<WOKEN_EARLY>>);
}
