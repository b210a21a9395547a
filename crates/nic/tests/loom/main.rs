//! Models of lock-free protocols: notification and sleep of the two sides of a virtio ring; senders that leave
//! frames for each other; and the free list of a pool's buffers.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p napkin-nic --release --test loom
//! ```
//! explores every interleaving, and stale values of loads, within two preemptions per schedule.
//! `LOOM_MAX_PREEMPTIONS` sets another bound.
//!
//! The files under test are those that ship, compiled here a second time with loom's atomics (`sync.rs`) and with a
//! stand-in for the memory that two processes share (`memory.rs`). A lost notification shows as a deadlock. Beside
//! each model there are variants that lack a part of the protocol, and must fail.
//!
//! Without `--cfg loom` this file is empty.
#![cfg(loom)]
#![allow(dead_code, unreachable_pub, reason = "the models use a part of each file")]

#[path = "../../src/free_list.rs"]
mod free_list;
#[path = "../../src/mpsc_ring.rs"]
mod mpsc_ring;
mod sync;

mod buffers;

/// The files of the rings, with the same module paths as where they ship.
mod vhost {
    #[path = "../../../src/vhost/driver.rs"]
    pub mod driver;
    #[path = "../../../src/vhost/gate.rs"]
    pub mod gate;
    #[path = "../../../src/vhost/header.rs"]
    pub mod header;
    #[path = "../memory.rs"]
    pub mod memory;
    #[path = "../../../src/vhost/packed_device.rs"]
    pub mod packed_device;
    #[path = "../../../src/vhost/packed_driver.rs"]
    pub mod packed_driver;
    #[path = "../../../src/vhost/packed_ring.rs"]
    pub mod packed_ring;
    #[path = "../../../src/vhost/resume.rs"]
    pub mod resume;
    #[path = "../../../src/vhost/ring.rs"]
    pub mod ring;
    #[path = "../../../src/vhost/segments.rs"]
    pub mod segments;
    #[path = "../../../src/vhost/setup.rs"]
    pub mod setup;
    #[path = "../../../src/vhost/slots.rs"]
    pub mod slots;
    #[path = "../../../src/vhost/split_device.rs"]
    pub mod split_device;
    #[path = "../../../src/vhost/split_driver.rs"]
    pub mod split_driver;
    #[path = "../../../src/vhost/tracking.rs"]
    pub mod tracking;

    mod notifying;
    mod queueing;
}

/// Capacity of a frame: few bytes, since each is accessed in every schedule.
const FRAME_CAPACITY: usize = 16;
const ETHERNET_HEADER: usize = 14;

/// A frame that is left for another sender: its number.
#[derive(Debug, PartialEq, Eq)]
struct Frame(u32);

/// Runs a model in every schedule within the bound.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.check(model);
}

/// A model of an eventfd that is watched edge-triggered, as by a queue's interrupt descriptor.
#[derive(Debug, Default)]
struct Event {
    rung: loom::sync::Mutex<bool>,
    waiter: loom::sync::Condvar,
}

impl Event {
    fn ring(&self) {
        *self.rung.lock().expect("no model panics with the lock") = true;
        self.waiter.notify_one();
    }

    fn clear(&self) {
        *self.rung.lock().expect("no model panics with the lock") = false;
    }

    /// Sleeps until it is readable, and leaves it so.
    fn wait(&self) {
        let mut rung = self.rung.lock().expect("no model panics with the lock");
        while !*rung {
            rung = self.waiter.wait(rung).expect("no model panics with the lock");
        }
    }
}
