//! Models of a sender that finds another one at the ring, leaves its frame and returns: one of the two sends it,
//! and it never stays behind.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread::spawn;

use super::gate::Gate;
use crate::mpsc_ring::MpscRing;
use crate::{Frame, explore};

/// The ring behind the gate, which never fills.
type Ring = Mutex<Vec<u32>>;

struct Scene {
    gate: Gate<()>,
    waiting: MpscRing,
    sent: Ring,
}

impl Scene {
    fn new() -> Arc<Scene> {
        let gate = Gate::default();
        gate.enter(|place| *place = Some(()));
        Arc::new(Scene { gate, waiting: MpscRing::new(2), sent: Mutex::default() })
    }

    fn put(&self, number: u32) {
        self.sent.lock().expect("no model panics with the lock").push(number);
    }

    /// As `Wire::carry`, for a frame that is never refused.
    fn send(&self, number: u32, asks: bool) {
        match self.gate.try_enter() {
            Some(_place) => {
                self.drain();
                match self.waiting.len() {
                    0 => self.put(number),
                    _ => assert!(self.waiting.push(Frame(number)), "there is a place"),
                }
            }
            None => {
                assert!(self.waiting.push(Frame(number)), "there is a place");
                if asks {
                    self.gate.request();
                }
            }
        }
        self.gate.serve_requests(|_| self.drain());
    }

    fn drain(&self) {
        while let Some(Frame(number)) = self.waiting.pop() {
            self.put(number);
        }
    }
}

fn two_send(asks: bool) {
    explore(move || {
        let scene = Scene::new();
        let thread_scene = Arc::clone(&scene);
        let thread = spawn(move || thread_scene.send(1, asks));
        scene.send(0, asks);
        thread.join().expect("it ends");
        let mut sent = scene.sent.lock().expect("no model panics with the lock").clone();
        sent.sort_unstable();
        assert_eq!(sent, [0, 1], "one was left for nobody");
    });
}

#[test]
fn a_frame_that_is_left_is_sent() {
    two_send(true);
}

#[test]
#[should_panic(expected = "left for nobody")]
fn without_asking_it_may_be_left_for_nobody() {
    two_send(false);
}
