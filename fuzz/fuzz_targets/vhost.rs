//! A vhost-user peer that sends any messages and writes anything into the memory that it shares: it ends with
//! itself, and every frame has a fate.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| napkin_nic::vhost::hostile::serve(data));
