//! The accounting of CPU time: segments begin, are paid for, and end.
//!
//! A segment that ends before the next event does not pass through the event queue.

use napkin_core::Ns;

use crate::host::contexts::{Body, StackedContext};
use crate::host::segment::{Segment, Use};
use crate::host::speed::STOPPED;
use crate::machine::Machine;

impl Machine<'_> {
    /// Accounts a CPU's time up to now.
    #[inline(always)]
    pub(crate) fn account(&mut self, cpu: usize) {
        if self.now != self.cpus[cpu].started {
            self.account_slow(cpu);
        }
    }

    #[inline(never)]
    fn account_slow(&mut self, cpu: usize) {
        let this = &mut self.cpus[cpu];
        let elapsed = self.now - this.started;
        let class = match &mut this.segment {
            Some(segment) => {
                let work =
                    if this.dilation == 1000 { elapsed } else { elapsed * 1000 / this.dilation };
                segment.left = segment.left.saturating_sub(work);
                segment.class
            }
            None => Use::Idle,
        };
        self.use_time(cpu, class);
    }

    /// Accounts a CPU's time up to now to `class`.
    #[inline]
    fn use_time(&mut self, cpu: usize, class: Use) {
        let from = self.cpus[cpu].account(self.now, class, &mut self.threads, &self.config.kernel);
        if self.trace.is_some() {
            self.trace_ran(cpu, class, from);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn trace_ran(&mut self, cpu: usize, class: Use, from: Ns) {
        if class == Use::Idle {
            return;
        }
        let this = &self.cpus[cpu];
        let what = match (this.contexts.top(), this.run_queue.curr()) {
            (Some(StackedContext { body: Body::Hard(_), .. }), _) => "irq",
            (Some(StackedContext { body: Body::Softirq(_), .. }), _) => "softirq",
            (None, Some(curr)) => self.threads[curr].name(),
            (None, None) => "idle",
        };
        let now = self.now;
        self.trace.emit(|trace| trace.ran(cpu as u16, what, class, from, now));
    }

    /// Brings a CPU's accounts up to date, for a reader.
    pub(crate) fn settle(&mut self, cpu: usize) {
        self.catch_up(cpu);
        self.account(cpu);
    }

    /// Begins a segment.
    pub(crate) fn begin(&mut self, cpu: usize, segment: Segment) {
        self.account(cpu);
        self.set_busy(cpu, true);
        let now = self.now;
        let this = &mut self.cpus[cpu];
        this.segment = Some(segment);
        this.started = now;
        // The segment of a stopped CPU begins again when the CPU gets the clock.
        this.ends_by = match this.dilation < STOPPED || segment.left == 0 {
            true => {
                self.events.schedule_segment_end(now + this.wall_time(segment.left), cpu as u16)
            }
            false => 0,
        };
    }

    /// Spends time. Returns `true` if no event comes before its end, so that it is over; else a segment has begun.
    pub(super) fn spend(&mut self, cpu: usize, left: Ns, class: Use, preemptible: bool) -> bool {
        self.spend_here(cpu, left, class, preemptible)
    }

    /// Pays for a part of a step. Returns `None` if the next part can follow at once: no event comes before the end,
    /// and no raised softirq may run first. Otherwise returns whether the time is over.
    #[inline(always)]
    pub(super) fn pay_part(&mut self, cpu: usize, time: Ns, class: Use) -> Option<bool> {
        let over = self.spend_here(cpu, time, class, false);
        (!over || self.cpus[cpu].raised).then_some(over)
    }

    // The rare cases are tail calls, so that no register has to be saved around them.
    #[inline(always)]
    fn spend_here(&mut self, cpu: usize, left: Ns, class: Use, preemptible: bool) -> bool {
        if left == 0 {
            return true;
        }
        let this = &mut self.cpus[cpu];
        if !this.full_speed || this.started != self.now {
            return self.spend_slow(cpu, left, class, preemptible);
        }
        let end = self.now.saturating_add(left);
        if end > self.end || end >= self.events.next_time() {
            this.segment = Some(Segment { left, class, preemptible });
            let Some(order) = self.events.schedule_soon(end, cpu as u16) else {
                return self.schedule_late_end(cpu, end);
            };
            this.ends_by = order;
            return false;
        }
        self.now = end;
        self.steps += 1;
        let from = this.account(end, class, &mut self.threads, &self.config.kernel);
        if self.trace.is_some() {
            return self.trace_spent(cpu, class, from);
        }
        true
    }

    /// Schedules the end of a segment that is not soon.
    #[inline(never)]
    fn schedule_late_end(&mut self, cpu: usize, end: Ns) -> bool {
        self.cpus[cpu].ends_by = self.events.schedule_segment_end(end, cpu as u16);
        false
    }

    /// Reports a finished segment to the trace.
    #[cold]
    #[inline(never)]
    fn trace_spent(&mut self, cpu: usize, class: Use, from: Ns) -> bool {
        self.trace_ran(cpu, class, from);
        true
    }

    /// [`Machine::spend_here`] for a CPU that was idle, is slowed down, or has time that is not accounted yet.
    #[inline(never)]
    fn spend_slow(&mut self, cpu: usize, left: Ns, class: Use, preemptible: bool) -> bool {
        self.set_busy(cpu, true);
        self.account(cpu);
        let this = &mut self.cpus[cpu];
        let end = self.now.saturating_add(this.wall_time(left));
        if end > self.end || end >= self.events.next_time() {
            this.segment = Some(Segment { left, class, preemptible });
            // The segment of a stopped CPU begins again when the CPU gets the clock.
            this.ends_by = match this.dilation < STOPPED {
                true => self.events.schedule_segment_end(end, cpu as u16),
                false => 0,
            };
            return false;
        }
        self.now = end;
        self.steps += 1;
        let from = this.account(end, class, &mut self.threads, &self.config.kernel);
        !self.trace.is_some() || self.trace_spent(cpu, class, from)
    }
}
