//! What runs on the modelled host, and on the other side.

mod udp_sink;

pub use udp_sink::UdpSink;
