//! Limits on the memory and time that peers can take of one worker.

use napkin_policy::{MILLISECOND, Ns};

/// Limits of one TCP worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpLimits {
    /// Connections, including half-open ones and those in TIME-WAIT. At the limit, a new connection evicts the
    /// oldest one in TIME-WAIT. If there is none, a SYN evicts the oldest half-open connection of a peer that is at
    /// least a second old. If there is none either, the SYN is dropped and the peer retransmits it.
    pub connections: usize,
    /// Half-open connections begun by peers. At the limit, a SYN evicts the oldest: a flood of SYNs evicts its own,
    /// and a peer that answers within a round trip gets through. The same limit applies to connections begun from
    /// this side, separately; beyond it, no more are opened.
    pub half_open: usize,
    /// Receive buffer of a connection in bytes, of which at most 65 535 are used: windows are not scaled.
    pub receive_buffer: usize,
    /// Send buffer of a connection in bytes: data that the peer has not acknowledged.
    pub send_buffer: usize,
    /// Timeout of a handshake, in nanoseconds.
    pub handshake: Ns,
    /// Idle time before a keep-alive probe is sent, in nanoseconds.
    pub keep_alive: Ns,
    /// How long a peer may leave data or probes unanswered before the connection is aborted, in nanoseconds; must
    /// be longer than [`keep_alive`](TcpLimits::keep_alive).
    pub peer_timeout: Ns,
    /// Size of the worker's receive buffer, in segments.
    pub segments: usize,
}

impl Default for TcpLimits {
    fn default() -> TcpLimits {
        TcpLimits::DEFAULT
    }
}

impl TcpLimits {
    /// The defaults, for a server of many small requests.
    pub const DEFAULT: TcpLimits = TcpLimits {
        connections: 16_384,
        half_open: 1_024,
        receive_buffer: 16 * 1_024,
        send_buffer: 32 * 1_024,
        handshake: 10_000 * MILLISECOND,
        keep_alive: 60_000 * MILLISECOND,
        peer_timeout: 120_000 * MILLISECOND,
        segments: 4_096,
    };
}
