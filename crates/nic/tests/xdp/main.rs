//! AF_XDP on one end of a veth, in two network namespaces that the test makes: frames in and out, what
//! stays the kernel's, and what is left when the process or the interface goes.
//!
//! Ignored without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN.

mod changes;
mod frames;
mod lab;
mod lives;
mod refused;
mod steering;

use lives::child;

napkin_testing::main!(child);
