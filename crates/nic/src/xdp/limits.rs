//! Limits of what an AF_XDP device is opened with.

/// The largest ring that is taken: beyond it a queue only adds delay.
pub const MAX_RING: u32 = 1 << 16;

/// The most ports that are told apart; each costs every other frame an instruction or two.
pub const MAX_PORTS: usize = 64;

/// The most addresses that are told apart: as many as a stack has.
pub const MAX_XDP_ADDRESSES: usize = 8;

/// The most queues of one device.
pub const MAX_XDP_QUEUES: usize = 256;
