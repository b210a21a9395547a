//! TCP, a thread at a time, on smoltcp's socket unmodified.
//!
//! A [`TcpWorker`] is one thread's TCP: the segments of one queue (or a share of all queues' flows), the
//! connections that they belong to, and nothing that another thread touches. Segments reach it through
//! a [`Receiver`](crate::Receiver), as datagrams reach a UDP socket, so whoever waits for it waits as
//! for any other socket; TCP itself runs in the application's thread, in [`TcpWorker::step`].
//!
//! smoltcp looks through a whole set of sockets for each segment, which ends at some hundred
//! connections. Here each connection has a set of its own: a keyed hash of the addresses and ports
//! finds it, one frame is presented at a time, only connections that changed are asked for what they
//! send, and only the earliest deadline is waited for. So a request costs the same with ten
//! connections as with ten thousand, but for the caches.
//!
//! What a peer can make it hold is bounded ([`TcpLimits`]): connections, half-open ones (of which the
//! oldest gives way), and buffers. Packets are as long as the link's, 1500 bytes, and are sent with DF,
//! but for peers beyond our own networks, as there is no path MTU discovery: those of IPv6 get the 1280
//! bytes that every path carries (RFC 8200, 5), those of IPv4 packets without DF. Not here: urgent
//! data, SYN cookies.

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
