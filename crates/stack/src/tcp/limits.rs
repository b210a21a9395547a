//! How much the peers of one worker can make it hold, and for how long.

use napkin_policy::{MILLISECOND, Ns};

/// What the peers of one worker can make it hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpLimits {
    /// Connections, half-open ones and those in TIME-WAIT included. Beyond it the oldest in TIME-WAIT
    /// gives way; without one, to a SYN, the oldest half-open one that a peer has begun a second ago or
    /// earlier. Without either a SYN is dropped, and the peer asks again.
    pub connections: usize,
    /// Half-open connections that peers have begun. Beyond it the oldest gives way: a flood of SYNs pushes
    /// out itself, and whoever answers within a round trip gets through. As many may be begun here; beyond
    /// it no other is.
    pub half_open: usize,
    /// Bytes of a connection that the application has not received yet, of which at most 65 535 are used: windows are
    /// not scaled.
    pub receive_buffer: usize,
    /// Bytes of a connection that the peer has not acknowledged yet.
    pub send_buffer: usize,
    /// How long a handshake may take, in nanoseconds.
    pub handshake: Ns,
    /// How long a peer may say nothing before it is asked whether it is there, in nanoseconds.
    pub keep_alive: Ns,
    /// How long a peer may leave bytes, or that question, unanswered before the connection is given up,
    /// in nanoseconds; longer than [`keep_alive`](TcpLimits::keep_alive).
    pub peer_timeout: Ns,
    /// Segments that wait in the worker's receive buffer.
    pub segments: usize,
}

impl Default for TcpLimits {
    fn default() -> TcpLimits {
        TcpLimits::DEFAULT
    }
}

impl TcpLimits {
    /// Those of a server of many small requests.
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
