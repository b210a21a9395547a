//! The driver's side of a poll: what it reaps, when it asks to be polled again, and what becomes of
//! frames that come between its last look at the ring and the unmasking.
//!
//! Linux leaves all three to each driver. virtio_net reaps whatever was sent, asks for another poll
//! only after a full budget, and looks at the ring once more after the unmasking. igb and mlx5 reap
//! 128 completions at most and return their budget if there were so many; mlx5 (as i40e) completes
//! all the same on a CPU to which the queue's interrupt does not go, so that the next interrupt takes
//! the polling back. With e1000e, igb and mlx5 nobody looks after the unmasking: the card remembers,
//! and interrupts. When a refill of the ring fails for want of memory mlx5 asks again, too; memory is
//! no part of the machine.

use napkin_core::Id;

use crate::machine::Machine;

impl Machine<'_> {
    /// A poll reaps finished transmissions: how many, and whether it asks for another poll for the
    /// rest.
    pub(crate) fn reap(&mut self, index: usize) -> (u16, bool) {
        let limit = self.config.nic.tx_budget;
        let waiting = &mut self.queues[index].completions;
        let done = if limit == 0 { *waiting } else { limit.min(*waiting) };
        *waiting -= done;
        (done, limit != 0 && done == limit)
    }

    /// The frames that a poll on a CPU says it has taken, which decide whether it completes. As in Linux
    /// a driver that asks for another poll says its whole budget, and one that will not be polled on
    /// this CPU one less than it.
    #[inline]
    pub(crate) fn says(&self, cpu: usize, id: Id, budget: u16, rx: u16, again: bool) -> u16 {
        let elsewhere = || usize::from(self.host.instance(id).cpu().0) != cpu;
        if self.config.nic.follows_affinity && elsewhere() {
            // Of a budget of one nothing can be taken back: the frame could not be delivered.
            return rx.min(budget.saturating_sub(1).max(1));
        }
        if again { budget } else { rx }
    }

    /// Allows a queue's interrupt: whether the driver then finds frames.
    pub(crate) fn unmask(&mut self, index: usize) -> bool {
        let waits = self.queues[index].unmask();
        self.adapt(index);
        self.trace.masked(index, self.now, false);
        let interrupts = waits && self.config.nic.late_frames_interrupt;
        if interrupts {
            self.moderate_late(index);
        }
        if self.config.nic.tx_interrupts && self.queues[index].completions > 0 {
            self.moderate_completions(index);
        }
        waits && !interrupts
    }

    /// Frames that came while the interrupt was forbidden get theirs, when it is due: the time that
    /// has passed counts.
    fn moderate_late(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        let from =
            if self.config.nic.coalesce_restarts { queue.arrived_at } else { queue.waiting_since };
        let due = from + queue.coalesce;
        let enough = queue.coalesce_frames > 0 && queue.held >= queue.coalesce_frames;
        if due <= self.now || enough {
            self.interrupt_for_frames(index);
        } else {
            self.hold_back(index, due);
        }
    }
}
