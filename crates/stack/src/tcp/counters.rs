//! What a worker counts.

/// What a worker has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Segments taken out of the receive buffer.
    pub segments: u64,
    /// Segments sent, repeats included.
    pub sent: u64,
    /// Segments that the queue did not take.
    pub send_failures: u64,
    /// Connections whose handshake ended well.
    pub opened: u64,
    /// Segments of no connection, to no listener: answered by a RST.
    pub unknown: u64,
    /// SYNs dropped because there was no place for another connection.
    pub refused: u64,
    /// Half-open connections that gave way to others.
    pub pushed_out: u64,
}
