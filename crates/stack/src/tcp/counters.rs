//! The counters of a TCP worker.

/// Counters of a TCP worker since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Segments taken out of the receive buffer.
    pub segments: u64,
    /// Segments sent, retransmissions included.
    pub sent: u64,
    /// Segments that the queue refused.
    pub send_failures: u64,
    /// Connections whose handshake has completed.
    pub opened: u64,
    /// Segments that match no connection and no listening port; answered with a RST.
    pub unknown: u64,
    /// SYNs dropped because the limit of connections was reached.
    pub refused: u64,
    /// Half-open connections evicted for newer ones.
    pub evicted: u64,
}
