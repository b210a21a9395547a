//! A policy in force on the device and on the program, for as long as a slice lasts: what `napkin apply
//! --for` and `napkin attach` do, with their journals.

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

/// A policy in force. Dropped, it is put back; [`Force::restore`] says whether that went well.
#[derive(Debug)]
pub(crate) struct Force {
    // The program first, then the device.
    attachment: Attachment<ProcessJournals>,
    device: Temporary,
    next: Instant,
    /// What could not be set in the program.
    failures: Vec<String>,
}

impl Force {
    /// Sets the device and then the program.
    pub(crate) fn put(policy: &Policy, service: &Service) -> Result<Force, CompareError> {
        let plan = Plan::of(policy)?;
        let store = Store::open()?;
        let mut attachment = Attachment::new(plan, ProcessJournals::new(store));
        attachment.raise_open_files();
        match attachment.add(service.pid) {
            Err(error) if error.is_gone() => return Err(ended(service)),
            added => added?,
        }
        let options = Options::default();
        let ifname = &service.device.ifname;
        let request = Request { policy, ifname, options: &options, force: false };
        let device = Temporary::here(&request)?;
        let mut force = Force { attachment, device, next: Instant::now(), failures: Vec::new() };
        force.tend(service)?;
        Ok(force)
    }

    /// Looks after the program, if that is due: what it has opened meanwhile is set, too.
    pub(crate) fn tend(&mut self, service: &Service) -> Result<(), CompareError> {
        if Instant::now() < self.next {
            return Ok(());
        }
        let look = self.attachment.look();
        self.next = Instant::now() + look.wait;
        for event in look.events {
            if matches!(event.kind, EventKind::Failed { .. }) {
                self.failures.push(event.to_string());
            }
        }
        if self.attachment.holds(service.pid) { Ok(()) } else { Err(ended(service)) }
    }

    /// How long until it is due again.
    pub(crate) fn due(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Takes what could not be set so far.
    pub(crate) fn failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// [`CompareError::Left`] if something is not as it was; the journal knows of it.
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

/// Watches for queues of this device that the program starves under a policy that suspends; it is told why not if that
/// cannot be.
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
    let tell = Box::new(move |event: &starvation::Event| {
        let _ = send.send(event.to_string());
    });
    let started = Store::open().map_err(|error| error.to_string()).and_then(|store| {
        starvation::Guard::start(options, &store, tell).map_err(|error| error.to_string())
    });
    match started {
        Ok(guard) => Some((guard, receive)),
        Err(why) => {
            report.note(format!("starved queues are not watched for: {why}"));
            None
        }
    }
}

pub(crate) fn ended(service: &Service) -> CompareError {
    CompareError::ServiceEnded { service: service.to_string() }
}
