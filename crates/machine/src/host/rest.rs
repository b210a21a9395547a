//! Resting in bulk: an idle CPU whose timer finds nothing, expiry after expiry, without its steps being taken
//! one by one.
//!
//! Where interrupts are deferred and nothing comes, a CPU sleeps, is woken by an instance's timer, polls an
//! empty ring, arms the timer again and goes back to sleep. The core foretells for how many expiries it will
//! (`napkin_core::IdleTimer`). The first of them makes the CPU rest: nothing happens on it any more until
//! something concerns it (a frame, a finished transmission, an interrupt, a thread, the tick, a reader). Then it is
//! caught up: whole expiries are counted, and one that is under way is stepped up to this moment. A
//! test holds the two against each other, byte for byte. (They may differ where something that was asked for during a
//! piece of work happens in the very nanosecond in which that ends: it is taken to come first.)
//!
//! It is not done where somebody on another CPU polls the queue, too, or notices that this one is awake.

use napkin_core::{CpuId, Id, Ns};
use napkin_policy::Threaded;

use crate::counts::Who;
use crate::host::contexts::Source;
use crate::host::cpu::{Bulk, Rest};
use crate::machine::Machine;
use crate::net::sockets::Readers;

/// What an expiry takes, part by part, after the CPU is awake.
#[derive(Debug, Clone, Copy)]
struct Parts {
    interrupt: Ns,
    /// Its softirq, up to the end of the poll.
    until_polled: Ns,
    softirq: Ns,
}

impl Machine<'_> {
    /// An instance's timer is due on a CPU, which rests from here on: `true`.
    pub(crate) fn rests(&mut self, cpu: usize, id: Id) -> bool {
        let processor = &self.config.processor;
        if !self.skip || self.trace.is_some() || processor.shared_clock || processor.smt > 1 {
            return false;
        }
        self.catch_up(cpu);
        let index = usize::from(id.0);
        let queue = &self.queues[index];
        let masked = queue.quiet(cpu) && !queue.armed() && !queue.line();
        if !(masked && self.cpus[cpu].idles() && self.is_alone(cpu) && self.is_apart(id, cpu)) {
            return false;
        }
        let cpu_id = CpuId(cpu as u16);
        let Some(timer) = self.host.idle_timer(id, cpu_id) else { return false };
        let Parts { interrupt, softirq, .. } = self.parts();
        // A round ends for lack of time, or the timer expires before all is over: not so plain any more.
        if softirq >= timer.timeout
            || interrupt + softirq >= self.host.cpu(cpu_id).limits().budget_time
        {
            return false;
        }
        self.cpus[cpu].bulk = Some(Bulk::Rest(Rest { timer, at: self.now }));
        let queue = &mut self.queues[index];
        queue.set_spinner(Some(cpu as u16));
        // For whoever checks: it is looked at.
        queue.look_at(self.host.instance(id).deadline());
        true
    }

    /// Has the CPU caught up that rests while a queue's ring is empty, if one does.
    pub(crate) fn end_rest(&mut self, index: usize) {
        if let Some(cpu) = self.queues[index].spinner().map(usize::from)
            && let Some(Bulk::Rest(_)) = self.cpus[cpu].bulk
        {
            self.catch_up(cpu);
        }
    }

    /// Whether nobody on another CPU gives a CPU something to poll: all instances whose interrupts go there are
    /// its own, and softirqs poll them.
    fn is_alone(&mut self, cpu: usize) -> bool {
        let host = self.host;
        host.ids().all(|id| {
            let instance = host.instance(id);
            usize::from(instance.cpu().0) != cpu
                || instance.state().mode() == Threaded::Disabled && self.is_apart(id, cpu)
        })
    }

    /// Whether an instance is one CPU's alone: its interrupt goes there, and whoever reads its frames is
    /// pinned there.
    fn is_apart(&mut self, id: Id, cpu: usize) -> bool {
        let readers = match self.sockets.readers(id.0) {
            Readers::Unknown => self.find_readers(id),
            known => known,
        };
        let theirs = match readers {
            Readers::Nobody => true,
            Readers::On(on) => usize::from(on) == cpu,
            Readers::Anywhere | Readers::Unknown => false,
        };
        theirs && usize::from(self.host.instance(id).cpu().0) == cpu
    }

    #[cold]
    fn find_readers(&mut self, id: Id) -> Readers {
        let pinned = self.threads.iter().filter(|it| it.wait.on_any()).map(|it| {
            let affinity = it.affinity();
            (it.wait.epoll(), it.wait.socket(), affinity.one().then_some(affinity.first))
        });
        self.sockets.find_readers(id, pinned)
    }

    fn parts(&self) -> Parts {
        let cost = &self.config.cost;
        let until_polled = cost.softirq_entry + cost.poll;
        Parts {
            interrupt: cost.interrupt_entry + cost.timer_expiry + cost.interrupt_exit,
            until_polled,
            softirq: until_polled + cost.timer_arm + cost.softirq_exit,
        }
    }

    /// A CPU rests no longer: it is where stepping would have it.
    pub(super) fn stop_resting(&mut self, cpu: usize, rest: Rest) {
        let index = usize::from(rest.timer.id.0);
        self.queues[index].set_spinner(None);
        self.queues[index].looks_no_more();
        debug_assert_eq!(self.host.idle_timer(rest.timer.id, rest.timer.cpu), Some(rest.timer));
        // What ends at this very moment has ended only if what happens was asked for at this moment. The
        // first expiry has come in any case: what happens now comes after it.
        let limit = self.now.saturating_sub(u64::from(!self.events.asked_now()));
        let at = self.count_expiries(cpu, &rest, limit);
        if at > limit && at != rest.at {
            self.arm(index, at);
            return;
        }
        // The one under way, or the one that allows the interrupt: as it was taken, at its time.
        let (now, end, running) = (self.now, self.end, self.running_cpu);
        (self.now, self.end) = (at, limit);
        self.interrupt(cpu, Source::Timer(rest.timer.id));
        (self.now, self.end, self.running_cpu) = (now, end, running);
    }

    /// Counts the expiries that were over by `limit` as stepping them would have: when the next one is due.
    fn count_expiries(&mut self, cpu: usize, rest: &Rest, limit: Ns) -> Ns {
        let Rest { timer, mut at } = *rest;
        let Parts { interrupt, until_polled, softirq } = self.parts();
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
        this.rested(woke, times * interrupt, times * softirq);
        this.in_vain(times * self.config.cost.poll);
        this.interrupts += times;
        self.host.count_expiries(&timer, n, polled);
        self.queues[usize::from(timer.id.0)].expired(times, polled);
        if self.sees(timer.id) {
            *self.seen.polls.entry((Who::Idle, timer.budget, 0)).or_insert(0) += times;
        }
        at
    }

    /// Whether polls of an instance are counted one by one.
    #[inline]
    pub(super) fn sees(&self, id: Id) -> bool {
        self.seen.detailed && self.seen.queue.is_none_or(|only| only == id.0)
    }
}
