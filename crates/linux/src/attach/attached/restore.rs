//! Putting back what was set in one process.

use super::super::event::Event;
use super::super::moved::restore_moved;
use super::super::plan::Plan;
use super::super::restoration::Restoration;
use super::{Attached, MAX_DESCRIPTORS};
use crate::process_change::{ProcessChange, Restored, What};
use napkin_kernel::process::{Kind, Params, SocketOptions};

impl Attached {
    /// Puts everything back. What could not be is kept, and told.
    pub(in super::super) fn restore(
        &mut self,
        plan: &Plan,
        events: &mut Vec<Event>,
    ) -> Restoration {
        let mut total = Restoration::default();
        // Threads first: a program under no policy need not sit on one CPU.
        let moved = self.restore_moved(plan.epoll.unwrap_or_default(), events);
        for (place, change) in std::mem::take(&mut self.changes).into_iter().rev() {
            match change.restore_in(&self.process) {
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
        if let Some(options) = plan.socket {
            total.done += self.restore_inherited(options);
        }
        total
    }

    /// Puts back the epoll contexts that have moved since the last look; `None` if that fails.
    fn restore_moved(&mut self, params: Params, events: &mut Vec<Event>) -> Option<usize> {
        let own = self.set_already.iter().map(|(tid, fd)| {
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

    /// Puts back the sockets that have the options from a listener that was set: the kernel hands
    /// them on to each connection.
    fn restore_inherited(&self, options: SocketOptions) -> usize {
        let Ok(found) = self.process.descriptors(MAX_DESCRIPTORS) else { return 0 };
        let seen = SocketOptions { busy_poll_budget: None, ..options };
        let off = SocketOptions {
            busy_poll_budget: options.busy_poll_budget.map(|_| 0),
            ..SocketOptions::default()
        };
        let restored = found.sockets().filter(|socket| {
            let Kind::Socket(inode) = socket.kind else { return false };
            let Ok(Some(taken)) = self.process.take(socket) else { return false };
            !self.own_sockets.contains(&inode)
                && napkin_kernel::process::socket::is_internet(&taken)
                && SocketOptions::get(&taken) == Ok(seen)
                && off.set(&taken).is_ok()
        });
        restored.count()
    }
}
