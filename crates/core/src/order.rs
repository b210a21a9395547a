//! The order in which a queue's driver ends a poll that has drained its ring.
//!
//! Delivery is the same in both; what differs is when the interrupt is allowed, and so in which
//! window an interrupt finds the instance owned and leaves its mark. The order belongs to the
//! driver, so it is set at set-up like the weight and is no part of a policy.

/// When a driver allows its interrupt, after a poll that took less than its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Deliver, decide, and allow the interrupt only if the instance is to be released so. An
    /// interrupt has only the moment between the unmasking and the release to find an owner. What
    /// most drivers do; the default.
    #[default]
    DeliverFirst,
    /// Allow the interrupt, deliver, decide, and forbid it again if it is to stay masked. virtio_net
    /// does so (`virtqueue_napi_complete`, Linux 5.x to 7.x): while it delivers, every arrival raises
    /// an interrupt that finds the owner, who then polls once more in the same softirq.
    ///
    /// Where the completion returns early (a busy-polling application's or thread's pass) nothing is
    /// delivered in between: the interrupt is allowed and forbidden, and then the poll is delivered.
    UnmaskFirst,
}
