//! A synthetic packet queue: an open-loop traffic source inside the queue itself.
//!
//! There is no generator thread. A poll finds the frames that fell due by then, each with the time it was meant to
//! arrive; those that found the ring full are dropped and counted; and a timer descriptor stands for the interrupt,
//! moderated as `ethtool -C` would. A delivery policy is therefore loaded exactly as the configuration says,
//! however late its polls come, and the generator takes no CPU time from the policy under test beyond that of
//! writing the frames.
//!
//! The parts, one file each: when frames arrive ([`Arrivals`]), where they wait (the ring), when they interrupt
//! ([`Moderation`] and the alarm), how frames are transmitted (the wire), and the queue around them. Apart from the
//! descriptor, everything is arithmetic on the times that the caller passes.

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
