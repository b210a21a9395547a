//! A macro for the calls that a wrapping queue forwards to the queue inside.

/// `forward!(mask, gone);` in an `impl PacketQueue` implements these methods by calling those of `self.inner`.
macro_rules! forward {
    ($($call:ident),* $(,)?) => { $(forward!(@$call);)* };
    (@poll) => {
        fn poll(&mut self, budget: u16, now: napkin_policy::Ns, into: &mut Vec<$crate::Frame>) -> napkin_core::Work {
            self.inner.poll(budget, now, into)
        }
    };
    (@mask) => {
        fn mask(&mut self) {
            self.inner.mask();
        }
    };
    (@unmask) => {
        fn unmask(&mut self, now: napkin_policy::Ns) -> bool {
            self.inner.unmask(now)
        }
    };
    (@interrupt) => {
        fn interrupt(&self) -> std::os::fd::BorrowedFd<'_> {
            self.inner.interrupt()
        }
    };
    (@acknowledge) => {
        fn acknowledge(&mut self) {
            self.inner.acknowledge();
        }
    };
    (@gone) => {
        fn gone(&self) -> bool {
            self.inner.gone()
        }
    };
    (@transmitter) => {
        fn transmitter(&self) -> std::sync::Arc<dyn $crate::Transmitter> {
            self.inner.transmitter()
        }
    };
    (@counters) => {
        fn counters(&self) -> std::sync::Arc<$crate::QueueCounters> {
            self.inner.counters()
        }
    };
}
pub(crate) use forward;
