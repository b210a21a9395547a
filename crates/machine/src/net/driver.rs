//! The driver's part in a poll: how much it reaps, when it asks to be polled again, and how it treats frames that
//! come between the last look at the ring and the unmask.
//!
//! Linux leaves all three to each driver. virtio_net reaps everything that was sent, asks for another poll only after
//! a full budget, and checks the ring again after the unmask. igb and mlx5 reap at most 128 completions and return
//! the full budget on reaching that. mlx5, like i40e, completes nevertheless on a CPU to which the queue's interrupt
//! does not go, so that the next interrupt moves the polling back. With e1000e, igb and mlx5 nothing checks the ring
//! after the unmask: the card remembers the frames and interrupts. mlx5 also asks for another poll when refilling the
//! ring fails for lack of memory; memory is not modelled.

use napkin_core::Id;

use crate::machine::Machine;

impl Machine<'_> {
    /// Reaps transmit completions. Returns their number, and whether the driver asks for another poll because it
    /// reached its limit.
    pub(crate) fn reap(&mut self, index: usize) -> (u16, bool) {
        let limit = self.config.nic.tx_budget;
        let waiting = &mut self.queues[index].completions;
        let done = if limit == 0 { *waiting } else { limit.min(*waiting) };
        *waiting -= done;
        (done, limit != 0 && done == limit)
    }

    /// Returns the number of frames that a poll on a CPU reports, which decides whether it completes. As in Linux a
    /// driver that asks for another poll reports its whole budget, and one that follows the interrupt's affinity
    /// reports at most one less than the budget on any other CPU.
    #[inline]
    pub(crate) fn reported_work(
        &self,
        cpu: usize,
        id: Id,
        budget: u16,
        rx: u16,
        again: bool,
    ) -> u16 {
        let elsewhere = || usize::from(self.host.instance(id).cpu().0) != cpu;
        if self.config.nic.follows_affinity && elsewhere() {
            // A budget of 1 cannot be reduced: reporting 0 would lose the frame's delivery.
            return rx.min(budget.saturating_sub(1).max(1));
        }
        if again { budget } else { rx }
    }

    /// Unmasks a queue's interrupt. Returns whether the driver then finds frames.
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

    /// Raises the interrupt for frames that came while it was masked, once its moderation is due: the time since they
    /// came counts.
    fn moderate_late(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        let from =
            if self.config.nic.coalesce_restarts { queue.arrived_at } else { queue.waiting_since };
        let due = from + queue.coalesce;
        let enough = queue.coalesce_frames > 0 && queue.coalesced >= queue.coalesce_frames;
        if due <= self.now || enough {
            self.interrupt_for_frames(index);
        } else {
            self.start_moderation(index, due);
        }
    }
}
