//! Where the device of a packed ring was, by what is written in the ring: for a driver whose monitor does not know. QEMU
//! keeps no notes of what is in flight for a NIC, and after its backend was killed it tells the next one to begin at the beginning.
//!
//! The driver goes round the ring and leaves its lap's parity in each descriptor, so the place where the parity
//! changes is where it writes next. From there on, oldest first, come descriptors that were used and then
//! those that are still available: a device that keeps the order, as ours does, goes on at the first of these. That holds where each
//! chain is one descriptor: of a longer one only the first is written over, and the rest looks available for
//! ever. A driver that was given indirect descriptors has no longer ones (Linux); where there are any, nothing is found.
//!
//! A batch is shown last to first, so a device that was killed meanwhile leaves available ones before used ones. They
//! are given back empty: what was in them is lost, as what was in the device is.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::memory::Area;
use super::ring::{Descriptor, NEXT, WRITE};
use super::turn::{AVAILABLE, BATCH, Turn, USED, packed_word};

/// How often it is tried: the driver may write while the ring is read.
const ATTEMPTS: usize = 16;

/// The place where a device goes on; `None` if the ring does not tell.
pub(super) fn find(table: &Area, size: u16) -> Option<Turn> {
    (0..ATTEMPTS).find_map(|_| {
        let flags: Vec<u16> =
            (0..size).map(|at| table.load16(usize::from(at) * 16 + 14, Acquire)).collect();
        look(table, &flags)
    })
}

fn look(table: &Area, flags: &[u16]) -> Option<Turn> {
    let size = flags.len() as u16;
    let lap = |at: u16| flags[usize::from(at)] & AVAILABLE != 0;
    let used = |at: u16| (flags[usize::from(at)] & USED != 0) == lap(at);
    let changes: Vec<u16> = (1..size).filter(|at| lap(*at) != lap(*at - 1)).collect();
    let (first, now) = match changes[..] {
        [] if size > 0 => (0, !lap(0)),
        [at] => (at, lap(0)),
        _ => return None,
    };
    if flags.iter().any(|flags| flags & NEXT != 0) {
        return None;
    }
    // By age: the oldest is where the driver writes next.
    let by_age = |age: u16| if age < size - first { first + age } else { age - (size - first) };
    let waits = (0..size).find(|age| !used(by_age(*age))).unwrap_or(size);
    let end = (waits..size).rfind(|age| used(by_age(*age))).map_or(waits, |age| age + 1);
    if usize::from(end - waits) > BATCH {
        return None;
    }
    for at in (waits..end).rev().map(by_age).filter(|at| !used(*at)) {
        let id = Descriptor::read(table, at).first;
        let flags = flags[usize::from(at)] & WRITE | if lap(at) { AVAILABLE | USED } else { 0 };
        table.store64(usize::from(at) * 16 + 8, packed_word(0, id, flags), Release);
    }
    match end == size {
        true => Turn::new(first, u8::from(now), size),
        false => Turn::new(by_age(end), u8::from(lap(by_age(end))), size),
    }
}
