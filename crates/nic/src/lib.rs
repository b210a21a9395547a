//! Packet queues: devices that receive and send Ethernet frames.
//!
//! Every device here is a [`PacketQueue`]: it can be polled for a bounded number of frames, its interrupt can be
//! masked, unmasked and waited for, and any thread can send frames through it.
//!
//! - the [`synthetic`] queue: an open-loop traffic source inside the queue, with a finite ring and moderated
//!   interrupts, as a NIC has;
//! - the [`tap`] device: real frames to and from the operating system's network stack;
//! - [`vhost`]: virtio rings shared with another process, as the NIC of a virtual machine or as the driver of
//!   another program's backend;
//! - the [`xdp`] device (AF_XDP): an interface's own queues, in memory that is shared with the kernel;
//! - a [`cable`](mod@cable): two ends in memory, with flows spread over the queues of each by [`Toeplitz`];
//! - wrappers around any of them: [`faulty`] loses, changes, repeats and reorders frames, [`late`] delays
//!   interrupts, [`capture`] writes a pcap file.
//!
//! A device handles Ethernet and nothing above it, and is independent of what polls it. Two exceptions: the TAP
//! device can give the kernel's side an IP address, so that no other tool is needed for it; and the hash reads IP
//! addresses and ports, as a NIC's does.
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
mod free_list;
pub mod late;
mod mpsc_ring;
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
pub use frame::{FRAME_CAPACITY, Frame, Pool, ReturnedFrames};
pub use toeplitz::Toeplitz;
