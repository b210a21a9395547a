//! eBPF: an assembler for small programs, and the few commands of `bpf(2)` that load them, attach them, and share
//! maps with them. Used for counting (`napkin-kernel`) and for AF_XDP (`napkin-nic`).
//!
//! Nothing is pinned: programs, maps and attachments are descriptors, which the kernel frees with the last process
//! that holds them, however it ends.
//!
//! Out of scope: a compiler, BTF of the programs themselves, and object files.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod assemble;
mod call;
mod operand;
mod shared;

pub use call::{Hook, Link, Map, MapKind, Program, Refused, RunStats, SocketMap};
pub use shared::SharedWords;
