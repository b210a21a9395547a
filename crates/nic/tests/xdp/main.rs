//! Tests of AF_XDP on one end of a veth, in two network namespaces that the test makes: frames in both directions,
//! the traffic that stays with the kernel, and the state after the process or the interface has gone.
//!
//! Ignored without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN.

mod changes;
mod frames;
mod lab;
mod refused;
mod restarts;
mod steering;

use restarts::child;

napkin_testing::main!(child);
