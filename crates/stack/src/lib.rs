//! Ethernet to UDP and TCP, and the sockets at the end of it.
//!
//! Whoever owns a packet queue hands its frames to that queue's [`Input`]; ARP requests, neighbour
//! solicitations and echo requests are answered on the spot, UDP datagrams, TCP segments and whole frames go to the
//! [`Receiver`]s of sockets, and everything else is dropped under a name ([`Fate`]). Any number of queues deliver at
//! the same time: on the packet path nothing is locked and nothing allocated.
//!
//! The stack knows no threads, no clocks and no devices. Time is an argument; whoever waits for a
//! socket is told through [`Listener`]; frames leave through a
//! [`Transmitter`](napkin_nic::Transmitter). IPv4 and IPv6 are one code, on an Ethernet
//! in a VLAN or not. Not here: routes (routers' advertisements among them), fragments, IPv4 options, IPv6
//! extension headers, ICMP errors, groups of multicast (MLD, IGMP), duplicate address detection for
//! ourselves (that of others is answered). What of them is received is a named drop or a named error.
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
pub mod fate;
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
pub use fate::{Counters, Fate};
pub use input::Input;
pub use raw::RawSocket;
pub use receiver::{Listener, Receiver};
pub use socket::{Exchange, Message, Socket, UdpExchange};
pub use stack::{EPHEMERAL_PORTS, Stack};
pub use tables::RawFilter;
pub use tcp::{ByteStream, Flow, TcpApplication, TcpLimits, TcpStream, TcpWorker};
pub use udp::{Datagram, PAYLOAD_LIMIT, UdpSocket};
