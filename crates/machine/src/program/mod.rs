//! What runs on the modelled host, and on the other side.

mod generator;
mod memcached;
mod ping;
mod ssd;
mod stream;
mod tcp_rr;
mod udp_sink;
pub mod xsk_rr;

pub use generator::{Arrivals, Generator};
pub use memcached::Memcached;
pub use ping::Ping;
pub use ssd::Ssd;
pub(crate) use ssd::{HEADER, MORE, WRITES, more};
pub(crate) use stream::{BURST, packets};
pub use tcp_rr::TcpRr;
pub use udp_sink::UdpSink;
