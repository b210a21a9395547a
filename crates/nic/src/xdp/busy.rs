//! Detection of whether busy polling has any effect. A driver may ignore it, and then a caller spins in vain while
//! the kernel's interrupts, perhaps on another CPU, bring the frames. Frames then also arrive between two calls of
//! a spinning thread; if its calls bring them, none does.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use napkin_policy::Ns;

/// Number of polls with frames after which there is a verdict.
const MIN_SAMPLES: u64 = 256;

/// A thread that polls again within this time, in ns, is spinning: frames that it finds before a call, right after
/// a call that found nothing, were brought by another context.
const SPIN_TIME: Ns = 10_000;

/// The verdict on a queue's busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyPolling {
    /// Too few frames so far.
    Unknown,
    /// Calls bring the frames.
    Honoured,
    /// Frames arrive between calls, by interrupts. The driver does not allow its NAPI instance to be polled, or
    /// interrupts are not deferred.
    Ignored,
    /// The socket has no NAPI id, so nothing can be polled: the driver reports none, or the kernel copies (since
    /// Linux 6.13 only zero-copy sockets have one). Polls no longer make calls for it.
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

/// A handle on the verdict, for threads that do not own the queue.
#[derive(Debug, Clone, Default)]
pub struct BusyVerdict(Arc<AtomicU8>);

impl BusyVerdict {
    /// The current verdict, which may be slightly stale.
    pub fn get(&self) -> BusyPolling {
        BusyPolling::ALL[usize::from(self.0.load(Relaxed)) % BusyPolling::ALL.len()]
    }
}

/// The statistics behind the verdict.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Recent calls that brought frames.
    by_call: u64,
    /// Recent polls of a spinning thread that found frames before any call.
    without_call: u64,
    /// The last call, if it found nothing and no poll and no interrupt came since: its time, and twice the number
    /// of calls to send before it.
    spins: Option<(Ns, u32)>,
    napi_checked: bool,
    /// Whether there is no NAPI instance to poll.
    pub(super) no_napi: bool,
    pub(super) verdict: BusyVerdict,
}

impl Busy {
    /// Records a call. `at` has its time and twice the number of calls to send before it, which poll as well; the
    /// number is odd during such a call.
    pub(super) fn called(&mut self, found: bool, at: (Ns, u32)) {
        self.spins = (!found && at.1.is_multiple_of(2)).then_some(at);
        if found {
            self.by_call += 1;
            self.age();
        }
    }

    /// Records a poll that found frames before any call. `napi_id` is called once, when the first frames have
    /// arrived: the kernel knows the id then, or never.
    pub(super) fn found_without_call(
        &mut self,
        (now, sent): (Ns, u32),
        napi_id: impl FnOnce() -> u32,
    ) {
        if !std::mem::replace(&mut self.napi_checked, true) && napi_id() == 0 {
            self.no_napi = true;
            self.judge();
        }
        let spins =
            |(then, before): (Ns, u32)| now.saturating_sub(then) < SPIN_TIME && sent == before;
        if self.spins.take().is_some_and(spins) {
            self.without_call += 1;
            self.age();
        }
    }

    /// Records an interrupt: frames found next were announced by it.
    pub(super) fn interrupted(&mut self) {
        self.spins = None;
    }

    /// Halves the counts at times, so that older observations weigh less; updates the verdict now and then.
    fn age(&mut self) {
        if self.by_call + self.without_call >= 64 * MIN_SAMPLES {
            self.by_call /= 2;
            self.without_call /= 2;
        }
        if (self.by_call + self.without_call).is_multiple_of(MIN_SAMPLES) {
            self.judge();
        }
    }

    fn judge(&self) {
        let seen = self.by_call + self.without_call;
        let verdict = match self.without_call {
            _ if self.no_napi => BusyPolling::NoNapi,
            _ if seen < MIN_SAMPLES => BusyPolling::Unknown,
            // A call also finds frames that others brought during the call.
            without_call if without_call * 16 > seen => BusyPolling::Ignored,
            _ => BusyPolling::Honoured,
        };
        self.verdict.0.store(verdict as u8, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spinning thread of whose calls one in `by_call` finds frames, and which finds frames after `pause` each
    /// time.
    fn spins(busy: &mut Busy, times: u64, by_call: u64, pause: Ns) {
        for time in 0..times {
            busy.called(time % by_call == 0, (0, 0));
            busy.found_without_call((pause, 0), || 8);
        }
    }

    #[test]
    fn a_driver_whose_frames_come_between_calls_is_found_out() {
        let mut busy = Busy::default();
        assert_eq!(busy.verdict.get(), BusyPolling::Unknown);
        // A poll after a pause, after an interrupt, or after another thread's call finds what arrived meanwhile.
        spins(&mut busy, 10 * MIN_SAMPLES, u64::MAX, SPIN_TIME);
        for _ in 0..10 * MIN_SAMPLES {
            busy.called(false, (0, 0));
            busy.interrupted();
            busy.found_without_call((1, 0), || 8);
            busy.called(false, (0, 0));
            busy.found_without_call((1, 1), || 8);
            busy.called(false, (0, 1));
            busy.found_without_call((1, 1), || 8);
        }
        // A poll that continues after a full budget is no evidence either.
        (0..10 * MIN_SAMPLES).for_each(|_| busy.found_without_call((0, 0), || 8));
        assert!([BusyPolling::Unknown, BusyPolling::Honoured].contains(&busy.verdict.get()));
        // Where other contexts bring the frames, calls find some of them, too.
        spins(&mut busy, 10 * MIN_SAMPLES, 3, 1_000);
        assert_eq!(busy.verdict.get(), BusyPolling::Ignored);
        (0..100 * MIN_SAMPLES).for_each(|_| busy.called(true, (0, 0)));
        assert_eq!(busy.verdict.get(), BusyPolling::Honoured);

        let mut busy = Busy::default();
        busy.found_without_call((0, 0), || 0);
        assert_eq!(busy.verdict.get(), BusyPolling::NoNapi);
    }
}
