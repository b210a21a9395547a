//! Load balancing: moves threads that wait, or that interrupts slow down, to other CPUs.
//!
//! A CPU about to go idle pulls; the tick pushes. The choice of the next thread, and of the CPU for a waking thread,
//! is in `sched/mod.rs`.

use crate::events::Event;
use crate::host::segment::Use;
use crate::machine::Machine;
use crate::sched::id::{Class, ThreadId};

impl Machine<'_> {
    /// Moves a thread that runs alone on a CPU much slowed by interrupts to a whole idle core, where the kernel
    /// accounts their time (active balance by `check_cpu_capacity`).
    pub(super) fn push_running(&mut self, cpu: usize) {
        if !self.config.kernel.irq_time {
            return;
        }
        let this = &mut self.cpus[cpu];
        let used = this.used();
        let taken = used[Use::Interrupt as usize] + used[Use::Softirq as usize];
        let slowed = this.run_queue.interrupt_load.update_is_excessive(self.now, taken);
        let (Some(curr), true, true) =
            (this.run_queue.curr, this.run_queue.queued.is_empty(), slowed)
        else {
            return;
        };
        if !self.may_move(curr) {
            return;
        }
        // Needed before `busy` is read below.
        self.catch_up_all();
        let affinity = self.threads[curr].affinity;
        let to = (usize::from(affinity.first)..=usize::from(affinity.last)).find(|&to| {
            let idle = |it: usize| self.cpus[it].available() && !self.cpus[it].busy();
            to != cpu && idle(to) && self.sibling(to).is_none_or(idle)
        });
        let this = &mut self.cpus[cpu];
        this.run_queue.active_balance_to = to;
        this.run_queue.need_resched |= to.is_some();
    }

    /// Moves a waiting thread to an idle CPU, if there is one.
    pub(super) fn push_waiting(&mut self, cpu: usize) {
        if self.cpus[cpu].run_queue.queued.is_empty() {
            return;
        }
        let Some(place) = self.cpus[cpu].run_queue.queued.iter().position(|id| self.may_move(*id))
        else {
            return;
        };
        let id = self.cpus[cpu].run_queue.queued[place];
        let affinity = self.threads[id].affinity;
        let idle = (usize::from(affinity.first)..=usize::from(affinity.last))
            .find(|&other| other != cpu && self.cpus[other].available());
        if let Some(idle) = idle {
            self.move_waiting(cpu, place, idle);
            let at = self.now + self.config.cost.ipi;
            self.events.schedule(at, Event::Reschedule { cpu: idle as u16 });
        }
    }

    fn may_move(&self, id: ThreadId) -> bool {
        let thread = &self.threads[id];
        !thread.affinity.is_single() && thread.class == Class::Fair
    }

    pub(super) fn move_waiting(&mut self, from: usize, place: usize, to: usize) {
        // Account its waiting time there first.
        self.catch_up(from);
        self.catch_up(to);
        self.account(from);
        self.account(to);
        let id = self.cpus[from].run_queue.queued.remove(place);
        let average = |cpu: usize| self.cpus[cpu].run_queue.average(&self.threads);
        let (old, new) = (average(from), average(to));
        let base = new.unwrap_or(self.cpus[to].run_queue.min_vruntime);
        let old = old.unwrap_or(self.cpus[from].run_queue.min_vruntime);
        let thread = &mut self.threads[id];
        let ahead = thread.vruntime() - old;
        thread.set_vruntime(base + ahead);
        thread.renew_deadline(self.config.kernel.slice);
        thread.cpu = to as u16;
        thread.migrations += 1;
        self.cpus[to].run_queue.queued.push(id);
        self.cpus[to].run_queue.need_resched = true;
    }

    /// Pulls a thread that waits elsewhere to a CPU about to go idle. Returns whether there was one.
    pub(super) fn pull(&mut self, cpu: usize) -> bool {
        let mut best: Option<(usize, usize)> = None;
        for (other, this) in self.cpus.iter().enumerate() {
            let waiting = this.run_queue.queued.len();
            // A thread waiting for an idle CPU to wake up is about to run.
            if other == cpu || waiting == 0 || this.run_queue.curr.is_none() {
                continue;
            }
            if best.is_none_or(|(most, _)| waiting > most) {
                let movable =
                    this.run_queue.queued.iter().any(|id| {
                        self.may_move(*id) && self.threads[*id].affinity.allows(cpu as u16)
                    });
                if movable {
                    best = Some((waiting, other));
                }
            }
        }
        let Some((_, from)) = best else { return false };
        let place = self.cpus[from]
            .run_queue
            .queued
            .iter()
            .position(|id| self.may_move(*id) && self.threads[*id].affinity.allows(cpu as u16));
        if let Some(place) = place {
            self.move_waiting(from, place, cpu);
            return true;
        }
        false
    }
}
