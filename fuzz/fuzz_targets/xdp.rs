//! A kernel that writes anything into the rings of an AF_XDP queue: nothing outside of the pool is read, and every
//! frame and every buffer has a fate.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| napkin_nic::xdp::hostile::serve(data));
