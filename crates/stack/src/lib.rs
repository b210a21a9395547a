//! A UDP/TCP stack over Ethernet, with its sockets.
//!
//! The owner of a packet queue hands received frames to that queue's [`Input`]. ARP requests, neighbour
//! solicitations and echo requests are answered at once; UDP datagrams, TCP segments and whole frames go to the
//! [`Receiver`]s of sockets; every other frame is dropped and counted under a named reason ([`FrameOutcome`]). Any number
//! of queues deliver concurrently: the packet path takes no lock and allocates nothing.
//!
//! The stack has no threads, no clock and no devices. Time is an argument; a waiter on a socket is notified through
//! [`Listener`]; frames leave through a [`Transmitter`](napkin_nic::Transmitter). IPv4 and IPv6 share one code
//! path, with or without a VLAN tag. Not supported: routes (including router advertisements), fragments, IPv4
//! options, IPv6 extension headers, ICMP errors, multicast group membership (MLD, IGMP), and duplicate address
//! detection for our own addresses (that of other hosts is answered). Receiving any of these yields a named drop or
//! a named error.
//!
//! ```
//! use std::sync::Arc;
//! use napkin_nic::{Pool, SendError, Transmitter};
//! use napkin_stack::{Address, FrameBuilder, Input, Stack};
//!
//! struct Nowhere;
//! impl Transmitter for Nowhere {
//!     fn send(&self, _frame: &[u8], _now: u64) -> Result<(), SendError> { Ok(()) }
//! }
//!
//! let us = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
//! let peer = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
//! let stack = Stack::new(us);
//! let socket = stack.bind_udp(7, 128)?;
//! let mut input = Input::new(Arc::clone(&stack), 513, Arc::new(Nowhere));
//!
//! let mut frame = Pool::new(1).take().unwrap();
//! let length = FrameBuilder::new(peer, us).udp(frame.buffer(), 4000, 7, b"hello")?;
//! frame.set_len(length);
//! input.deliver(&mut vec![frame], 0);
//!
//! let datagram = socket.try_recv().unwrap();
//! assert_eq!(datagram.payload(), b"hello");
//! assert_eq!(datagram.source(), (peer.ip, 4000).into());
//! socket.echo(datagram, 0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod address;
pub mod builder;
mod emit;
pub mod error;
pub mod frame_outcome;
pub mod input;
pub mod neighbours;
mod queues;
pub mod raw;
pub mod receiver;
pub mod socket;
pub mod stack;
pub mod tables;
pub mod tcp;
pub mod udp;
pub mod wire;

pub use address::{Address, AddressError, Addresses};
pub use builder::FrameBuilder;
pub use error::{BindError, SendError};
pub use frame_outcome::{Counters, FrameOutcome};
pub use input::Input;
pub use raw::RawSocket;
pub use receiver::{Listener, Receiver};
pub use socket::{Exchange, Message, Socket, UdpExchange};
pub use stack::{EPHEMERAL_PORTS, Stack};
pub use tables::RawFilter;
pub use tcp::{ByteStream, Flow, TcpApplication, TcpLimits, TcpStream, TcpWorker};
pub use udp::{Datagram, PAYLOAD_LIMIT, UdpSocket};
