//! A TAP device, and the two addresses on its net.

use std::net::Ipv4Addr;

use napkin_nic::Pool;
use napkin_nic::tap::{Tap, TapConfig, TapError};
use napkin_testing::ignore;

/// Opens a device. Without the driver, or without the rights, the test is ignored.
pub fn open(config: &TapConfig) -> Tap {
    open_with(config, &Pool::new(2_048))
}

/// As [`open`], with received frames in buffers of this pool.
pub fn open_with(config: &TapConfig, pool: &Pool) -> Tap {
    match Tap::open(config, pool) {
        Ok(tap) => tap,
        Err(error @ (TapError::NoDriver | TapError::Permission { .. })) => ignore(error),
        Err(error) => panic!("{error}"),
    }
}

/// The kernel's address and ours, in the network for benchmarks (RFC 2544), in a part of it that is this process's
/// own.
pub fn addresses() -> (Ipv4Addr, Ipv4Addr) {
    let own = std::process::id().to_be_bytes();
    let base = own[3] & 0xfc;
    (Ipv4Addr::new(198, 19, own[2], base | 1), Ipv4Addr::new(198, 19, own[2], base | 2))
}
