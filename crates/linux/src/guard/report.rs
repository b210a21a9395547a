//! Reports the actions of a guard from a thread of its own: finding the program behind a starved instance takes
//! some tens of milliseconds, in which other instances may starve.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cause;
use super::event::{Event, EventKind};
use crate::apply::Suspension;

/// A report to make.
#[derive(Debug)]
pub(super) enum Message {
    /// An instance starved, and its suspension was ended; the program behind it is still to be found.
    Ended { suspension: Suspension, silent: Duration, again: Option<Duration> },
    /// A complete event.
    Known(Event),
}

/// Starts the thread, which ends once the sender is dropped and all reports are made.
pub(super) fn start(
    mut report: Box<dyn FnMut(&Event) + Send>,
) -> io::Result<(Sender<Message>, JoinHandle<()>)> {
    let (sender, messages): (_, Receiver<Message>) = channel();
    let thread = std::thread::Builder::new().name("napkin-guard-tell".into()).spawn(move || {
        for message in messages {
            match message {
                Message::Known(event) => report(&event),
                Message::Ended { suspension, silent, again } => {
                    let (causes, unseen) = cause::of(suspension.napi_id);
                    let timeout = suspension.timeout;
                    let kind = EventKind::Ended { timeout, silent, again, causes, unseen };
                    report(&event(&suspension, kind));
                }
            }
        }
    })?;
    Ok((sender, thread))
}

/// Builds an event for an instance whose suspension was ended.
pub(super) fn event(suspension: &Suspension, kind: EventKind) -> Event {
    let Suspension { ifname, subject, napi_id, .. } = suspension;
    Event { ifname: ifname.clone(), subject: subject.clone(), napi_id: *napi_id, kind }
}
