//! Whether busy polling does anything: a driver may ignore it, and then a caller spins for nothing
//! while the kernel's interrupts, on another CPU perhaps, bring the frames.

use std::fmt;

/// Looks that found frames, after which something can be said.
const ENOUGH: u64 = 256;

/// What has been seen of a queue's busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyPolling {
    /// Too few frames came to say.
    Unknown,
    /// Calls bring frames.
    Honoured,
    /// Frames came, and so good as none by a call: the interrupts bring them. The driver does not let
    /// its NAPI be polled, or nothing puts the interrupts off.
    Ignored,
    /// The socket has no NAPI id, so that nothing can be polled: the driver tells none, or the kernel
    /// copies (since Linux 6.13 zero-copy sockets alone have one). No calls are made for it any more.
    NoNapi,
}

impl fmt::Display for BusyPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BusyPolling::Unknown => "too few frames to say",
            BusyPolling::Honoured => "honoured by the driver",
            BusyPolling::Ignored => "no progress without interrupts: the driver ignores it, or they are not deferred",
            BusyPolling::NoNapi => "the socket has no NAPI that could be polled (since Linux 6.13 a zero-copy socket alone has)",
        })
    }
}

/// How frames came.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Calls that brought some, of the last ones.
    by_call: u64,
    /// Looks that found some before any call.
    alone: u64,
    /// There is nothing that could be polled.
    pub(super) useless: bool,
}

impl Busy {
    pub(super) fn called(&mut self, found: bool) {
        self.by_call += u64::from(found);
        self.age();
    }

    /// `napi_id` is asked once, by when the first frames have come: the kernel knows it then, or never.
    pub(super) fn came_alone(&mut self, napi_id: impl FnOnce() -> u32) {
        if self.by_call + self.alone == 0 {
            self.useless = napi_id() == 0;
        }
        self.alone += 1;
        self.age();
    }

    /// What was long ago counts less and less.
    fn age(&mut self) {
        if self.by_call + self.alone >= 64 * ENOUGH {
            self.by_call /= 2;
            self.alone /= 2;
        }
    }

    pub(super) fn verdict(&self) -> BusyPolling {
        match self.by_call + self.alone {
            _ if self.useless => BusyPolling::NoNapi,
            seen if seen < ENOUGH => BusyPolling::Unknown,
            // Full budgets leave the ring not empty, and the next look finds the rest alone.
            seen if self.by_call * 16 < seen => BusyPolling::Ignored,
            _ => BusyPolling::Honoured,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_brings_nothing_by_calls_is_found_out() {
        let mut busy = Busy::default();
        assert_eq!(busy.verdict(), BusyPolling::Unknown);
        (0..ENOUGH).for_each(|_| busy.came_alone(|| 8));
        assert_eq!(busy.verdict(), BusyPolling::Ignored);
        (0..1_000_000).for_each(|_| busy.called(false));
        assert_eq!(busy.verdict(), BusyPolling::Ignored);
        (0..10 * ENOUGH).for_each(|_| busy.called(true));
        assert_eq!(busy.verdict(), BusyPolling::Honoured);
        (0..100 * ENOUGH * 64).for_each(|_| busy.came_alone(|| 0));
        assert_eq!(busy.verdict(), BusyPolling::Ignored);

        let mut busy = Busy::default();
        busy.came_alone(|| 0);
        assert_eq!(busy.verdict(), BusyPolling::NoNapi);
    }
}
