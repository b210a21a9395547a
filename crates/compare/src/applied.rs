//! A policy in force on the device and on the program for one slice, as `napkin apply --for` and `napkin attach` do
//! it, with their journals.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use napkin_linux::apply::{Options, Request, Temporary};
use napkin_linux::attach::{Attachment, EventKind, Plan};
use napkin_linux::guard as starvation;
use napkin_linux::journal::{ProcessJournals, Store};
use napkin_policy::Policy;

use crate::error::CompareError;
use crate::report::Report;
use crate::service::Service;

/// A policy in force. Dropping it puts everything back; [`AppliedPolicy::restore`] also reports failures.
#[derive(Debug)]
pub(crate) struct AppliedPolicy {
    // Dropped in this order: the program first, then the device.
    attachment: Attachment<ProcessJournals>,
    device: Temporary,
    next: Instant,
    /// Failures to set the program.
    failures: Vec<String>,
}

impl AppliedPolicy {
    /// Applies the policy to the program and the device.
    pub(crate) fn apply(policy: &Policy, service: &Service) -> Result<AppliedPolicy, CompareError> {
        let plan = Plan::of(policy)?;
        let store = Store::open()?;
        let mut attachment = Attachment::new(plan, ProcessJournals::new(store));
        attachment.raise_open_files();
        match attachment.add(service.pid) {
            Err(error) if error.is_gone() => return Err(service_ended(service)),
            added => added?,
        }
        let options = Options::default();
        let ifname = &service.device.ifname;
        let request = Request { policy, ifname, options: &options, force: false };
        let device = Temporary::here(&request)?;
        let mut applied =
            AppliedPolicy { attachment, device, next: Instant::now(), failures: Vec::new() };
        applied.refresh(service)?;
        Ok(applied)
    }

    /// Sets what the program has opened since the last call, if that is due.
    pub(crate) fn refresh(&mut self, service: &Service) -> Result<(), CompareError> {
        if Instant::now() < self.next {
            return Ok(());
        }
        let look = self.attachment.scan();
        self.next = Instant::now() + look.wait;
        for event in look.events {
            if matches!(event.kind, EventKind::Failed { .. }) {
                self.failures.push(event.to_string());
            }
        }
        if self.attachment.contains(service.pid) { Ok(()) } else { Err(service_ended(service)) }
    }

    /// Time until [`refresh`](Self::refresh) is due again.
    pub(crate) fn due(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Removes and returns the failures so far.
    pub(crate) fn failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// [`CompareError::Left`] if something could not be put back; the journal keeps it.
    pub(crate) fn restore(mut self) -> Result<(), CompareError> {
        let (program, events) = self.attachment.restore();
        let device = self.device.restore();
        let mut left: Vec<String> = Vec::new();
        if program.failed > 0 {
            let failed = events.iter().filter(|it| matches!(it.kind, EventKind::Failed { .. }));
            left.extend(failed.map(ToString::to_string));
        }
        match device {
            Ok(restored) if restored.is_complete() => {}
            Ok(restored) => left.extend(restored.words()),
            Err(error) => left.push(error.to_string()),
        }
        if left.is_empty() { Ok(()) } else { Err(CompareError::Left { why: left.join("; ") }) }
    }
}

/// Starts to watch for queues of this device that the program starves under a suspending policy. If that fails, the
/// report gets a note.
pub(crate) fn watch_starvation(
    ifindex: u32,
    report: &mut Report,
) -> Option<(starvation::Guard, Receiver<String>)> {
    let (send, receive) = channel();
    let options = starvation::Options {
        only: Some(ifindex),
        held: Some(ifindex),
        again: starvation::Again::Never,
    };
    let on_event = Box::new(move |event: &starvation::Event| {
        let _ = send.send(event.to_string());
    });
    let started = Store::open().map_err(|error| error.to_string()).and_then(|store| {
        starvation::Guard::start(options, &store, on_event).map_err(|error| error.to_string())
    });
    match started {
        Ok(guard) => Some((guard, receive)),
        Err(why) => {
            report.note(format!("starved queues are not watched for: {why}"));
            None
        }
    }
}

pub(crate) fn service_ended(service: &Service) -> CompareError {
    CompareError::ServiceEnded { service: service.to_string() }
}
