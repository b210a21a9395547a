//! Packet queues: where frames come from and go to.
//!
//! Every device here is a [`PacketQueue`]: it can be polled for a bounded number of frames, its
//! interrupt can be masked, unmasked and waited for, and frames can be sent through it from any
//! thread.
//!
//! - the [`synthetic`] queue: an open-loop source inside the queue itself, with a ring that
//!   overflows and moderated interrupts, as a NIC has;
//! - the [`tap`] device: real frames to and from the operating system's network stack;
//! - [`vhost`]: virtio rings shared with another process, as the NIC of a virtual machine or as the driver of
//!   somebody's backend;
//! - the [`xdp`] device (AF_XDP): an interface's own queues, in memory that is shared with the kernel;
//! - a [`cable`](mod@cable): two ends in memory, flows spread over the queues of each by [`Toeplitz`];
//! - around any of them: [`faulty`] loses, changes, repeats and reorders frames, [`late`] keeps interrupts
//!   back, [`capture`] writes what passes to a pcap file.
//!
//! A device knows Ethernet and nothing above it, and does not know who polls it. (Only the TAP device
//! can give the kernel's end of its cable an IP address, so that nobody needs another tool for it; and the
//! hash reads addresses and ports, as a card's does.)
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod cable;
pub mod capture;
pub mod counters;
pub mod device;
pub mod faulty;
mod forward;
pub mod frame;
mod free;
pub mod late;
mod places;
mod sync;
pub mod synthetic;
pub mod tap;
pub mod toeplitz;
mod tun_ioctl;
pub mod vhost;
pub mod xdp;

pub use cable::{CableQueue, EndConfig, cable};
pub use counters::{QueueCounters, QueueCounts};
pub use device::{ETHERNET_HEADER, PacketQueue, SendError, Transmitter};
pub use frame::{FRAME_CAPACITY, Frame, Pool, Spent};
pub use toeplitz::Toeplitz;
