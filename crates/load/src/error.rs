//! What keeps a load from being made.

use std::io;
use std::net::IpAddr;

use napkin_client::ClientError;
use napkin_os::sched::SchedError;
use napkin_serve::ServeError;
use napkin_stack::SendError;
use thiserror::Error;

use crate::pcap::PcapFileError;

/// Why there is no load, or no more of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A value that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] ServeError),
    /// Nobody has this address there.
    #[error(
        "{ip} does not say where it is (ARP or neighbour discovery, {asked} times): is it up, and on the same wire?"
    )]
    NoNeighbour {
        /// Who was looked for.
        ip: IpAddr,
        /// Questions that were sent, 100 ms apart.
        asked: u32,
    },
    /// The device takes no frames.
    #[error("the device takes no frame: {0}")]
    Send(#[from] SendError),
    /// The device takes no more frames, or none at all.
    #[error(
        "the device has taken no frame for 5 s, after {sent}{}: is anybody at its other side, and does it \
         take them?", why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    Stalled {
        /// Frames that were sent before.
        sent: u64,
        /// What the device says.
        why: Option<String>,
    },
    /// The file to be sent again.
    #[error(transparent)]
    File(#[from] PcapFileError),
    /// The file makes no sense from somewhere on.
    #[error("{why}; the {sent} frames before that were sent")]
    Ends {
        /// What is wrong with it.
        why: PcapFileError,
        /// Frames that were sent before.
        sent: u64,
    },
    /// The device has gone.
    #[error("the device has gone")]
    Gone,
    /// A port of ours.
    #[error("no port for the answers: {0}")]
    Port(#[from] napkin_stack::BindError),
    /// A connection was not made, or was lost.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The thread cannot be put on the CPU that was named.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The signals that end programs cannot be blocked.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// The operating system.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A defect in napkin.
    #[error("the thread that asks has panicked")]
    Panicked,
}

impl LoadError {
    /// Whether what was asked for makes no sense, rather than something having failed.
    pub fn is_usage(&self) -> bool {
        match self {
            LoadError::Usage(_) => true,
            LoadError::Device(error) => error.is_usage(),
            _ => false,
        }
    }
}
