//! eBPF: an assembler for small programs, and the few commands of `bpf(2)` that load them, attach
//! them, and share maps with them. Counting (`napkin-kernel`) and AF_XDP (`napkin-nic`) use it.
//!
//! Nothing is pinned: programs, maps and attachments are descriptors, and go with the last process
//! that holds them, however it ends.
//!
//! Not here: a compiler, BTF of programs, or anything that reads an object file.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod assemble;
mod call;
mod operand;
mod shared;

pub use call::{Hook, Link, Map, MapKind, Program, Refused, RunStats, SocketMap};
pub use shared::SharedWords;
