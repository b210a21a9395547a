//! Errors of a load or a replay.

use std::io;
use std::net::IpAddr;

use napkin_client::ClientError;
use napkin_os::sched::SchedError;
use napkin_serve::ServeError;
use napkin_stack::SendError;
use thiserror::Error;

use crate::pcap::PcapFileError;

/// Why a load could not be generated, or ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An invalid value.
    #[error("{0}")]
    Usage(String),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] ServeError),
    /// No host answers for this address.
    #[error(
        "{ip} does not say where it is (ARP or neighbour discovery, {asked} times): is it up, and on the same wire?"
    )]
    NoNeighbour {
        /// The address that was looked for.
        ip: IpAddr,
        /// Number of requests sent, 100 ms apart.
        asked: u32,
    },
    /// The stack could not send a frame.
    #[error("the device takes no frame: {0}")]
    Send(#[from] SendError),
    /// The device has taken no frame for some time.
    #[error(
        "the device has taken no frame for 5 s, after {sent}{}: is anybody at its other side, and does it \
         take them?", why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    Stalled {
        /// Frames sent before.
        sent: u64,
        /// The device's reason, if any.
        why: Option<String>,
    },
    /// The capture file cannot be read.
    #[error(transparent)]
    File(#[from] PcapFileError),
    /// The capture file is invalid from some byte on.
    #[error("{why}; the {sent} frames before that were sent")]
    Ends {
        /// What is wrong with it.
        why: PcapFileError,
        /// Frames sent before.
        sent: u64,
    },
    /// The device has disappeared.
    #[error("the device has gone")]
    Gone,
    /// No local port can be bound.
    #[error("no port for the answers: {0}")]
    Port(#[from] napkin_stack::BindError),
    /// A connection could not be established, or was lost.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The thread cannot be pinned to the given CPU.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The terminating signals cannot be blocked.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// The operating system could not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A thread panicked, which is a bug in napkin.
    #[error("the thread that asks has panicked")]
    Panicked,
}

impl LoadError {
    /// Whether the error lies in what was asked for, not in a failure.
    pub fn is_usage(&self) -> bool {
        match self {
            LoadError::Usage(_) => true,
            LoadError::Device(error) => error.is_usage(),
            _ => false,
        }
    }
}
