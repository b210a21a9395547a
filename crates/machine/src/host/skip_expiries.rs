//! Bulk skipping of timer expiries that find no work on an idle CPU.
//!
//! Where interrupts are deferred and no frame comes, a CPU sleeps, is woken by an instance's timer, polls an empty
//! ring, arms the timer again and goes back to sleep. The core predicts for how many expiries this continues
//! (`napkin_core::IdleTimer`). At the first of them the CPU stops being stepped, until something concerns it: a
//! frame, a transmit completion, an interrupt, a thread, the tick, a reader of the counts. Then it is caught up:
//! completed expiries are counted in bulk, and one in progress is stepped up to the present time. A test compares
//! both ways byte for byte. (They may differ if an event that was scheduled during a segment falls on the nanosecond
//! at which the segment ends: the event is taken to come first.)
//!
//! Expiries are not skipped if a context on another CPU polls the queue, too, or can observe that this CPU is awake.

use napkin_core::{CpuId, Id, Ns};
use napkin_policy::Threaded;

use crate::counts::CurrentTask;
use crate::host::contexts::Source;
use crate::host::cpu::{Bulk, IdleExpiries};
use crate::machine::Machine;
use crate::net::sockets::Readers;

/// The time of each part of an expiry, after the exit from idle.
#[derive(Debug, Clone, Copy)]
struct ExpiryCosts {
    interrupt: Ns,
    /// The softirq up to the end of the poll.
    until_polled: Ns,
    softirq: Ns,
}

impl Machine<'_> {
    /// Starts to skip the expiries of an instance's timer, which is due now on a CPU. Returns whether it does.
    pub(crate) fn skip_expiries(&mut self, cpu: usize, id: Id) -> bool {
        let processor = &self.config.processor;
        if !self.skip || self.trace.is_some() || processor.shared_clock || processor.smt > 1 {
            return false;
        }
        self.catch_up(cpu);
        let index = usize::from(id.0);
        let queue = &self.queues[index];
        let masked = queue.is_quiet(cpu) && !queue.armed() && !queue.line();
        if !(masked
            && self.cpus[cpu].is_quiescent()
            && self.is_undisturbed(cpu)
            && self.is_local_to(id, cpu))
        {
            return false;
        }
        let cpu_id = CpuId(cpu as u16);
        let Some(timer) = self.host.idle_timer(id, cpu_id) else { return false };
        let ExpiryCosts { interrupt, softirq, .. } = self.expiry_costs();
        // If the softirq exhausts its time budget, or outlasts the timer, the expiries are not all alike: step them.
        if softirq >= timer.timeout
            || interrupt + softirq >= self.host.cpu(cpu_id).limits().budget_time
        {
            return false;
        }
        self.cpus[cpu].bulk = Some(Bulk::IdleExpiries(IdleExpiries { timer, at: self.now }));
        let queue = &mut self.queues[index];
        queue.set_skipping_cpu(Some(cpu as u16));
        // Only for the invariant check, which requires a pending check of the deadline; no event is scheduled.
        queue.request_timer_check(self.host.instance(id).deadline());
        true
    }

    /// Catches up the CPU, if any, that skips expiries of this queue's timer.
    pub(crate) fn catch_up_expiries(&mut self, index: usize) {
        if let Some(cpu) = self.queues[index].skipping_cpu().map(usize::from)
            && let Some(Bulk::IdleExpiries(_)) = self.cpus[cpu].bulk
        {
            self.catch_up(cpu);
        }
    }

    /// Returns whether no other CPU can give this one work to poll: softirqs poll all instances whose interrupts go
    /// here, and their readers are pinned here.
    fn is_undisturbed(&mut self, cpu: usize) -> bool {
        let host = self.host;
        host.ids().all(|id| {
            let instance = host.instance(id);
            usize::from(instance.cpu().0) != cpu
                || instance.state().mode() == Threaded::Disabled && self.is_local_to(id, cpu)
        })
    }

    /// Returns whether an instance is used by this CPU only: its interrupt goes here, and the readers of its frames
    /// are pinned here.
    fn is_local_to(&mut self, id: Id, cpu: usize) -> bool {
        let readers = match self.sockets.readers(id.0) {
            Readers::Unknown => self.find_readers(id),
            known => known,
        };
        let allowed = match readers {
            Readers::None => true,
            Readers::On(on) => usize::from(on) == cpu,
            Readers::Anywhere | Readers::Unknown => false,
        };
        allowed && usize::from(self.host.instance(id).cpu().0) == cpu
    }

    #[cold]
    fn find_readers(&mut self, id: Id) -> Readers {
        let pinned = self.threads.iter().filter(|it| it.wait.on_any()).map(|it| {
            let affinity = it.affinity();
            (it.wait.epoll(), it.wait.socket(), affinity.is_single().then_some(affinity.first))
        });
        self.sockets.find_readers(id, pinned)
    }

    fn expiry_costs(&self) -> ExpiryCosts {
        let cost = &self.config.cost;
        let until_polled = cost.softirq_entry + cost.poll;
        ExpiryCosts {
            interrupt: cost.interrupt_entry + cost.timer_expiry + cost.interrupt_exit,
            until_polled,
            softirq: until_polled + cost.timer_arm + cost.softirq_exit,
        }
    }

    /// Stops skipping expiries: brings the CPU into the state that stepping would have reached.
    pub(super) fn end_skipped_expiries(&mut self, cpu: usize, skipped: IdleExpiries) {
        let index = usize::from(skipped.timer.id.0);
        self.queues[index].set_skipping_cpu(None);
        self.queues[index].cancel_timer_check();
        debug_assert_eq!(
            self.host.idle_timer(skipped.timer.id, skipped.timer.cpu),
            Some(skipped.timer)
        );
        // A segment that ends at the present time is over only if the event being handled was scheduled at this time.
        // The first expiry has happened in any case: the event being handled comes after it.
        let limit = self.now.saturating_sub(u64::from(!self.events.scheduled_now()));
        let at = self.count_expiries(cpu, &skipped, limit);
        if at > limit && at != skipped.at {
            self.arm(index, at);
            return;
        }
        // Step the expiry in progress, or the one that unmasks the interrupt, from its own time.
        let (now, end, running) = (self.now, self.end, self.running_cpu);
        (self.now, self.end) = (at, limit);
        self.interrupt(cpu, Source::Timer(skipped.timer.id));
        (self.now, self.end, self.running_cpu) = (now, end, running);
    }

    /// Counts the expiries that were over by `limit`, as stepping would have. Returns when the next one is due.
    fn count_expiries(&mut self, cpu: usize, skipped: &IdleExpiries, limit: Ns) -> Ns {
        let IdleExpiries { timer, mut at } = *skipped;
        let ExpiryCosts { interrupt, until_polled, softirq } = self.expiry_costs();
        let this = &mut self.cpus[cpu];
        let (mut n, mut polled, mut woke) = (0, 0, 0);
        while n < timer.expiries {
            let mut idleness = this.idleness;
            idleness.end(at, &self.config.processor);
            let exit = idleness.take_exit_latency();
            let raised = at + exit + interrupt;
            let over = raised + softirq;
            if over > limit {
                break;
            }
            idleness.begin(over, &self.config.processor);
            this.idleness = idleness;
            polled = raised + until_polled;
            woke = over;
            n += 1;
            at = polled + timer.timeout;
        }
        if n == 0 {
            return at;
        }
        let times = u64::from(n);
        this.account_idle(woke, times * interrupt, times * softirq);
        this.add_empty_poll_time(times * self.config.cost.poll);
        this.interrupts += times;
        self.host.count_expiries(&timer, n, polled);
        self.queues[usize::from(timer.id.0)].add_expiries(times, polled);
        if self.counts_polls_of(timer.id) {
            *self.detailed_counts.polls.entry((CurrentTask::Idle, timer.budget, 0)).or_insert(0) +=
                times;
        }
        at
    }

    /// Whether the polls of an instance are counted in detail.
    #[inline]
    pub(super) fn counts_polls_of(&self, id: Id) -> bool {
        self.detailed_counts.detailed && self.detailed_counts.queue.is_none_or(|only| only == id.0)
    }
}
