//! What a CPU's time goes into: pieces of work that begin, are paid for, and end.
//!
//! A piece that ends before anything else happens on the host is not put into the queue of events.

use napkin_core::Ns;

use crate::host::contexts::{Body, Frame};
use crate::host::segment::{Segment, Use};
use crate::host::speed::STOPPED;
use crate::machine::Machine;

impl Machine<'_> {
    /// Accounts a CPU's time up to now.
    #[inline(always)]
    pub(crate) fn account(&mut self, cpu: usize) {
        if self.now != self.cpus[cpu].started {
            self.account_anew(cpu);
        }
    }

    #[inline(never)]
    fn account_anew(&mut self, cpu: usize) {
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

    /// A CPU's time up to now has gone into that.
    #[inline]
    fn use_time(&mut self, cpu: usize, class: Use) {
        let from = self.cpus[cpu].uses(self.now, class, &mut self.threads, &self.config.kernel);
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
        let what = match (this.frames.top(), this.run_queue.curr()) {
            (Some(Frame { body: Body::Hard(_), .. }), _) => "irq",
            (Some(Frame { body: Body::Softirq(_), .. }), _) => "softirq",
            (None, Some(curr)) => self.threads[curr].name(),
            (None, None) => "idle",
        };
        let now = self.now;
        self.trace.tell(|trace| trace.ran(cpu as u16, what, class, from, now));
    }

    /// Brings a CPU's accounts up to date, for a reader.
    pub(crate) fn settle(&mut self, cpu: usize) {
        self.catch_up(cpu);
        self.account(cpu);
    }

    /// Begins a piece of work.
    pub(crate) fn begin(&mut self, cpu: usize, segment: Segment) {
        self.account(cpu);
        self.set_busy(cpu, true);
        let now = self.now;
        let this = &mut self.cpus[cpu];
        this.segment = Some(segment);
        this.started = now;
        // One that is stopped begins anew when it gets on again.
        this.ends_by = match this.dilation < STOPPED || segment.left == 0 {
            true => self.events.segment_ends(now + this.wall(segment.left), cpu as u16),
            false => 0,
        };
    }

    /// A piece of work that nothing comes into is over at once: `true`. Otherwise it has begun.
    pub(super) fn spend(&mut self, cpu: usize, left: Ns, class: Use, preemptible: bool) -> bool {
        self.spend_here(cpu, left, class, preemptible)
    }

    /// Pays for a part of a step: `None` if the next follows at once, for nothing comes before its end and
    /// no softirq that was raised may run before it; else whether its time is over.
    #[inline(always)]
    pub(super) fn pays(&mut self, cpu: usize, time: Ns, class: Use) -> Option<bool> {
        let over = self.spend_here(cpu, time, class, false);
        (!over || self.cpus[cpu].raised).then_some(over)
    }

    // What is rare ends in a call, so that nothing has to be kept over one.
    #[inline(always)]
    fn spend_here(&mut self, cpu: usize, left: Ns, class: Use, preemptible: bool) -> bool {
        if left == 0 {
            return true;
        }
        let this = &mut self.cpus[cpu];
        if !this.full_speed || this.started != self.now {
            return self.spend_anew(cpu, left, class, preemptible);
        }
        let end = self.now.saturating_add(left);
        if end > self.end || end >= self.events.next_time() {
            this.segment = Some(Segment { left, class, preemptible });
            let Some(order) = self.events.ends_soon(end, cpu as u16) else {
                return self.ends_late(cpu, end);
            };
            this.ends_by = order;
            return false;
        }
        self.now = end;
        self.steps += 1;
        let from = this.uses(end, class, &mut self.threads, &self.config.kernel);
        if self.trace.is_some() {
            return self.spent(cpu, class, from);
        }
        true
    }

    /// The piece of work that a CPU has begun ends then, which is not soon.
    #[inline(never)]
    fn ends_late(&mut self, cpu: usize, end: Ns) -> bool {
        self.cpus[cpu].ends_by = self.events.segment_ends(end, cpu as u16);
        false
    }

    /// A piece of work is over, and somebody watches.
    #[cold]
    #[inline(never)]
    fn spent(&mut self, cpu: usize, class: Use, from: Ns) -> bool {
        self.trace_ran(cpu, class, from);
        true
    }

    /// The same on a CPU that has been idle or is slowed down, or whose time up to now went into something
    /// else.
    #[inline(never)]
    fn spend_anew(&mut self, cpu: usize, left: Ns, class: Use, preemptible: bool) -> bool {
        self.set_busy(cpu, true);
        self.account(cpu);
        let this = &mut self.cpus[cpu];
        let end = self.now.saturating_add(this.wall(left));
        if end > self.end || end >= self.events.next_time() {
            this.segment = Some(Segment { left, class, preemptible });
            // One that is stopped begins anew when it gets on again.
            this.ends_by = match this.dilation < STOPPED {
                true => self.events.segment_ends(end, cpu as u16),
                false => 0,
            };
            return false;
        }
        self.now = end;
        self.steps += 1;
        let from = this.uses(end, class, &mut self.threads, &self.config.kernel);
        !self.trace.is_some() || self.spent(cpu, class, from)
    }
}
