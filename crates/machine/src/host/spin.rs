//! Spinning in bulk: a thread that polls in vain goes round without its steps being taken one by one.
//!
//! A pass that has just asked for a poll may say that it goes round in a circle
//! (`napkin_core::IdleCycle`). While nothing reaches its queue and nobody wants its CPU, each round
//! is like the last: the CPU is then at one long piece of work. Whatever concerns it (a frame, a
//! finished transmission, what a disk has finished, an interrupt, a thread that becomes runnable, a
//! reader of the counts) first has it caught up: whole rounds are counted, and the CPU stands in the
//! middle of the part of a round in which stepping would have it. A test holds the two against each
//! other, byte for byte.

use napkin_core::{Did, Id, NEVER, Ns, Op, Work};

use crate::counts::Who;
use crate::host::cpu::{Bulk, Spin};
use crate::host::execution::ThreadPass;
use crate::host::segment::{Segment, Use};
use crate::machine::Machine;
use crate::sched::id::{Role, State, ThreadId};

/// Rounds below which stepping is cheaper.
const WORTH: u64 = 2;

impl Machine<'_> {
    /// Whether threads that poll in vain are skipped in bulk. It is so from the start; stepping gives
    /// the same counts and latencies, and takes longer.
    pub fn set_skip(&mut self, skip: bool) {
        self.catch_up_all();
        self.skip = skip;
    }

    /// The thread on a CPU, whose pass has just asked for a poll, goes round from here on: `true`.
    #[inline]
    pub(super) fn spin(&mut self, cpu: usize, me: ThreadId, id: Id) -> bool {
        // Where CPUs share a clock, each change of what another does would have to break a round up.
        if !self.skip || self.trace.is_some() || self.config.processor.shared_clock {
            return false;
        }
        let thread = &self.threads[me];
        let this = &self.cpus[cpu];
        // Others may wait: neither a look nor a pause gives way unless the scheduler has said so.
        // At full speed alone: slowed down, each part of a round would be rounded by itself.
        let alone = this.dilation == 1000
            && this.frames.is_empty()
            && this.pending.is_empty()
            && !this.run_queue.need_resched()
            && !this.raised;
        let queue = &self.queues[usize::from(id.0)];
        if !(alone && !thread.wait.signalled() && queue.quiet(cpu)) {
            return false;
        }
        self.goes_round(cpu, me)
    }

    /// The same, where the CPU is its own and a poll would find nothing.
    #[inline(never)]
    fn goes_round(&mut self, cpu: usize, me: ThreadId) -> bool {
        let thread = &self.threads[me];
        let cycle = match &thread.execution.pass {
            Some(ThreadPass::Epoll(pass)) => pass.idle_cycle(),
            Some(ThreadPass::Socket(pass)) => pass.idle_cycle(),
            Some(ThreadPass::Kthread(pass)) => pass.idle_cycle(),
            _ => None,
        };
        let Some(cycle) = cycle else { return false };
        let index = usize::from(cycle.id.0);
        // A driver that samples its queue at each unmasking is not the same after a round.
        let steady = !self.queues[index].adapts() || !cycle.unmasks();
        if !steady || self.found(me) > 0 {
            return false;
        }
        let role = thread.role();
        let length = cycle.steps().map(|op| self.step_cost(op, role)).sum();
        let rounds = cycle.most(self.now, length);
        if rounds < WORTH {
            return false;
        }
        self.account(cpu);
        self.set_busy(cpu, true);
        let this = &mut self.cpus[cpu];
        this.in_vain(self.threads[me].execution.round.poll_begins());
        this.bulk = Some(Bulk::Spin(Spin { me, cycle, start: self.now, length }));
        this.segment = Some(Segment { left: NEVER, class: Use::System, preemptible: false });
        this.started = self.now;
        this.ends_by = 0;
        self.queues[index].set_spinner(Some(cpu as u16));
        if let Some(time) = rounds.checked_mul(length)
            && let Some(end) = self.now.checked_add(time)
            && cycle.until != NEVER
        {
            self.cpus[cpu].ends_by = self.events.segment_ends(end, cpu as u16);
        }
        true
    }

    /// What a step of a round costs.
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

    /// Has a CPU caught up with what it goes round in, or rests from, if it does: from now on it is stepped. A
    /// part that ends at this very moment has ended only if what happens was asked for at this moment.
    #[inline]
    pub(crate) fn catch_up(&mut self, cpu: usize) {
        if self.cpus[cpu].bulk.is_some() {
            self.end_bulk(cpu);
        }
    }

    #[inline(never)]
    fn end_bulk(&mut self, cpu: usize) {
        match self.cpus[cpu].bulk.take() {
            Some(Bulk::Spin(spin)) => self.stop_spinning(cpu, spin),
            Some(Bulk::Rest(rest)) => self.stop_resting(cpu, rest),
            None => {}
        }
    }

    /// The same for the CPU whose thread goes round with a queue, or which rests while its ring is empty.
    #[inline]
    pub(crate) fn catch_up_queue(&mut self, index: usize) {
        if let Some(cpu) = self.queues[index].spinner() {
            self.catch_up(usize::from(cpu));
        }
    }

    /// The same for the CPU of a thread that runs: there is something for it to find.
    pub(crate) fn catch_up_thread(&mut self, thread: ThreadId) {
        let thread = &self.threads[thread];
        let (state, cpu) = (thread.state(), usize::from(thread.cpu()));
        if state == State::Running {
            self.catch_up(cpu);
        }
    }

    /// The same for all.
    pub(crate) fn catch_up_all(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.catch_up(cpu);
        }
    }

    fn stop_spinning(&mut self, cpu: usize, spin: Spin) {
        let Spin { me, cycle, start, length } = spin;
        let index = usize::from(cycle.id.0);
        self.queues[index].set_spinner(None);
        let this = &mut self.cpus[cpu];
        this.segment = None;
        this.ends_by = 0;
        // Nobody watches where somebody goes round.
        this.uses(self.now, Use::System, &mut self.threads, &self.config.kernel);

        let over = self.events.asked_now();
        let passed = self.now - start;
        let mut rounds = passed / length;
        if passed == rounds * length && rounds > 0 && !over {
            rounds -= 1;
        }
        let begun = start + rounds * length;
        self.count_rounds(cpu, &spin, rounds);

        // The round under way, part by part.
        let role = self.threads[me].role();
        let mut at = begun;
        for op in cycle.steps() {
            if over && at == self.now {
                break;
            }
            let cost = self.step_cost(op, role);
            let end = at + cost;
            self.begin_part(me, op);
            if cost > 0 && (end > self.now || (end == self.now && !over)) {
                self.goes_on(cpu, end - self.now);
                return;
            }
            at = end;
            self.end_part(cpu, me, op, at);
        }
        // The next part begins at this very moment, but not before what happens now has happened.
        self.goes_on(cpu, 0);
    }

    /// A CPU is in the middle of a part of a round. It is alone, as it was in the rounds before, so that the
    /// part takes its own time.
    fn goes_on(&mut self, cpu: usize, left: Ns) {
        let this = &mut self.cpus[cpu];
        this.segment = Some(Segment { left, class: Use::System, preemptible: false });
        this.ends_by = self.events.segment_ends(self.now + left, cpu as u16);
    }

    /// Counts whole rounds as stepping them would have: polls, time in vain, the last poll.
    fn count_rounds(&mut self, cpu: usize, spin: &Spin, rounds: u64) {
        if rounds == 0 {
            return;
        }
        let cycle = &spin.cycle;
        let polled = spin.start + (rounds - 1) * spin.length + self.config.cost.poll;
        self.host.instance(cycle.id).count_empty_polls(cycle.owner, rounds, polled);
        self.cpus[cpu].polled_in_vain += rounds * spin.length;
        self.threads[spin.me].execution.round.skipped(rounds * spin.length);
        self.queues[usize::from(cycle.id.0)].polled(polled);
        if self.sees(cycle.id)
            && let Some(Op::Poll { budget, .. }) = cycle.steps().next()
        {
            let who = match self.threads[spin.me].role() {
                Role::Napi(_) => Who::Kthread,
                _ => Who::App,
            };
            *self.seen.polls.entry((who, budget, 0)).or_insert(0) += rounds;
        }
    }

    /// A part of a round is paid for.
    fn begin_part(&mut self, me: ThreadId, op: Op) {
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

    /// It is over: the pass is told, and asks for the next.
    fn end_part(&mut self, cpu: usize, me: ThreadId, op: Op, at: Ns) {
        let did = match op {
            Op::Poll { id, .. } => {
                self.queues[usize::from(id.0)].polled(at);
                self.threads[me].execution.round.polled(false);
                if self.sees(id)
                    && let Op::Poll { budget, .. } = op
                {
                    let who = self.who(cpu);
                    *self.seen.polls.entry((who, budget, 0)).or_insert(0) += 1;
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
