//! Tells what a guard did, from a thread of its own: to find the program behind a starved instance
//! takes some tens of milliseconds, and meanwhile others may starve.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cause;
use super::event::{Event, EventKind};
use crate::apply::Suspension;

/// What is to be told.
#[derive(Debug)]
pub(super) enum Message {
    /// An instance starved, and its suspension was ended; who is behind it is still to be found.
    Ended { suspension: Suspension, silent: Duration, again: Option<Duration> },
    /// What is known.
    Known(Event),
}

/// Starts the thread; it ends when the sender is dropped and all is told.
pub(super) fn start(
    mut tell: Box<dyn FnMut(&Event) + Send>,
) -> io::Result<(Sender<Message>, JoinHandle<()>)> {
    let (sender, messages): (_, Receiver<Message>) = channel();
    let thread = std::thread::Builder::new().name("napkin-guard-tell".into()).spawn(move || {
        for message in messages {
            match message {
                Message::Known(event) => tell(&event),
                Message::Ended { suspension, silent, again } => {
                    let (causes, unseen) = cause::of(suspension.napi_id);
                    let timeout = suspension.timeout;
                    let kind = EventKind::Ended { timeout, silent, again, causes, unseen };
                    tell(&event(&suspension, kind));
                }
            }
        }
    })?;
    Ok((sender, thread))
}

/// An event of an instance whose suspension was taken away.
pub(super) fn event(suspension: &Suspension, kind: EventKind) -> Event {
    let Suspension { ifname, subject, napi_id, .. } = suspension;
    Event { ifname: ifname.clone(), subject: subject.clone(), napi_id: *napi_id, kind }
}
