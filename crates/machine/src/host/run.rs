//! The execution of a CPU: interrupts on top of softirqs on top of threads.
//!
//! A CPU always has one segment in progress, or is idle. When the segment ends, the innermost context determines the
//! next one; an interrupt puts the segment aside. Its time is accounted in `spend.rs`.

use napkin_core::{Context, CpuId, Did, NEVER, Ns, Op, Pass, Softirq};

use crate::config::Preemption;
use crate::events::Event;
use crate::host::contexts::{Body, Hard, StackedContext};
use crate::host::execution::ThreadPass;
use crate::host::segment::{Segment, Use};
use crate::host::step::Exec;
use crate::host::step::{At, Next};
use crate::machine::Machine;
use crate::sched::id::ThreadId;
use crate::sched::thread::Act;
use crate::trace::Mark;

impl Machine<'_> {
    /// Ends a CPU's segment, unless the event is stale because the CPU has moved on to another.
    #[inline(always)]
    pub(crate) fn segment_due(&mut self, cpu: usize, order: u64) {
        let this = &mut self.cpus[cpu];
        if this.ends_by != order {
            return;
        }
        if this.bulk.is_some() {
            self.catch_up(cpu);
        } else {
            this.ends_by = 0;
            let class = this.segment.map_or(Use::Idle, |segment| segment.class);
            this.segment = None;
            if this.started != self.now {
                let from = this.account(self.now, class, &mut self.threads, &self.config.kernel);
                if self.trace.is_some() {
                    self.trace_ran(cpu, class, from);
                }
            }
        }
        self.run_cpu(cpu);
    }

    /// Runs a CPU until it has a segment that takes time, or is idle.
    pub(crate) fn run_cpu(&mut self, cpu: usize) {
        self.running_cpu = cpu as u16;
        loop {
            let this = &self.cpus[cpu];
            if this.segment.is_some() {
                return;
            }
            let pass = match this.contexts.top() {
                Some(StackedContext { body: Body::Softirq(_), .. }) => Err(Use::Softirq),
                Some(StackedContext { body: Body::Hard(_), .. }) => match self.run_hard(cpu) {
                    Some(runs_on) => Ok(runs_on),
                    None => Err(Use::Interrupt),
                },
                None => Ok(self.run_thread(cpu)),
            };
            let runs_on = match pass {
                Ok(runs_on) => runs_on,
                Err(class) => self.step(cpu, At::Context, class),
            };
            if !runs_on {
                return;
            }
        }
    }

    /// Leaves the context on top and returns to what it interrupted. Returns whether the CPU runs on at once.
    pub(super) fn leave_context(&mut self, cpu: usize) -> bool {
        let this = &mut self.cpus[cpu];
        let Some(interrupted) = this.pop_context() else { return true };
        if let Some(source) = this.pending.pop_front() {
            // The next pending interrupt comes first, on top of the same segment.
            self.resume_segment(cpu, interrupted);
            self.enter_hard(cpu, source);
            return true;
        }
        if self.runs_softirq(cpu) {
            self.push_softirq(cpu, interrupted);
            return true;
        }
        self.resume_segment(cpu, interrupted);
        if self.cpus[cpu].contexts.is_empty() {
            return self.return_to_thread(cpu);
        }
        self.restart_segment(cpu)
    }

    fn resume_segment(&mut self, cpu: usize, segment: Option<Segment>) {
        self.account(cpu);
        self.cpus[cpu].segment = segment;
    }

    /// Continues the segment that was put aside. Returns whether the CPU runs on at once.
    fn restart_segment(&mut self, cpu: usize) -> bool {
        match self.cpus[cpu].segment.take() {
            Some(segment) => self.spend(cpu, segment.left, segment.class, segment.preemptible),
            None => true,
        }
    }

    /// Whether a raised softirq runs now, on top of a thread or of idleness.
    fn runs_softirq(&self, cpu: usize) -> bool {
        let this = &self.cpus[cpu];
        this.raised && this.contexts.is_empty() && !self.bh_disabled(cpu)
    }

    /// Whether the current thread has disabled bottom halves.
    fn bh_disabled(&self, cpu: usize) -> bool {
        self.cpus[cpu]
            .run_queue
            .curr()
            .is_some_and(|id| self.threads[id].execution.exec.bh_disabled)
    }

    fn push_softirq(&mut self, cpu: usize, interrupted: Option<Segment>) {
        self.cpus[cpu].raised = false;
        let competition = self.competition(cpu);
        let (host, context) = (self.host, Context::Interrupt { competition });
        self.cpus[cpu].contexts.push(|| StackedContext {
            body: Body::Softirq(Softirq::new(host, CpuId(cpu as u16), context)),
            exec: Exec::START,
            interrupted,
        });
    }

    /// Whether a thread other than ksoftirqd wants this CPU.
    fn competition(&self, cpu: usize) -> bool {
        let this = &self.cpus[cpu];
        let ksoftirqd = self.kernel_threads.ksoftirqd(cpu);
        this.run_queue.threads().any(|id| *id != ksoftirqd)
    }

    /// Returns from the last context to the thread or to idleness, unless the CPU is rescheduled.
    fn return_to_thread(&mut self, cpu: usize) -> bool {
        let this = &self.cpus[cpu];
        let Some(curr) = this.run_queue.curr() else {
            if this.run_queue.need_resched() || this.run_queue.waiting() > 0 {
                self.cpus[cpu].segment = None;
                // If no thread is to run, the CPU goes idle as usual.
                return !self.reschedule(cpu, false);
            }
            return self.restart_segment(cpu);
        };
        let user = this.segment.is_none_or(|segment| segment.preemptible);
        let wanted = this.run_queue.need_resched() || (this.run_queue.lazy_resched() && user);
        let may = user
            || match self.config.kernel.preemption {
                Preemption::Full => true,
                Preemption::Lazy => this.run_queue.need_resched(),
                Preemption::None | Preemption::Voluntary => false,
            };
        let may = may && !self.threads[curr].execution.exec.bh_disabled;
        if wanted && may && self.reschedule(cpu, false) {
            return false;
        }
        self.restart_segment(cpu)
    }

    /// Asks the pass on top for its next step; `None` if there is no pass.
    #[inline(always)]
    fn next_of_context(&mut self, cpu: usize, exec: &mut Exec) -> Option<Op> {
        let this = &mut self.cpus[cpu];
        let context = this.contexts.top_mut()?;
        let op = match &mut context.body {
            Body::Softirq(pass) => {
                if this.run_queue.need_resched() {
                    pass.need_resched();
                }
                pass.next(self.now, exec.did)
            }
            Body::Hard(Hard::Handling(pass)) => pass.next(self.now, exec.did),
            Body::Hard(Hard::Step(op)) => op.take().unwrap_or(Op::Done),
            Body::Hard(_) => return None,
        };
        exec.begin(op);
        Some(op)
    }

    /// Continues the current thread; without a thread the CPU goes idle.
    fn run_thread(&mut self, cpu: usize) -> bool {
        if self.runs_softirq(cpu) {
            self.push_softirq(cpu, None);
            return true;
        }
        let this = &self.cpus[cpu];
        let Some(me) = this.run_queue.curr() else {
            if this.run_queue.waiting() > 0 {
                self.reschedule(cpu, false);
                return false;
            }
            self.account(cpu);
            self.cpus[cpu].idleness.begin(self.now, &self.config.processor);
            self.set_busy(cpu, false);
            return false;
        };
        let wanted = this.run_queue.need_resched() || this.run_queue.lazy_resched();
        let thread = &mut self.threads[me];
        let Some(pass) = &mut thread.execution.pass else {
            if wanted && self.reschedule(cpu, false) {
                return false;
            }
            return self.run_program(cpu, me);
        };
        if thread.execution.exec.op.is_none() {
            let full = self.config.kernel.preemption == Preemption::Full;
            if self.cpus[cpu].run_queue.need_resched() && !thread.execution.exec.bh_disabled && full
            {
                if self.reschedule(cpu, false) {
                    return false;
                }
                return true;
            }
            if let ThreadPass::Softirq(pass) = pass
                && self.cpus[cpu].run_queue.need_resched()
            {
                pass.need_resched();
            }
        }
        self.step_of_thread(cpu, me)
    }

    /// Asks a thread's pass for its next step; `None` if the thread spins in bulk from here on.
    #[inline(always)]
    fn next_of_thread(&mut self, cpu: usize, me: ThreadId, exec: &mut Exec) -> Option<Op> {
        let thread = &mut self.threads[me];
        let op = thread.execution.pass.as_mut()?.next(self.now, exec.did);
        exec.begin(op);
        let Op::Poll { id, .. } = op else { return Some(op) };
        if exec.claimed && self.try_spin(cpu, me, id) { None } else { Some(op) }
    }

    /// Asks an application's program for its next act.
    fn run_program(&mut self, cpu: usize, me: ThreadId) -> bool {
        let stall = std::mem::take(&mut self.threads[me].execution.stall);
        if stall > 0 {
            return self.spend(cpu, stall, Use::User, true);
        }
        let Some(mut program) = self.threads[me].execution.program.take() else {
            self.threads[me].end();
            self.reschedule(cpu, true);
            return false;
        };
        let act = program.resume(self, me);
        self.threads[me].execution.program = Some(program);
        match act {
            Act::User(time) => self.spend(cpu, time, Use::User, true),
            Act::Kernel(time) => self.spend(cpu, time, Use::System, false),
            Act::Epoll { timeout, max_events } => {
                self.begin_epoll(me, timeout, max_events);
                self.spend(cpu, self.config.cost.epoll_enter, Use::System, false)
            }
            Act::Receive { timeout } => {
                self.begin_receive(me, timeout);
                true
            }
            Act::Sleep(until) => {
                if self.threads[me].take_woken() || until <= self.now {
                    return true;
                }
                self.block(cpu, me, until);
                false
            }
            Act::Exit => {
                self.threads[me].execution.program = None;
                true
            }
        }
    }

    /// Puts a thread to sleep.
    pub(super) fn block(&mut self, cpu: usize, me: ThreadId, until: Ns) {
        let thread = &mut self.threads[me];
        self.cpus[cpu].add_empty_poll_time(thread.execution.round.close_poll());
        let generation = thread.sleep();
        if until != NEVER {
            self.events.schedule(until.max(self.now), Event::Wake { thread: me.0, generation });
        }
        self.reschedule(cpu, true);
        self.threads[me].forget_saved();
    }

    /// Continues the step of the current thread.
    #[inline(never)]
    fn step_of_thread(&mut self, cpu: usize, me: ThreadId) -> bool {
        self.step(cpu, At::Thread(me), Use::System)
    }

    /// Takes the steps of a context until it ends or a part of one takes time. The time is accounted to `class`;
    /// meanwhile `exec` is a copy, which no other code reads.
    // Inlined once for contexts on top and once for threads, so that `at` is known in each.
    #[inline(always)]
    fn step(&mut self, cpu: usize, at: At, class: Use) -> bool {
        let Some(place) = self.exec(cpu, at) else { return true };
        let mut exec = *place;
        let next = loop {
            let op = match exec.op {
                Some(op) => op,
                None => {
                    let first = at == At::Context
                        && class == Use::Softirq
                        && matches!(exec.did, Did::Start);
                    let next = match at {
                        At::Context => self.next_of_context(cpu, &mut exec),
                        At::Thread(me) => self.next_of_thread(cpu, me, &mut exec),
                    };
                    let Some(op) = next else { break Next::Did(exec.did) };
                    if first && !matches!(op, Op::Done) {
                        self.store_exec(cpu, at, exec);
                        self.trace.mark(cpu, self.now, Mark::Softirq);
                        return self.spend(cpu, self.config.cost.softirq_entry, class, false);
                    }
                    op
                }
            };
            self.trace.suspensions(self.now, self.host, &mut self.queues);
            match self.perform(cpu, at, &mut exec, op, class) {
                // Go on with the next part, unless something else may run before it.
                Next::Spend(time, class) => {
                    if let Some(over) = self.pay_part(cpu, time, class) {
                        break Next::Paid(over);
                    }
                }
                // Go on with the next step.
                Next::Did(did) => {
                    (exec.op, exec.did) = (None, did);
                    let this = &self.cpus[cpu];
                    if at != At::Context && (this.raised || this.run_queue.need_resched()) {
                        break Next::Did(did);
                    }
                }
                next => break next,
            }
        };
        match next {
            Next::Yielded => (exec.op, exec.did) = (None, Did::Resched),
            Next::Nested(_) => (exec.op, exec.did) = (None, Did::Ok),
            Next::Did(_) | Next::Spend(..) | Next::Paid(_) | Next::Blocked | Next::Ended => {}
        }
        self.store_exec(cpu, at, exec);
        match next {
            Next::Did(_) | Next::Spend(..) => true,
            // A softirq runs first, or the part takes time.
            Next::Paid(over) => over,
            Next::Yielded => !self.reschedule(cpu, false),
            Next::Blocked => false,
            Next::Nested(target) => {
                let host = self.host;
                self.cpus[cpu].contexts.push(|| StackedContext {
                    body: Body::Softirq(Softirq::new(host, target, Context::Application)),
                    exec: Exec::START,
                    interrupted: None,
                });
                true
            }
            Next::Ended => self.pass_ended(cpu, at),
        }
    }

    /// Stores a context's progress.
    #[inline(always)]
    fn store_exec(&mut self, cpu: usize, at: At, exec: Exec) {
        if let Some(place) = self.exec(cpu, at) {
            *place = exec;
        }
    }

    #[inline(always)]
    pub(super) fn exec(&mut self, cpu: usize, at: At) -> Option<&mut Exec> {
        match at {
            At::Context => self.cpus[cpu].contexts.top_mut().map(|context| &mut context.exec),
            At::Thread(me) => Some(&mut self.threads[me].execution.exec),
        }
    }

    /// Handles the end of a context's pass.
    #[inline(always)]
    fn pass_ended(&mut self, cpu: usize, at: At) -> bool {
        match at {
            At::Context => {
                let Some(context) = self.cpus[cpu].contexts.top_mut() else { return true };
                match &mut context.body {
                    Body::Hard(_) => self.leave_hard(cpu),
                    Body::Softirq(_) if context.exec.stage < 2 => {
                        let ran = context.exec.did != Did::Start;
                        context.exec.stage = 2;
                        let exit = if ran { self.config.cost.softirq_exit } else { 0 };
                        // Frames in the last poll have displaced the interrupted thread's state from the caches.
                        let took = context.exec.rx > 0 && context.interrupted.is_some();
                        let took = took && self.cpus[cpu].run_queue.curr().is_some();
                        let exit = exit + if took { self.config.locality.interrupted } else { 0 };
                        self.spend(cpu, exit, Use::Softirq, false) && self.leave_context(cpu)
                    }
                    Body::Softirq(_) => self.leave_context(cpu),
                }
            }
            At::Thread(me) => self.wait_ended(cpu, me),
        }
    }

    /// Ends a thread's wait, or the loop of a kernel thread.
    fn wait_ended(&mut self, cpu: usize, me: ThreadId) -> bool {
        let thread = &mut self.threads[me];
        self.cpus[cpu].add_empty_poll_time(thread.execution.round.close_poll());
        match thread.execution.pass.take() {
            Some(ThreadPass::Epoll(wait)) => {
                thread.wait.end(wait.events());
                self.epoll_returned(me);
            }
            Some(ThreadPass::Socket(wait)) => thread.wait.end(wait.frames()),
            // A kernel thread whose mode was turned off sleeps until it is needed again.
            other => {
                drop(other);
                thread.execution.restart(thread.role(), self.host);
                thread.take_woken();
                self.block(cpu, me, NEVER);
                return false;
            }
        }
        let thread = &mut self.threads[me];
        thread.execution.exec = Exec::START;
        let events = u64::from(thread.wait.found());
        if events > 0 {
            thread.execution.round.found();
        }
        let returns = match thread.wait.epoll() {
            Some(_) => self.config.cost.epoll_return + events * self.config.cost.epoll_event,
            None => 0,
        };
        self.spend(cpu, returns, Use::System, false)
    }
}
