//! A deterministic model of packet delivery on a host, in virtual time.
#![forbid(unsafe_code)]

pub mod profile;
