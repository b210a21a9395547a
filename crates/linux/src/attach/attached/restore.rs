//! Restores the original settings of one process.

use super::super::event::Event;
use super::super::inherited::{off, restore_inherited};
use super::super::inherited_cpus::known;
use super::super::moved::restore_moved;
use super::super::plan::Plan;
use super::super::restoration::Restoration;
use super::{Attached, MAX_DESCRIPTORS, Shared};
use crate::process_change::{ProcessChange, Restored, What};
use napkin_kernel::process::Params;

impl Attached {
    /// Puts everything back. What cannot be put back is kept in `changes`, and reported.
    pub(in super::super) fn restore(
        &mut self,
        plan: &Plan,
        shared: &Shared,
        events: &mut Vec<Event>,
    ) -> Restoration {
        let mut total = Restoration::default();
        // Moved contexts are found while `changes` still lists what was set. The loop below goes in reverse
        // order of kind, threads first: a program under no policy need not stay on one CPU.
        let moved = self.restore_moved(plan.epoll.unwrap_or_default(), events);
        let sockets = self.changes.values().filter_map(|change| match change.what {
            What::Socket { old, new, .. } => Some((old, new)),
            _ => None,
        });
        let mut sockets: Vec<_> = sockets.collect();
        let threads = known(self.changes.values());
        for (place, change) in std::mem::take(&mut self.changes).into_iter().rev() {
            match change.restore_in(&self.process, false) {
                Ok(Restored::Done) => total.done += 1,
                Ok(Restored::Gone) => total.gone += 1,
                Ok(Restored::Changed { now }) => {
                    total.changed += 1;
                    let why = format!("{} was changed to {now} meanwhile: left so", change.what);
                    self.failed(why, events);
                }
                Err(error) => {
                    total.failed += 1;
                    self.changes.insert(place, change);
                    self.failed(error.to_string(), events);
                }
            }
        }
        match moved {
            Some(back) => {
                total.done += back;
                total.gone = total.gone.saturating_sub(back);
            }
            None => total.failed += 1,
        }
        // After the recorded threads, from which these inherited their CPUs.
        match shared.pins.restore(&self.process, &threads) {
            Ok(back) => total.done += back.len(),
            Err(error) if error.is_gone() => {}
            Err(error) => {
                total.failed += 1;
                self.failed(error.to_string(), events);
            }
        }
        // If this attachment set no socket, sockets with the options have them from the program, or from
        // another napkin.
        if let Some(options) = plan.socket.filter(|_| !shared.sockets.is_empty()) {
            if sockets.is_empty() {
                // The listener belongs to another process, or was closed.
                sockets.push((off(options), options));
            }
            let own = &self.preset_sockets;
            match restore_inherited(&self.process, &sockets, own, MAX_DESCRIPTORS) {
                Ok((back, failed)) => {
                    total.done += back.len();
                    if let Some(error) = failed {
                        total.failed += 1;
                        self.failed(error.to_string(), events);
                    }
                }
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    total.failed += 1;
                    self.failed(error.to_string(), events);
                }
            }
        }
        total
    }

    /// Puts back the epoll contexts that have moved since the last scan; `None` if that fails.
    fn restore_moved(&mut self, params: Params, events: &mut Vec<Event>) -> Option<usize> {
        let own = self.preset_epolls.iter().map(|(tid, fd)| {
            self.change(What::Epoll { tid: *tid, fd: *fd, old: params, new: params })
        });
        let own: Vec<ProcessChange> = own.collect();
        let known: Vec<&ProcessChange> = self.changes.values().chain(&own).collect();
        match restore_moved(&self.process, &known, MAX_DESCRIPTORS) {
            Ok(back) => Some(back.len()),
            Err(error) if error.is_gone() => Some(0),
            Err(error) => {
                self.failed(error.to_string(), events);
                None
            }
        }
    }
}
