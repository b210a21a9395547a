//! The order in which a queue's driver ends a poll that has drained its ring.
//!
//! Both orders deliver alike. They differ in when the interrupt is unmasked, and so in the window in which an
//! interrupt finds the instance owned and leaves `MISSED`. The order belongs to the driver: it is set at set-up,
//! like the weight, and is no part of a policy.

/// When a driver unmasks its interrupt, after a poll that took less than its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Deliver, decide, and unmask only if the instance is to be released with its interrupt unmasked. An interrupt
    /// can find an owner only in the short window between unmasking and release. Most drivers do this; the default.
    #[default]
    DeliverFirst,
    /// Unmask, deliver, decide, and mask again if the interrupt is to stay masked. virtio_net does so
    /// (`virtqueue_napi_complete`, Linux 5.x to 7.x): while it delivers, every arrival raises an interrupt that
    /// finds the instance owned, and the owner then polls once more in the same softirq.
    ///
    /// Where the completion returns early (a busy-polling application's or thread's pass) nothing is delivered in
    /// between: the interrupt is unmasked and masked again, and then the poll is delivered.
    UnmaskFirst,
}
