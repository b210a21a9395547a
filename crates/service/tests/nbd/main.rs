//! Dialogues with the remote disk, and properties of any dialogue.

mod client;
mod handshake;
mod property;
mod requests;
