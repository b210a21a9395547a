//! Whether busy polling does anything: a driver may ignore it, and then a caller spins for nothing
//! while the kernel's interrupts, on another CPU perhaps, bring the frames. They then come between two calls of who
//! spins, too; where calls bring them none does.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use napkin_policy::Ns;

/// Looks that found frames, after which something can be said.
const ENOUGH: u64 = 256;

/// A thread that looks again within this time spins: what it finds then without a call, right after a call that
/// found nothing, another one has brought.
const SPINS: Ns = 10_000;

/// What has been seen of a queue's busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyPolling {
    /// Too few frames came to say.
    Unknown,
    /// Calls bring frames.
    Honoured,
    /// Frames come between calls: the interrupts bring them. The driver does not let its NAPI be polled, or
    /// nothing puts the interrupts off.
    Ignored,
    /// The socket has no NAPI id, so that nothing can be polled: the driver tells none, or the kernel
    /// copies (since Linux 6.13 zero-copy sockets alone have one). No calls are made for it any more.
    NoNapi,
}

impl BusyPolling {
    const ALL: [BusyPolling; 4] =
        [BusyPolling::Unknown, BusyPolling::Honoured, BusyPolling::Ignored, BusyPolling::NoNapi];
}

impl fmt::Display for BusyPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BusyPolling::Unknown => "too few frames to say",
            BusyPolling::Honoured => "honoured by the driver",
            BusyPolling::Ignored => "frames come by interrupts all the same: the driver ignores it, or they are not deferred",
            BusyPolling::NoNapi => "the socket has no NAPI that could be polled (since Linux 6.13 a zero-copy socket alone has)",
        })
    }
}

/// What is seen of a queue's busy polling, for whoever does not own the queue.
#[derive(Debug, Clone, Default)]
pub struct BusyVerdict(Arc<AtomicU8>);

impl BusyVerdict {
    /// As it was a moment ago.
    pub fn get(&self) -> BusyPolling {
        BusyPolling::ALL[usize::from(self.0.load(Relaxed)) % BusyPolling::ALL.len()]
    }
}

/// How frames came.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Calls that brought some, of the last ones.
    by_call: u64,
    /// Looks of who spins that found some before any call.
    alone: u64,
    /// When a call found nothing, and after how many calls to send (twice as many), if no look and no interrupt came
    /// since.
    spins: Option<(Ns, u32)>,
    asked: bool,
    /// There is nothing that could be polled.
    pub(super) useless: bool,
    pub(super) verdict: BusyVerdict,
}

impl Busy {
    /// `at` has the time, and twice the calls to send before it, which poll as well; an odd number while one lasts.
    pub(super) fn called(&mut self, found: bool, at: (Ns, u32)) {
        self.spins = (!found && at.1.is_multiple_of(2)).then_some(at);
        if found {
            self.by_call += 1;
            self.age();
        }
    }

    /// `napi_id` is asked once, by when the first frames have come: the kernel knows it then, or never.
    pub(super) fn came_alone(&mut self, (now, sent): (Ns, u32), napi_id: impl FnOnce() -> u32) {
        if !std::mem::replace(&mut self.asked, true) && napi_id() == 0 {
            self.useless = true;
            self.judge();
        }
        let spins = |(then, before): (Ns, u32)| now.saturating_sub(then) < SPINS && sent == before;
        if self.spins.take().is_some_and(spins) {
            self.alone += 1;
            self.age();
        }
    }

    /// What is found next an interrupt has told of.
    pub(super) fn interrupted(&mut self) {
        self.spins = None;
    }

    /// What was long ago counts less and less.
    fn age(&mut self) {
        if self.by_call + self.alone >= 64 * ENOUGH {
            self.by_call /= 2;
            self.alone /= 2;
        }
        if (self.by_call + self.alone).is_multiple_of(ENOUGH) {
            self.judge();
        }
    }

    fn judge(&self) {
        let seen = self.by_call + self.alone;
        let verdict = match self.alone {
            _ if self.useless => BusyPolling::NoNapi,
            _ if seen < ENOUGH => BusyPolling::Unknown,
            // A call finds what came while it lasted, whoever brought it.
            alone if alone * 16 > seen => BusyPolling::Ignored,
            _ => BusyPolling::Honoured,
        };
        self.verdict.0.store(verdict as u8, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spinner, whose calls find something every so many times, and who else finds something after a pause.
    fn spins(busy: &mut Busy, times: u64, by_call: u64, pause: Ns) {
        for time in 0..times {
            busy.called(time % by_call == 0, (0, 0));
            busy.came_alone((pause, 0), || 8);
        }
    }

    #[test]
    fn a_driver_whose_frames_come_between_calls_is_found_out() {
        let mut busy = Busy::default();
        assert_eq!(busy.verdict.get(), BusyPolling::Unknown);
        // Who looks now and then only, after an interrupt, or after another thread's call, finds what came meanwhile.
        spins(&mut busy, 10 * ENOUGH, u64::MAX, SPINS);
        for _ in 0..10 * ENOUGH {
            busy.called(false, (0, 0));
            busy.interrupted();
            busy.came_alone((1, 0), || 8);
            busy.called(false, (0, 0));
            busy.came_alone((1, 1), || 8);
            busy.called(false, (0, 1));
            busy.came_alone((1, 1), || 8);
        }
        // Nor does the rest of a full budget say anything.
        (0..10 * ENOUGH).for_each(|_| busy.came_alone((0, 0), || 8));
        assert!([BusyPolling::Unknown, BusyPolling::Honoured].contains(&busy.verdict.get()));
        // Where others bring the frames a call finds a share of them, too.
        spins(&mut busy, 10 * ENOUGH, 3, 1_000);
        assert_eq!(busy.verdict.get(), BusyPolling::Ignored);
        (0..100 * ENOUGH).for_each(|_| busy.called(true, (0, 0)));
        assert_eq!(busy.verdict.get(), BusyPolling::Honoured);

        let mut busy = Busy::default();
        busy.came_alone((0, 0), || 0);
        assert_eq!(busy.verdict.get(), BusyPolling::NoNapi);
    }
}
