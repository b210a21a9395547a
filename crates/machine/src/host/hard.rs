//! Hard interrupts: taken on top of whatever a CPU runs, one at a time, in order of arrival.

use napkin_core::{CpuId, Interrupt, Ns, Vector};

use crate::host::contexts::{Body, Hard, Source, StackedContext};
use crate::host::segment::Use;
use crate::host::step::Exec;
use crate::machine::Machine;
use crate::trace::Mark;

impl Machine<'_> {
    /// Interrupts a CPU, at once or after the hard interrupt in progress.
    pub(crate) fn interrupt(&mut self, cpu: usize, source: Source) {
        self.catch_up(cpu);
        let this = &mut self.cpus[cpu];
        if this.in_hard() {
            this.pending.push_back(source);
            return;
        }
        // With no hard interrupt in progress none is pending.
        self.running_cpu = cpu as u16;
        self.enter_hard(cpu, source);
        self.run_cpu(cpu);
    }

    /// Enters a hard interrupt, on top of the present segment.
    pub(super) fn enter_hard(&mut self, cpu: usize, source: Source) {
        self.account(cpu);
        let (now, processor) = (self.now, &self.config.processor);
        let this = &mut self.cpus[cpu];
        if this.segment.is_none() {
            this.idleness.end(now, processor);
        }
        this.ends_by = 0;
        this.interrupts += 1;
        let interrupted = this.segment.take();
        this.contexts.push(|| StackedContext {
            body: Body::Hard(Hard::Entered(source)),
            exec: Exec::START,
            interrupted,
        });
        self.arm_tick(cpu);
    }

    /// Continues the hard interrupt on top. Returns whether the CPU runs on at once; `None`: it has to take a step of
    /// a pass.
    #[inline(always)]
    pub(super) fn run_hard(&mut self, cpu: usize) -> Option<bool> {
        let now = self.now;
        let Some(StackedContext { body: Body::Hard(hard), exec, .. }) =
            self.cpus[cpu].contexts.top_mut()
        else {
            return Some(true);
        };
        Some(match hard {
            Hard::Entered(source) => {
                let source = *source;
                match exec.stage {
                    0 => {
                        exec.stage = 1;
                        // The latency of the idle exit counts as idle time.
                        match self.cpus[cpu].idleness.take_exit_latency() {
                            0 => self.enter_handler(cpu, source),
                            exit => self.spend(cpu, exit, Use::Idle, false),
                        }
                    }
                    1 => self.enter_handler(cpu, source),
                    _ => {
                        *exec = Exec::START;
                        if self.handle(cpu, source, now) {
                            return None;
                        }
                        self.leave_hard(cpu)
                    }
                }
            }
            Hard::Handling(_) | Hard::Step(_) => return None,
            Hard::Exiting => self.leave_context(cpu),
        })
    }

    /// Begins the exit of the hard interrupt on top. Returns whether the CPU runs on at once.
    pub(super) fn leave_hard(&mut self, cpu: usize) -> bool {
        if let Some(StackedContext { body: Body::Hard(hard), .. }) =
            self.cpus[cpu].contexts.top_mut()
        {
            *hard = Hard::Exiting;
        }
        let exit = self.config.cost.interrupt_exit;
        self.spend(cpu, exit, Use::Interrupt, false) && self.leave_context(cpu)
    }

    /// Spends the time of the interrupt's entry and handler.
    fn enter_handler(&mut self, cpu: usize, source: Source) -> bool {
        if let Some(context) = self.cpus[cpu].contexts.top_mut() {
            context.exec.stage = 2;
        }
        let cost = &self.config.cost;
        let handler = match source {
            Source::Queue(_) => cost.nic_handler,
            Source::Timer(_) | Source::SliceEnd => cost.timer_expiry,
            Source::Tick => cost.tick,
            Source::Reschedule => 0,
            Source::Occupied(time) => time,
        };
        self.spend(cpu, cost.interrupt_entry + handler, Use::Interrupt, false)
    }

    /// Takes the effect of an interrupt. Returns whether steps follow, which the context then takes.
    fn handle(&mut self, cpu: usize, source: Source, now: Ns) -> bool {
        let next = match source {
            Source::Queue(id) => {
                self.trace.mark(cpu, now, Mark::Interrupt(id.0));
                Hard::Handling(Interrupt::new(self.host, id))
            }
            Source::Timer(id) => {
                // Another CPU may have armed the timer again, and may be skipping its expiries.
                self.catch_up_expiries(usize::from(id.0));
                self.queues[usize::from(id.0)].timer_expires();
                self.trace.mark(cpu, now, Mark::TimerExpired(id.0));
                // The softirq runs on the CPU where the timer fires, whatever the interrupt's affinity.
                match self.host.timer(id, CpuId(cpu as u16), now) {
                    Some(op) => Hard::Step(Some(op)),
                    None => return false,
                }
            }
            Source::Tick => {
                self.tick(cpu);
                let from = napkin_core::RaisedFrom::Interrupt;
                match self.host.raise_vectors(CpuId(cpu as u16), Vector::Timer.bit(), from) {
                    Some(op) => Hard::Step(Some(op)),
                    None => return false,
                }
            }
            Source::SliceEnd => {
                self.slice_ended(cpu);
                return false;
            }
            Source::Reschedule | Source::Occupied(_) => return false,
        };
        if let Some(StackedContext { body: Body::Hard(hard), .. }) =
            self.cpus[cpu].contexts.top_mut()
        {
            *hard = next;
        }
        true
    }
}
