//! Enabling and disabling of instances, as a driver does when it goes up, goes down or is reconfigured.
//!
//! The context that disables sleeps between its checks and runs on no modelled CPU: its cost is not of interest, only
//! its effect on the owners of the instance.

use napkin_core::{Did, Disable, Enable, Id, Ns, Op, Pass};

use crate::disabling::Disabling;
use crate::events::Event;
use crate::machine::Machine;

impl Machine<'_> {
    /// Enables an instance, at no CPU cost.
    pub(crate) fn enable(&mut self, id: Id) {
        let Ok(mut pass) = Enable::new(self.host, id) else { return };
        let mut did = Did::Start;
        loop {
            did = match pass.next(self.now, did) {
                Op::Unmask(id) => Did::Unmasked(self.queues[usize::from(id.0)].unmask()),
                Op::Mask(id) => {
                    self.queues[usize::from(id.0)].mask();
                    Did::Ok
                }
                Op::Done => return,
                // Frames have arrived meanwhile: schedule a poll.
                op => {
                    self.raise_from_outside(Some(op));
                    Did::Ok
                }
            };
        }
    }

    /// Begins to disable an instance, which is enabled again `duration` nanoseconds after that completes. Does nothing
    /// if the instance is already disabled.
    pub(crate) fn disable(&mut self, id: Id, duration: Ns) {
        let polls = self.host.instance(id).counts().all_polls();
        if let Ok(pass) = Disable::new(self.host, id) {
            self.disabling[usize::from(id.0)] = Some(Disabling::new(pass, polls, duration));
            self.control(id);
        }
    }

    /// Handles [`Event::Control`]: continues a disable in progress, or enables the instance once its disabled time is
    /// over.
    pub(crate) fn control(&mut self, id: Id) {
        let index = usize::from(id.0);
        let Some(mut disabling) = self.disabling[index].take() else { return self.enable(id) };
        let mut did = Did::Start;
        loop {
            match disabling.next(self.now, did) {
                Op::Mask(id) => self.queues[usize::from(id.0)].mask(),
                Op::Sleep(until) => {
                    self.events.schedule(until, Event::Control { queue: id.0 });
                    self.disabling[index] = Some(disabling);
                    return;
                }
                Op::Done => {
                    let until = self.now + disabling.duration();
                    self.events.schedule(until, Event::Control { queue: id.0 });
                    return;
                }
                op => debug_assert!(false, "a disable has no step {op:?}"),
            }
            did = Did::Ok;
        }
    }
}
