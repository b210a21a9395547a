//! A device that panics while its queue is enabled or disabled: the instance stays usable, and traffic goes on.

mod common;

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::app::App;
use common::{PORT, Setup, alone, eventually, policy, queue, start};
use napkin_core::Work;
use napkin_nic::synthetic::SyntheticQueue;
use napkin_nic::{Frame, PacketQueue, QueueCounters, Transmitter};

/// The number of calls until the panic; 0 for no panic.
type Fuse = Arc<AtomicU32>;

fn burn(fuse: &Fuse, what: &str) {
    if fuse.load(Ordering::Relaxed) > 0 && fuse.fetch_sub(1, Ordering::Relaxed) == 1 {
        panic!("the device panics in {what}, as the test asked");
    }
}

/// A queue that panics when it is next unmasked, masked or dropped.
struct Panicking {
    queue: SyntheticQueue,
    unmask: Fuse,
    mask: Fuse,
    drop: Fuse,
}

impl Panicking {
    fn new(queue: SyntheticQueue) -> Self {
        Panicking { queue, unmask: Fuse::default(), mask: Fuse::default(), drop: Fuse::default() }
    }
}

impl PacketQueue for Panicking {
    fn poll(&mut self, budget: u16, now: u64, into: &mut Vec<Frame>) -> Work {
        self.queue.poll(budget, now, into)
    }

    fn mask(&mut self) {
        burn(&self.mask, "mask");
        self.queue.mask();
    }

    fn unmask(&mut self, now: u64) -> bool {
        burn(&self.unmask, "unmask");
        self.queue.unmask(now)
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.queue.interrupt()
    }

    fn acknowledge(&mut self) {
        self.queue.acknowledge();
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        self.queue.transmitter()
    }

    fn counters(&self) -> Arc<QueueCounters> {
        self.queue.counters()
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        burn(&self.drop, "drop");
    }
}

#[test]
fn a_queue_that_panics_as_it_is_put_into_service_is_polled_all_the_same() {
    let _alone = alone();
    for name in ["base", "threaded", "defer20", "workqueue"] {
        let policy = policy(name);
        let setup = Setup { per_second: 5_000.0, ..Setup::default() };
        let (engine, _first) = start(&policy, &setup);
        let app = App::start(&engine, PORT, &policy, None);
        eventually(&format!("{name}: traffic"), || app.received() >= 50);
        let (second, _source) = queue(&setup);
        let second = Panicking::new(second);
        second.unmask.store(1, Ordering::Relaxed);
        let replaces = || engine.replace_queue(1, Box::new(second));
        assert!(catch_unwind(AssertUnwindSafe(replaces)).is_err(), "{name}: it panicked");
        let received = app.received();
        eventually(&format!("{name}: traffic after the panic"), || app.received() >= received + 50);
        engine.stop();
        assert!(app.join(), "{name}");
    }
}

#[test]
fn a_queue_that_panics_as_it_goes_can_be_replaced_again() {
    let _alone = alone();
    for fuse in ["mask", "drop"] {
        let policy = policy("base");
        let setup = Setup { per_second: 5_000.0, ..Setup::default() };
        let (engine, _first) = start(&policy, &setup);
        let app = App::start(&engine, PORT, &policy, None);
        let (second, _source) = queue(&setup);
        let second = Panicking::new(second);
        let (mask, drop) = (Arc::clone(&second.mask), Arc::clone(&second.drop));
        engine.replace_queue(1, Box::new(second)).expect("it is replaced");
        let received = app.received();
        eventually("traffic", || app.received() >= received + 50);
        let (third, _source) = queue(&setup);
        // Panics as the disable masks, or as the change of the queue drops it.
        (if fuse == "mask" { &mask } else { &drop }).store(1, Ordering::Relaxed);
        let replaces = || engine.replace_queue(1, Box::new(third));
        let panicked = catch_unwind(AssertUnwindSafe(replaces)).is_err();
        assert!(panicked || fuse == "mask", "the interrupt side may have masked first");
        mask.store(0, Ordering::Relaxed);
        let (fourth, _source) = queue(&setup);
        engine.replace_queue(1, Box::new(fourth)).expect("it is replaced");
        let received = app.received();
        eventually(&format!("traffic after a panic in {fuse}"), || app.received() >= received + 50);
        engine.stop();
        assert!(app.join());
    }
}
