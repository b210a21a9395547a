//! The scheduler: the choice of the next thread, preemption, and the choice of a CPU for a waking thread.
//!
//! There are two fair classes, of which a profile names one: CFS (least virtual time first; sleepers are credited
//! half a latency; a waking thread preempts when it is a granularity behind) and EEVDF (the eligible thread with the
//! earliest virtual deadline; a waking thread that is eligible preempts, unless the running thread wakes it
//! synchronously). Real-time threads go first. All fair threads are nice 0, so that virtual time is run time.

mod averages;
mod balance;
pub(crate) mod id;
pub(crate) mod kernel_threads;
pub(crate) mod run_queue;
pub(crate) mod thread;
pub(crate) mod threads;

use napkin_core::{MICROSECOND, NEVER, Ns, Task};

use crate::config::{Fair, Preemption};
use crate::events::Event;
use crate::host::contexts::Source;
use crate::host::segment::Segment;
use crate::machine::Machine;
use crate::sched::id::{Class, State, ThreadId};
use crate::trace::Mark;

impl Machine<'_> {
    /// Makes a thread runnable. `by` is the CPU whose context wakes it, if any. Returns the CPU that needs a
    /// reschedule interrupt, if that is another one.
    pub(crate) fn wake(&mut self, id: ThreadId, by: Option<usize>) -> Option<usize> {
        let thread = &mut self.threads[id];
        if thread.state != State::Sleeping {
            thread.woken = true;
            return None;
        }
        // Invalidate the timer of this sleep for later ones.
        thread.wake_generation = thread.wake_generation.wrapping_add(1);
        let cpu = self.select_cpu(id, by);
        self.catch_up(cpu);
        let thread = &mut self.threads[id];
        let last = usize::from(thread.cpu);
        if last != cpu {
            thread.migrations += 1;
            thread.cpu = cpu as u16;
            // Virtual time is relative to a CPU. CFS carries over how far a thread is ahead of the others; with EEVDF
            // a thread arrives without any lead.
            let vruntime = match self.config.kernel.fair {
                Fair::Cfs => {
                    let ahead = thread.vruntime() - self.cpus[last].run_queue.min_vruntime;
                    self.cpus[cpu].run_queue.min_vruntime + ahead
                }
                Fair::Eevdf => i64::MIN / 2,
            };
            thread.set_vruntime(vruntime);
        }
        thread.state = State::Queued;
        self.place(id, cpu);
        self.cpus[cpu].run_queue.queued.push(id);
        let name = self.threads[id].name();
        self.trace.mark(by.unwrap_or(cpu), self.now, Mark::Wake(name));
        // Synchronous: by the running thread, not by an interrupt on top of it.
        let sync = by == Some(cpu) && self.cpus[cpu].contexts() == 0;
        let preempts = self.check_preempt(cpu, id, sync);
        (preempts && by != Some(cpu)).then_some(cpu)
    }

    /// Wakes a task of the core's, from a context of CPU `by`.
    pub(crate) fn wake_task(&mut self, by: usize, task: Task) {
        if let Some(id) = self.kernel_threads.of(task, by, &self.threads) {
            self.wake_from(by, id);
        }
    }

    /// Wakes a thread from a context of CPU `by`, with an IPI if the thread goes to another CPU.
    pub(crate) fn wake_from(&mut self, by: usize, id: ThreadId) {
        if let Some(cpu) = self.wake(id, Some(by)) {
            let at = self.now + self.config.cost.ipi;
            self.events.schedule(at, Event::Reschedule { cpu: cpu as u16 });
        }
    }

    /// Selects the CPU for a waking thread: its last one if that is idle, else the waking CPU if that is idle, else
    /// an idle one near its last, else the last or the waking CPU, whichever has fewer runnable threads. Interrupts
    /// and softirqs do not make a CPU look busy, which is what the 2020 proposal complains about.
    fn select_cpu(&mut self, id: ThreadId, by: Option<usize>) -> usize {
        let thread = &self.threads[id];
        let affinity = thread.affinity;
        if affinity.is_single() {
            return usize::from(affinity.first);
        }
        let last = usize::from(thread.cpu);
        let here = by.filter(|&cpu| affinity.allows(cpu as u16));
        let previous = if affinity.allows(thread.cpu) { last } else { usize::from(affinity.first) };
        if self.cpus[previous].available() {
            return previous;
        }
        let alone =
            |cpu: usize| self.cpus[cpu].run_queue.has_only(self.kernel_threads.ksoftirqd(cpu));
        if self.config.kernel.stacks_on_bound && here == Some(previous) && alone(previous) {
            return previous;
        }
        if let Some(here) = here
            && self.cpus[here].available()
        {
            return here;
        }
        let (first, end) = (usize::from(affinity.first), usize::from(affinity.last) + 1);
        let smt = usize::from(self.config.processor.smt);
        let span = end - first;
        let mut second = None;
        for step in 1..span {
            let cpu = first + (previous - first + step) % span;
            if !self.cpus[cpu].available() {
                continue;
            }
            // A whole idle core is better than a hardware thread of a busy one.
            if smt == 1 || self.sibling(cpu).is_none_or(|it| self.cpus[it].available()) {
                return cpu;
            }
            if step < usize::from(self.config.kernel.idle_scan) {
                second = second.or(Some(cpu));
            }
        }
        let idle_sibling = self
            .sibling(previous)
            .filter(|&cpu| affinity.allows(cpu as u16) && self.cpus[cpu].available());
        if let Some(cpu) = second.or(idle_sibling) {
            return cpu;
        }
        let runnable = |cpu: usize| self.cpus[cpu].run_queue.threads().count();
        match here {
            // The thread counts itself where it would be new (`wake_affine_weight`).
            Some(here) if runnable(here) + 1 < runnable(previous) => here,
            _ => previous,
        }
    }

    /// Returns the other hardware thread of a CPU's core: siblings are half the CPUs apart, as Linux numbers them.
    pub(crate) fn sibling(&self, cpu: usize) -> Option<usize> {
        let cpus = self.cpus.len();
        (self.config.processor.smt == 2 && cpus.is_multiple_of(2)).then(|| (cpu + cpus / 2) % cpus)
    }

    /// Sets the virtual time of a waking thread.
    fn place(&mut self, id: ThreadId, cpu: usize) {
        self.charge(cpu);
        let kernel = &self.config.kernel;
        let average = self.cpus[cpu].run_queue.average(&self.threads);
        let others = self.cpus[cpu].run_queue.threads().count() as i64;
        let min = self.cpus[cpu].run_queue.min_vruntime;
        let thread = &mut self.threads[id];
        match kernel.fair {
            Fair::Cfs => {
                let credit = kernel.sched_latency as i64 / 2;
                thread.set_vruntime(thread.vruntime().max(min - credit));
            }
            Fair::Eevdf => {
                let lag = if others > 0 { thread.lag * (others + 1) / others } else { 0 };
                let place = average.unwrap_or(min) - lag;
                // A thread that went to sleep ahead of the others stays ahead until they have caught up (delayed
                // dequeue).
                let ahead = others > 0 && thread.lag == 0;
                thread.set_vruntime(if ahead { place.max(thread.vruntime()) } else { place });
                thread.renew_deadline(kernel.slice);
            }
        }
    }

    /// Decides whether a thread that has become runnable preempts the current one, and if so requests a reschedule.
    fn check_preempt(&mut self, cpu: usize, id: ThreadId, sync: bool) -> bool {
        let kernel = &self.config.kernel;
        let Some(curr) = self.cpus[cpu].run_queue.curr else {
            self.cpus[cpu].run_queue.need_resched = true;
            return true;
        };
        let (mine, theirs) = (&self.threads[id], &self.threads[curr]);
        let urgent = match (mine.class, theirs.class) {
            (Class::Fifo(mine), Class::Fifo(theirs)) => mine > theirs,
            (Class::Fifo(_), Class::Fair) => true,
            (Class::Fair, Class::Fifo(_)) => false,
            (Class::Fair, Class::Fair) => {
                let preempts = if sync && !kernel.sync_wake_preempts {
                    false
                } else {
                    match kernel.fair {
                        Fair::Cfs => {
                            theirs.vruntime() - mine.vruntime() > kernel.wakeup_granularity as i64
                        }
                        Fair::Eevdf => {
                            let average =
                                self.cpus[cpu].run_queue.average(&self.threads).unwrap_or(0);
                            mine.vruntime() <= average
                                && (kernel.next_buddy || theirs.vruntime() > mine.vruntime())
                        }
                    }
                };
                if !preempts {
                    self.arm_slice(cpu);
                    return false;
                }
                kernel.preemption != Preemption::Lazy
            }
        };
        let fair = self.threads[id].class == Class::Fair;
        if urgent {
            self.cpus[cpu].run_queue.need_resched = true;
        } else if fair && self.threads[curr].class == Class::Fair {
            self.cpus[cpu].run_queue.lazy_resched = true;
        } else {
            return false;
        }
        true
    }

    /// Arms the timer of the current slice, if slices end by a timer and a thread waits.
    fn arm_slice(&mut self, cpu: usize) {
        let kernel = &self.config.kernel;
        if !kernel.hrtick
            || self.cpus[cpu].run_queue.slice_armed
            || self.cpus[cpu].run_queue.queued.is_empty()
        {
            return;
        }
        let Some(curr) = self.cpus[cpu].run_queue.curr else { return };
        let thread = &mut self.threads[curr];
        if thread.class != Class::Fair {
            return;
        }
        // A thread that was alone gets a new slice when competition arrives.
        if thread.vruntime() >= thread.deadline {
            thread.renew_deadline(kernel.slice);
        }
        // The kernel has the same lower limit: with shorter timers their own interrupts would use up the slice.
        let left = ((thread.deadline - thread.vruntime()) as Ns).max(10 * MICROSECOND);
        let this = &mut self.cpus[cpu];
        let generation = this.run_queue.arm_slice();
        // Virtual run time passes with wall time, whatever the CPU's speed.
        let at = self.now + left;
        self.events.schedule(at, Event::SliceEnd { cpu: cpu as u16, generation });
    }

    /// Requests a reschedule if the current thread has used up its slice.
    pub(crate) fn slice_ended(&mut self, cpu: usize) {
        self.charge(cpu);
        let kernel = &self.config.kernel;
        let this = &self.cpus[cpu];
        let (Some(curr), false) = (this.run_queue.curr, this.run_queue.queued.is_empty()) else {
            return;
        };
        let waiting = this.run_queue.queued.len() as u64;
        let thread = &mut self.threads[curr];
        if thread.class != Class::Fair {
            return;
        }
        let over = match kernel.fair {
            Fair::Cfs => {
                let ideal = (kernel.sched_latency / (waiting + 1)).max(kernel.slice);
                thread.ran_since_pick() >= ideal
            }
            Fair::Eevdf => {
                let over = thread.vruntime() >= thread.deadline;
                if over {
                    thread.renew_deadline(kernel.slice);
                }
                over
            }
        };
        if over {
            self.cpus[cpu].run_queue.need_resched = true;
        } else {
            self.arm_slice(cpu);
        }
    }

    /// Handles the tick: turns a lazy reschedule request into a real one, checks the slice, and balances.
    pub(crate) fn tick(&mut self, cpu: usize) {
        if self.cpus[cpu].run_queue.lazy_resched {
            self.cpus[cpu].run_queue.need_resched = true;
        }
        self.slice_ended(cpu);
        if self.now >= self.cpus[cpu].run_queue.next_balance {
            self.cpus[cpu].run_queue.next_balance = self.now + self.config.kernel.balance_interval;
            self.push_waiting(cpu);
            self.push_running(cpu);
        }
    }

    /// Switches a CPU without contexts on it to the next thread, or to idle. Returns `true` if that is not the one
    /// that ran before.
    pub(crate) fn reschedule(&mut self, cpu: usize, goes_to_sleep: bool) -> bool {
        self.charge(cpu);
        let old = self.cpus[cpu].run_queue.curr;
        let active_balance_to = self.cpus[cpu].run_queue.active_balance_to.take();
        if let Some(old) = old {
            if goes_to_sleep {
                self.store_lag(cpu, old);
            } else {
                self.cpus[cpu].run_queue.queued.push(old);
                self.threads[old].state = State::Queued;
                if let Some(to) = active_balance_to
                    && self.cpus[to].available()
                {
                    self.move_waiting(cpu, self.cpus[cpu].run_queue.queued.len() - 1, to);
                    let at = self.now + self.config.cost.ipi;
                    self.events.schedule(at, Event::Reschedule { cpu: to as u16 });
                }
            }
        }
        let this = &mut self.cpus[cpu];
        this.run_queue.clear_curr();
        let mut moved = false;
        let settled = this.run_queue.idle_periods.mean() >= self.config.kernel.migration_cost;
        if this.run_queue.queued.is_empty()
            && settled
            && self.config.kernel.balance_interval < NEVER
        {
            moved = self.pull(cpu);
            self.cpus[cpu].run_queue.need_resched = false;
        }
        let next = self.cpus[cpu].run_queue.pick(&self.threads, self.config.kernel.fair);
        let most = 2 * self.config.kernel.migration_cost;
        let idle = (old.is_none(), next.is_none());
        self.cpus[cpu].run_queue.idle_periods.update(self.now, idle, most);
        if let Some(next) = next {
            self.cpus[cpu].run_queue.set_curr(next);
            let thread = &mut self.threads[next];
            thread.state = State::Running;
            if old != Some(next) {
                thread.pick();
            }
        }
        if old == next {
            self.arm_slice_anew(cpu);
            return false;
        }
        if let Some(old) = old {
            let thread = &mut self.threads[old];
            if goes_to_sleep {
                thread.voluntary += 1;
            } else {
                thread.involuntary += 1;
            }
            thread.saved = self.cpus[cpu].take_segment();
        }
        self.cpus[cpu].run_queue.switches += 1;
        self.arm_slice_anew(cpu);
        let cost = &self.config.cost;
        let segment = match next {
            Some(next) => {
                let extra = cost.switch + if moved { cost.migrate } else { 0 };
                match self.threads[next].saved.take() {
                    Some(saved) => saved.after(extra),
                    None => Segment::of_switch(extra, false),
                }
            }
            None => Segment::of_switch(cost.switch_idle, true),
        };
        self.begin(cpu, segment);
        true
    }

    fn arm_slice_anew(&mut self, cpu: usize) {
        self.cpus[cpu].run_queue.void_slice();
        self.arm_slice(cpu);
    }

    fn store_lag(&mut self, cpu: usize, id: ThreadId) {
        let slice = self.config.kernel.slice as i64;
        if let Some(average) = self.cpus[cpu].run_queue.average(&self.threads) {
            let thread = &mut self.threads[id];
            // A thread that is ahead stays on the queue until it is not (delayed dequeue).
            thread.lag = (average - thread.vruntime()).clamp(0, 2 * slice);
        }
    }

    /// Charges the current thread with the time since it was last charged.
    pub(crate) fn charge(&mut self, cpu: usize) {
        self.account(cpu);
        self.cpus[cpu].run_queue.advance(&self.threads);
    }

    /// Handles a CPU's tick event. An idle CPU stops its tick.
    pub(crate) fn tick_fires(&mut self, cpu: usize) {
        self.catch_up(cpu);
        let this = &mut self.cpus[cpu];
        if this.run_queue.curr.is_none() && this.run_queue.queued.is_empty() && this.contexts() == 0
        {
            this.run_queue.tick_armed = false;
            return;
        }
        let at = self.now + self.config.kernel.tick;
        self.events.schedule(at, Event::Tick { cpu: cpu as u16 });
        self.interrupt(cpu, Source::Tick);
    }

    /// Restarts the tick of a CPU that leaves idleness.
    pub(crate) fn arm_tick(&mut self, cpu: usize) {
        let this = &mut self.cpus[cpu];
        if this.run_queue.tick_armed {
            return;
        }
        this.run_queue.tick_armed = true;
        let tick = self.config.kernel.tick;
        // Ticks of different CPUs are skewed.
        let skew = tick / 8 * (cpu as Ns % 8);
        let at = (self.now + tick - skew) / tick * tick + skew;
        let at = if at <= self.now { at + tick } else { at };
        self.events.schedule(at, Event::Tick { cpu: cpu as u16 });
    }
}
