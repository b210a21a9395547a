//! A synthetic packet queue: an open-loop source inside the queue itself.
//!
//! No thread generates anything. Whoever polls the queue finds the frames that fell due by then, each
//! with the time it was meant to arrive; those that found the ring full are dropped and counted; and
//! a timer descriptor stands for the interrupt, moderated as `ethtool -C` would. So a delivery policy
//! is loaded exactly as its configuration says, however late it comes, and the generator takes no CPU
//! from the one under test beyond that of writing the frames.
//!
//! One file a part: when frames arrive ([`Arrivals`]), where they wait (the ring), when they
//! interrupt ([`Moderation`] and the alarm), how frames leave (the wire), and the queue around them.
//! Without the descriptor all of it is arithmetic on the times that the caller names.

mod alarm;
mod arrivals;
mod config;
mod control;
mod error;
mod flood;
mod moderation;
#[cfg(test)]
mod properties;
mod queue;
mod ring;
mod template;
mod wire;

pub use arrivals::Arrivals;
pub use config::{FlowChoice, Flows, SyntheticConfig};
pub use control::SourceControl;
pub use error::{ConfigError, MAX_RATE, MAX_RING, MIN_RATE};
pub use flood::FLOOD_FALLBACK;
pub use moderation::Moderation;
pub use queue::SyntheticQueue;
pub use template::Template;
pub use wire::Observer;
