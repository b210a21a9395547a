//! What runs on the modelled host, and on the other side.

mod generator;
mod memcached;
mod ping;
mod ssd;
mod tcp_rr;
mod udp_sink;
pub mod xsk_rr;

pub use generator::{Arrivals, Generator};
pub use memcached::Memcached;
pub use ping::Ping;
pub use ssd::Ssd;
pub(crate) use ssd::{HEADER, MORE, WRITES, more, packets};
pub(crate) use tcp_rr::BURST;
pub use tcp_rr::TcpRr;
pub use udp_sink::UdpSink;
