//! TCP, one worker per thread, on the unmodified sockets of smoltcp.
//!
//! A [`TcpWorker`] holds one thread's TCP state, none of which is shared: the segments of one queue (or a share of
//! all queues' flows) and the connections that they belong to. Segments reach it through a
//! [`Receiver`](crate::Receiver), as datagrams reach a UDP socket, so it is waited for like any other socket. TCP
//! processing happens in the application's thread, in [`TcpWorker::step`].
//!
//! smoltcp scans a whole set of sockets for each segment, which is too slow beyond some hundred connections. Here
//! each connection has a set of its own: a keyed hash of addresses and ports finds it, one frame is presented at a
//! time, only changed connections are polled for output, and only the earliest deadline is waited for. Cache
//! effects aside, a request costs the same with ten thousand connections as with ten.
//!
//! The resources that a peer can take are bounded ([`TcpLimits`]): connections, half-open ones (of which the oldest
//! is evicted), and buffers. IP packets have up to 1500 bytes and DF set. There is no path MTU discovery, so peers
//! beyond our own networks are treated differently: over IPv6 they get packets of at most 1280 bytes, which every
//! path carries (RFC 8200, 5), and over IPv4 packets without DF. Not supported: urgent data, SYN cookies.

mod application;
mod connection;
mod counters;
mod deadlines;
mod error;
mod flow;
mod interface;
mod limits;
mod link;
mod stream;
mod worker;

pub use application::TcpApplication;
pub use counters::TcpCounters;
pub use error::ListenError;
pub use flow::Flow;
pub use limits::TcpLimits;
pub use stream::{ByteStream, TcpStream};
pub use worker::{Segments, TcpWorker};

pub(crate) use flow::flow_hash;
