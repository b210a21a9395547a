//! The interface between a TCP worker and a service.

use napkin_policy::Ns;

use super::{ByteStream, Flow};

/// A service's callbacks for its connections.
pub trait TcpApplication {
    /// The service's own state of a connection.
    type State;

    /// A connection has been established.
    fn opened(&mut self, flow: Flow) -> Self::State;

    /// Something has changed: bytes arrived, there is room to send, the peer has closed its side, or the connection
    /// is closed ([`ByteStream::is_closed`]). After the latter there are no more calls for the connection.
    fn ready(&mut self, state: &mut Self::State, stream: &mut impl ByteStream, now: Ns);

    /// Calls `_look_at` for each connection on which an operation that was submitted earlier has completed;
    /// [`ready`](Self::ready) is then called for it. Called before connections are processed.
    fn collect(&mut self, _look_at: &mut dyn FnMut(Flow)) {}

    /// Submits the operations that were queued since the last call. Called after connections were processed.
    fn submit(&mut self) {}
}
