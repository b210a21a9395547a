//! Instances that are enabled and disabled, as a driver does when it goes up, down or is set up anew.
//!
//! Who disables sleeps between two looks, on no modelled CPU: what it costs is not of interest, what
//! it does to those who poll is.

use napkin_core::{Did, Disable, Enable, Id, Ns, Op, Pass};

use crate::disabling::Disabling;
use crate::events::Event;
use crate::machine::Machine;

impl Machine<'_> {
    /// Enables an instance; costs nothing.
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
                // Frames have waited: somebody is to poll them.
                op => {
                    self.raise_from_outside(Some(op));
                    Did::Ok
                }
            };
        }
    }

    /// Begins to disable an instance, for so long; nothing happens if it is disabled.
    pub(crate) fn disable(&mut self, id: Id, stays: Ns) {
        let polls = self.host.instance(id).counts().all_polls();
        if let Ok(pass) = Disable::new(self.host, id) {
            self.disabling[usize::from(id.0)] = Some(Disabling::new(pass, polls, stays));
            self.control(id);
        }
    }

    /// Who disables an instance looks again; or it has been disabled for long enough.
    pub(crate) fn control(&mut self, id: Id) {
        let index = usize::from(id.0);
        let Some(mut disabling) = self.disabling[index].take() else { return self.enable(id) };
        let mut did = Did::Start;
        loop {
            match disabling.next(self.now, did) {
                Op::Mask(id) => self.queues[usize::from(id.0)].mask(),
                Op::Sleep(until) => {
                    self.events.at(until, Event::Control { queue: id.0 });
                    self.disabling[index] = Some(disabling);
                    return;
                }
                Op::Done => {
                    let until = self.now + disabling.stays();
                    self.events.at(until, Event::Control { queue: id.0 });
                    return;
                }
                op => debug_assert!(false, "a disable has no step {op:?}"),
            }
            did = Did::Ok;
        }
    }
}
