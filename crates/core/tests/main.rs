//! The core's tests, except the models of `loom` and the race switches, which are test binaries of their own. One
//! binary links once, and compiles the world once.
#![cfg(not(loom))]

mod abandoned;
mod contract;
mod dialogue;
mod dispatch;
mod hold;
mod idle;
mod mode;
mod model;
mod order;
mod ownership;
mod property;
mod reference;
mod release;
mod session;
mod std_world;
mod suspension;
mod wait;
mod world;
