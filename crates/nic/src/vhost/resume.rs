//! Recovery of a packed ring's position from its descriptors, for a driver whose monitor does not know the
//! position. QEMU records no in-flight chains for a NIC, and after its backend was killed it tells the next one to
//! start at the beginning.
//!
//! The driver goes round the ring and leaves its lap's parity in each descriptor, so the place where the parity
//! changes is where it writes next. From there on, oldest first, come used descriptors and then those that are
//! still available: a device that uses buffers in order, as ours does, continues at the first of the latter. That
//! holds if each chain is one descriptor: of a longer one only the first is overwritten, and the rest looks
//! available for ever. A driver that was offered indirect descriptors has no longer chains (Linux); if there is
//! one, no position is found.
//!
//! A batch is published last to first, so a device that was killed meanwhile leaves available descriptors before
//! used ones. Those are returned empty: their frames are lost, as the frames inside the device are.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::memory::Area;
use super::packed_ring::{AVAILABLE, BATCH, Position, USED, packed_word};
use super::ring::{Descriptor, NEXT, WRITE};

/// Number of attempts: the driver may write while the ring is read.
const ATTEMPTS: usize = 16;

/// Finds the place where a device continues; `None` if the ring does not tell.
pub(super) fn find(table: &Area, size: u16) -> Option<Position> {
    (0..ATTEMPTS).find_map(|_| {
        let flags: Vec<u16> =
            (0..size).map(|at| table.load16(usize::from(at) * 16 + 14, Acquire)).collect();
        look(table, &flags)
    })
}

fn look(table: &Area, flags: &[u16]) -> Option<Position> {
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
    // The entry of an age: the oldest is where the driver writes next.
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
        true => Position::new(first, u8::from(now), size),
        false => Position::new(by_age(end), u8::from(lap(by_age(end))), size),
    }
}
