//! Limits of an AF_XDP device's configuration.

/// The largest ring: beyond it a queue only adds delay.
pub const MAX_RING: u32 = 1 << 16;

/// The most ports. Each costs all other frames an instruction or two.
pub const MAX_PORTS: usize = 64;

/// The most addresses: as many as an IP stack here has.
pub const MAX_XDP_ADDRESSES: usize = 8;

/// The most queues of one device.
pub const MAX_XDP_QUEUES: usize = 256;
