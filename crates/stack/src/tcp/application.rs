//! What a service is told of its connections.

use napkin_policy::Ns;

use super::{ByteStream, Flow};

/// Who is told of connections.
pub trait TcpApplication {
    /// What it keeps of each connection.
    type State;

    /// A connection is open.
    fn opened(&mut self, flow: Flow) -> Self::State;

    /// Something has changed: bytes came, there is room to send, the peer has ended its side, or the
    /// connection is closed ([`ByteStream::is_closed`]), which is the last call for it.
    fn ready(&mut self, state: &mut Self::State, stream: &mut impl ByteStream, now: Ns);

    /// Names the connections for which something has ended that was begun earlier: they are ready.
    /// Called before connections are looked at.
    fn collect(&mut self, _look_at: &mut dyn FnMut(Flow)) {}

    /// Hands over what was begun since the last call. Called after connections were looked at.
    fn submit(&mut self) {}
}
