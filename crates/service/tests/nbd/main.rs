//! The remote disk's dialogues, and what holds of any.

mod client;
mod handshake;
mod property;
mod requests;
