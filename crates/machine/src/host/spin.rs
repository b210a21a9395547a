//! Bulk skipping of the empty polls of a spinning thread.
//!
//! A pass that has just asked for a poll may report that it is in a cycle (`napkin_core::IdleCycle`). While nothing
//! reaches its queue and no other thread gets its CPU, each round is like the last one, and the CPU has a single long
//! segment. Whatever concerns it (a frame, a transmit completion, a completed disk operation, an interrupt, a thread
//! that becomes runnable, a reader of the counts) first catches it up: whole rounds are counted in bulk, and the CPU
//! is put into the part of the round that stepping would have reached. A test compares both ways byte for byte.

use napkin_core::{Did, Id, NEVER, Ns, Op, Work};

use crate::counts::CurrentTask;
use crate::host::cpu::{Bulk, Spin};
use crate::host::execution::ThreadPass;
use crate::host::segment::{Segment, Use};
use crate::machine::Machine;
use crate::sched::id::{Role, State, ThreadId};

/// Fewest rounds for which skipping is cheaper than stepping.
const MIN_ROUNDS: u64 = 2;

impl Machine<'_> {
    /// Sets whether spinning threads and empty timer expiries are skipped in bulk, which is the default. Stepping
    /// gives the same counts and latencies, and takes longer.
    pub fn set_skip(&mut self, skip: bool) {
        self.catch_up_all();
        self.skip = skip;
    }

    /// Starts to skip the rounds of a thread whose pass has just asked for a poll. Returns whether it does.
    #[inline]
    pub(super) fn try_spin(&mut self, cpu: usize, me: ThreadId, id: Id) -> bool {
        // On a shared clock each change of speed by another CPU would have to split a round.
        if !self.skip || self.trace.is_some() || self.config.processor.shared_clock {
            return false;
        }
        let thread = &self.threads[me];
        let this = &self.cpus[cpu];
        // Threads may wait on the run queue: a check or a pause yields only if `need_resched` is set. Full speed is
        // required, because at a lower speed each part of a round is rounded separately.
        let alone = this.dilation == 1000
            && this.contexts.is_empty()
            && this.pending.is_empty()
            && !this.run_queue.need_resched()
            && !this.raised;
        let queue = &self.queues[usize::from(id.0)];
        if !(alone && !thread.wait.signalled() && queue.is_quiet(cpu)) {
            return false;
        }
        self.begin_spin(cpu, me)
    }

    /// The rest of [`Machine::try_spin`], once the CPU is known to be undisturbed and the queue empty.
    #[inline(never)]
    fn begin_spin(&mut self, cpu: usize, me: ThreadId) -> bool {
        let thread = &self.threads[me];
        let cycle = match &thread.execution.pass {
            Some(ThreadPass::Epoll(pass)) => pass.idle_cycle(),
            Some(ThreadPass::Socket(pass)) => pass.idle_cycle(),
            Some(ThreadPass::Kthread(pass)) => pass.idle_cycle(),
            _ => None,
        };
        let Some(cycle) = cycle else { return false };
        let index = usize::from(cycle.id.0);
        // A driver that takes a sample at each unmask changes its state in each round.
        let steady = !self.queues[index].is_adaptive() || !cycle.unmasks();
        if !steady || self.found(me) > 0 {
            return false;
        }
        let role = thread.role();
        let length = cycle.steps().map(|op| self.step_cost(op, role)).sum();
        let rounds = cycle.most(self.now, length);
        if rounds < MIN_ROUNDS {
            return false;
        }
        self.account(cpu);
        self.set_busy(cpu, true);
        let this = &mut self.cpus[cpu];
        this.add_empty_poll_time(self.threads[me].execution.round.begin_poll());
        this.bulk = Some(Bulk::Spin(Spin { me, cycle, start: self.now, length }));
        this.segment = Some(Segment { left: NEVER, class: Use::System, preemptible: false });
        this.started = self.now;
        this.ends_by = 0;
        self.queues[index].set_skipping_cpu(Some(cpu as u16));
        if let Some(time) = rounds.checked_mul(length)
            && let Some(end) = self.now.checked_add(time)
            && cycle.until != NEVER
        {
            self.cpus[cpu].ends_by = self.events.schedule_segment_end(end, cpu as u16);
        }
        true
    }

    /// Returns the cost of a step in a round.
    fn step_cost(&self, op: Op, role: Role) -> Ns {
        let cost = &self.config.cost;
        match op {
            Op::Poll { .. } => cost.poll,
            Op::Unmask(_) => cost.unmask,
            Op::Mask(_) => cost.mask,
            Op::Look => cost.look,
            _ if matches!(role, Role::Napi(_)) => cost.kthread_loop,
            _ => 0,
        }
    }

    /// Catches up a CPU that skips rounds or expiries: from now on it is stepped. A part that ends at the present
    /// time is over only if the event being handled was scheduled at this time.
    #[inline]
    pub(crate) fn catch_up(&mut self, cpu: usize) {
        if self.cpus[cpu].bulk.is_some() {
            self.end_bulk(cpu);
        }
    }

    #[inline(never)]
    fn end_bulk(&mut self, cpu: usize) {
        match self.cpus[cpu].bulk.take() {
            Some(Bulk::Spin(spin)) => self.end_spin(cpu, spin),
            Some(Bulk::IdleExpiries(expiries)) => self.end_skipped_expiries(cpu, expiries),
            None => {}
        }
    }

    /// Catches up the CPU that skips polls of a queue or expiries of its timer.
    #[inline]
    pub(crate) fn catch_up_queue(&mut self, index: usize) {
        if let Some(cpu) = self.queues[index].skipping_cpu() {
            self.catch_up(usize::from(cpu));
        }
    }

    /// Catches up the CPU of a running thread that now has something to find.
    pub(crate) fn catch_up_thread(&mut self, thread: ThreadId) {
        let thread = &self.threads[thread];
        let (state, cpu) = (thread.state(), usize::from(thread.cpu()));
        if state == State::Running {
            self.catch_up(cpu);
        }
    }

    /// Catches up all CPUs.
    pub(crate) fn catch_up_all(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.catch_up(cpu);
        }
    }

    fn end_spin(&mut self, cpu: usize, spin: Spin) {
        let Spin { me, cycle, start, length } = spin;
        let index = usize::from(cycle.id.0);
        self.queues[index].set_skipping_cpu(None);
        let this = &mut self.cpus[cpu];
        this.segment = None;
        this.ends_by = 0;
        // With a trace no rounds are skipped, so none has to be reported.
        this.account(self.now, Use::System, &mut self.threads, &self.config.kernel);

        let over = self.events.scheduled_now();
        let passed = self.now - start;
        let mut rounds = passed / length;
        if passed == rounds * length && rounds > 0 && !over {
            rounds -= 1;
        }
        let begun = start + rounds * length;
        self.count_rounds(cpu, &spin, rounds);

        // Step the round in progress, part by part.
        let role = self.threads[me].role();
        let mut at = begun;
        for op in cycle.steps() {
            if over && at == self.now {
                break;
            }
            let cost = self.step_cost(op, role);
            let end = at + cost;
            self.enter_part(me, op);
            if cost > 0 && (end > self.now || (end == self.now && !over)) {
                self.resume_part(cpu, end - self.now);
                return;
            }
            at = end;
            self.complete_part(cpu, me, op, at);
        }
        // The next part begins now, but after the event being handled.
        self.resume_part(cpu, 0);
    }

    /// Puts a CPU into the middle of a part of a round. It runs at full speed, as in the rounds before, so that
    /// `left` is wall time.
    fn resume_part(&mut self, cpu: usize, left: Ns) {
        let this = &mut self.cpus[cpu];
        this.segment = Some(Segment { left, class: Use::System, preemptible: false });
        this.ends_by = self.events.schedule_segment_end(self.now + left, cpu as u16);
    }

    /// Counts whole rounds as stepping would have: polls, empty time, the time of the last poll.
    fn count_rounds(&mut self, cpu: usize, spin: &Spin, rounds: u64) {
        if rounds == 0 {
            return;
        }
        let cycle = &spin.cycle;
        let polled = spin.start + (rounds - 1) * spin.length + self.config.cost.poll;
        self.host.instance(cycle.id).count_empty_polls(cycle.owner, rounds, polled);
        self.cpus[cpu].empty_poll_time += rounds * spin.length;
        self.threads[spin.me].execution.round.remove_skipped(rounds * spin.length);
        self.queues[usize::from(cycle.id.0)].polled(polled);
        if self.counts_polls_of(cycle.id)
            && let Some(Op::Poll { budget, .. }) = cycle.steps().next()
        {
            let who = match self.threads[spin.me].role() {
                Role::Napi(_) => CurrentTask::Kthread,
                _ => CurrentTask::App,
            };
            *self.detailed_counts.polls.entry((who, budget, 0)).or_insert(0) += rounds;
        }
    }

    /// Sets a thread's progress as at the start of a part of a round.
    fn enter_part(&mut self, me: ThreadId, op: Op) {
        let exec = &mut self.threads[me].execution.exec;
        exec.op = Some(op);
        exec.stage = 1;
        match op {
            Op::Poll { .. } => {
                (exec.rx, exec.tx, exec.again, exec.bh_disabled) = (0, 0, false, true);
            }
            Op::Look | Op::Pause => exec.bh_disabled = false,
            _ => {}
        }
    }

    /// Ends a part of a round: passes its result to the pass, and gets the next step.
    fn complete_part(&mut self, cpu: usize, me: ThreadId, op: Op, at: Ns) {
        let did = match op {
            Op::Poll { id, .. } => {
                self.queues[usize::from(id.0)].polled(at);
                self.threads[me].execution.round.polled(false);
                if self.counts_polls_of(id)
                    && let Op::Poll { budget, .. } = op
                {
                    let who = self.who(cpu);
                    *self.detailed_counts.polls.entry((who, budget, 0)).or_insert(0) += 1;
                }
                Did::Polled(Work::NONE)
            }
            Op::Unmask(id) => Did::Unmasked(self.queues[usize::from(id.0)].unmask()),
            Op::Mask(id) => {
                self.queues[usize::from(id.0)].mask();
                Did::Ok
            }
            Op::Look => Did::Events(0),
            _ => Did::Ok,
        };
        let thread = &mut self.threads[me];
        if let Some(pass) = &mut thread.execution.pass {
            thread.execution.exec.op = Some(pass.next(at, did));
            thread.execution.exec.stage = 0;
        }
    }
}
