//! The invariants of the design, as far as the machine can observe them.
//!
//! One owner at a time (1) is ensured by the core's types and assertions. That a mode change takes effect within two
//! polls (4), and that closed contexts end their suspension (6), is recorded where it happens (`fault/`). The others
//! are checked here. An experiment checks its queues every 100 us, after an event that is not the end of a segment:
//! counts that do not add up and a stalled queue stay that way. A swarm checks queues and CPUs after every event.

use napkin_core::state::SCHED;
use napkin_core::{CpuId, Id, MICROSECOND, NEVER, Ns, Owner};
use napkin_policy::Threaded;

use crate::host::contexts::Source;
use crate::host::cpu::Cpu;
use crate::machine::Machine;
use crate::net::NicQueue;
use crate::sched::id::State;

/// Tolerance for deadlines in the machine: interrupts and softirqs in progress, a CPU in deep idle, ticks.
const SLACK: Ns = 30 * napkin_core::MILLISECOND;

/// Period of an experiment's checks.
const CHECK_PERIOD: Ns = 100 * MICROSECOND;

impl Machine<'_> {
    /// Checks the invariants after an event, as far as they are due.
    #[inline]
    pub(crate) fn check(&mut self) {
        if self.checks.after_every_event() {
            self.check_queues();
            self.check_cpus();
        } else if self.checks.take_due(self.now, CHECK_PERIOD) {
            self.check_queues();
        }
    }

    /// Checks every queue.
    #[inline(never)]
    pub(crate) fn check_queues(&mut self) {
        let unsound = |queue| if self.is_sound(queue) { None } else { self.check_queue(queue) };
        if let Some(what) = (0..self.queues.len()).find_map(unsound) {
            self.record_violation(&what);
        }
    }

    /// Checks every CPU.
    #[inline(never)]
    fn check_cpus(&mut self) {
        let unsound = |(cpu, it): (usize, &Cpu<'_>)| {
            let curr = it.run_queue.curr().map(|id| self.threads[id].name());
            Some(format!("CPU {cpu} {}; current: {curr:?}", it.unsound()?))
        };
        if let Some(what) = self.cpus.iter().enumerate().find_map(unsound) {
            self.record_violation(&what);
        }
    }

    /// Records a violation with its time and step, unless there is one already.
    #[cold]
    fn record_violation(&mut self, what: &str) {
        let (now, steps) = (self.now, self.steps);
        self.checks.record_violation(format!("at {now} ns (step {steps}): {what}"));
    }

    /// Returns the first violation of an invariant, if there was one.
    pub fn broken(&self) -> Option<&str> {
        self.checks.violation()
    }

    /// From now on checks every queue and CPU after every event, instead of the queues alone and periodically.
    pub fn check_everything(&mut self) {
        self.checks.check_everything();
    }

    /// Describes a queue and its instance in one line, for debugging.
    pub fn describe(&self, queue: u16) -> String {
        let this = &self.queues[usize::from(queue)];
        let instance = self.host.instance(Id(queue));
        let cpu = &self.cpus[usize::from(instance.cpu().0)];
        format!(
            "queue {queue}: {} in the ring, armed {}, line {}, moderating {}, lost {}, state {:#x}, \
             deadline {}, looked at {}; its CPU {}: current {:?}, {} queued, {} contexts, raised {}, \
             at work {}; softirqs pending {:#x}, running {}, ksoftirqd runnable {}",
            this.depth(),
            this.armed(),
            this.line(),
            this.moderating(),
            this.lost(),
            instance.state().0,
            instance.deadline(),
            this.timer_at(),
            instance.cpu().0,
            cpu.run_queue.curr().map(|id| self.threads[id].name()),
            cpu.run_queue.waiting(),
            cpu.contexts(),
            cpu.raised(),
            cpu.at_work(),
            self.host.cpu(instance.cpu()).pending(),
            self.host.cpu(instance.cpu()).running(),
            self.host.cpu(instance.cpu()).ksoftirqd_runnable(),
        )
    }

    /// Returns whether a queue is in a state in which all checks of [`Machine::check_queue`] hold. A fast path: it is
    /// nearly always true.
    #[inline]
    fn is_sound(&self, index: usize) -> bool {
        let queue = &self.queues[index];
        let counts = queue.counts();
        let queued = queue.backlog() as u64;
        let adds_up = counts.arrived == counts.ring_drops + counts.delivered + queued;
        let changes = queue.mode_change().is_some() || self.disabling[index].is_some();
        if !adds_up || queue.overflows() || changes {
            return false;
        }
        let instance = self.host.instance(Id(index as u16));
        instance.state().has(SCHED) || self.will_be_polled(queue, instance.deadline())
    }

    /// Returns whether an interrupt or a timer will come for a queue without an owner, and soon enough.
    #[inline]
    fn will_be_polled(&self, queue: &NicQueue, deadline: Ns) -> bool {
        let idle = queue.depth() == 0;
        let will = if deadline != NEVER && queue.timer_at() != NEVER {
            queue.timer_at() <= deadline
        } else {
            queue.will_interrupt()
        };
        queue.line() || will && (idle || queue.waited(self.now) <= SLACK)
    }

    fn check_queue(&self, index: usize) -> Option<String> {
        let queue = &self.queues[index];
        let counts = queue.counts();
        let queued = queue.backlog() as u64;
        if counts.arrived != counts.ring_drops + counts.delivered + queued {
            return Some(format!(
                "invariant 8: queue {index} got {} frames; {} dropped, {} delivered and {queued} \
                 here do not add up to that",
                counts.arrived, counts.ring_drops, counts.delivered
            ));
        }
        if queue.overflows() {
            return Some(format!("queue {index}'s ring holds {} frames", queue.depth()));
        }
        let id = Id(index as u16);
        if let Some((old, before)) = queue.mode_change() {
            let since = self.polls_by(id, old) - before;
            if since > 2 {
                return Some(format!(
                    "invariant 4: {since} polls of queue {index} by {old:?}'s owner after the \
                     change of mode"
                ));
            }
        }
        let instance = self.host.instance(id);
        if let Some(disabling) = &self.disabling[index] {
            let since = disabling.polls_since(instance.counts().all_polls());
            return (since > 2).then(|| {
                format!("invariant 4: {since} polls of queue {index} since it is being disabled")
            });
        }
        let state = instance.state();
        // With an owner, disabled, or with an interrupt that a fault has lost: left to the watchdog.
        if state.has(SCHED) || queue.lost() {
            return None;
        }
        let deadline = instance.deadline();
        let timer = deadline != NEVER && queue.timer_at() != NEVER;
        if self.will_be_polled(queue, deadline) {
            return None;
        }
        let cpu = usize::from(instance.cpu().0);
        if self.cpus[cpu].hard_for(Source::Queue(id))
            || self.cpus[queue.timer_cpu()].hard_for(Source::Timer(id))
        {
            return None;
        }
        if !queue.armed() && !timer {
            return Some(format!(
                "invariant 3: queue {index} is masked, nobody owns it, and no timer is armed \
                 (deadline {deadline}, looked at {})",
                queue.timer_at()
            ));
        }
        let promised = queue.will_interrupt();
        if queue.depth() > 0 && !promised && !timer {
            return Some(format!(
                "invariant 2: {} frames in the ring of queue {index}, nobody owns it, and neither \
                 an interrupt nor a timer will come",
                queue.depth()
            ));
        }
        if timer && queue.timer_at() > deadline.max(self.now) {
            return Some(format!(
                "invariant 2: the timer of queue {index} is looked at {} ns after its deadline",
                queue.timer_at() - deadline
            ));
        }
        let waiting = queue.waited(self.now);
        if queue.depth() == 0 || waiting <= SLACK {
            return None;
        }
        if self.config.kernel.rules.prolongs_without_poll && instance.suspending_contexts() > 0 {
            // This kernel violates it (race R18).
            return None;
        }
        let settings = instance.settings();
        let longest = settings
            .irq_suspend_timeout
            .max(settings.gro_flush_timeout)
            .max(settings.park_timeout())
            .max(self.checks.longest_timeout());
        if waiting > longest + SLACK {
            return Some(format!(
                "invariant 7: {} frames in queue {index}, the first for {waiting} ns, and nobody owns \
                 it (armed {}, moderating {}, deadline {deadline}, looked at {})",
                queue.depth(),
                queue.armed(),
                queue.moderating(),
                queue.timer_at()
            ));
        }
        None
    }

    /// Describes frames or activity that are left. There must be none long after the traffic has ended, if no thread
    /// spins.
    pub fn describe_leftovers(&self) -> Option<String> {
        let queues = 0..self.queues.len() as u16;
        if let Some(queue) = queues.clone().find(|&it| self.ring_depth(it) > 0) {
            let left = self.ring_depth(queue);
            return Some(format!("{left} frames are left at rest: {}", self.describe(queue)));
        }
        if let Some(queue) =
            queues.into_iter().find(|&it| self.host.instance(Id(it)).state().has(SCHED))
        {
            return Some(format!("an instance is owned at rest: {}", self.describe(queue)));
        }
        if let Some((socket, left)) = self.sockets.unread() {
            return Some(format!("{left} frames are left unread in socket {socket}"));
        }
        let runnable = |state| matches!(state, State::Queued | State::Running);
        if let Some(thread) = self.threads.iter().find(|it| runnable(it.state())) {
            return Some(format!("{} is {:?} at rest", thread.name(), thread.state()));
        }
        let working = self.cpus.iter().position(|it| it.at_work() || it.busy() || it.raised());
        if let Some(cpu) = working {
            return Some(format!("CPU {cpu} is at work at rest"));
        }
        let busy = self.clock.busy();
        (busy > 0).then(|| format!("{busy} CPUs count as busy at rest"))
    }

    /// Returns the polls of an instance by the owner of a mode.
    pub(crate) fn polls_by(&self, id: Id, mode: Threaded) -> u64 {
        let counts = self.host.instance(id).counts();
        let of = |owner: Owner| counts.polls[owner as usize] + counts.empty_polls[owner as usize];
        match mode {
            Threaded::Disabled => of(Owner::Softirq) + of(Owner::Ksoftirqd),
            Threaded::Enabled | Threaded::BusyPoll => of(Owner::Thread),
            Threaded::Workqueue => of(Owner::Worker),
        }
    }

    /// Checks invariant 5 after a poll by a CPU's softirq or ksoftirqd, wherever it ran: a round may exceed its
    /// budget by at most one weight, by the numbers that drivers report.
    pub(crate) fn check_round(
        &mut self,
        of: CpuId,
        id: Id,
        (rx, reported): (u16, u16),
        budget: u16,
    ) {
        let (counts, limits) = (self.host.cpu(of).counts(), self.host.cpu(of).limits());
        let frames = self.cpus[usize::from(of.0)].add_to_round(counts.net_rx, reported);
        let weight = self.host.instance(id).weight();
        if rx > budget || frames > u32::from(limits.budget) + u32::from(weight) {
            self.checks.record_violation(format!(
                "invariant 5: a poll took {rx} of {budget} frames, its round {frames}"
            ));
        }
    }
}
