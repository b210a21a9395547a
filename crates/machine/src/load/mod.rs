//! What is on the other side of the link: the experiments' load generators, each with its own way of
//! sending and of measuring.

pub mod mutilate;
mod ping;
mod pktgen;
pub(crate) mod ssd;
pub(crate) mod tcp_rr;
mod xsk_peer;

pub use mutilate::{Clients, LogBins, Measured, Mutilate, Rate};
pub use ping::Peer;
pub use pktgen::{FRAME, Pktgen, check_rate};
pub use xsk_peer::XskPeer;
