//! Execution of faults, and the watchdog that recovers from lost interrupts.

use napkin_core::state::SCHED;
use napkin_core::{Id, Ns, RaisedFrom};
use napkin_policy::Threaded;

use crate::events::Event;
use crate::fault::Fault;
use crate::host::contexts::Source;
use crate::machine::Machine;
use crate::sched::id::ThreadId;

/// Returns the mode with the same owner and without busy polling: the instance's thread owns it in both.
fn owner(mode: Threaded) -> Threaded {
    if mode == Threaded::BusyPoll { Threaded::Enabled } else { mode }
}

impl Machine<'_> {
    /// Schedules a fault.
    pub fn fault_at(&mut self, at: Ns, fault: Fault) {
        self.faults.scheduled.push(fault);
        let token = self.faults.scheduled.len() as u64 - 1;
        self.events.schedule(at.max(self.now), Event::Fault { token });
    }

    /// Starts the watchdog, which schedules instances whose interrupt was lost, or changes its period from its next
    /// run on. With a period of 0 it stops after its next run.
    pub fn set_watchdog(&mut self, period: Ns) {
        let runs = std::mem::replace(&mut self.faults.watchdog, period) > 0;
        if period > 0 && !runs {
            self.events.schedule(self.now + period, Event::Watchdog);
        }
    }

    pub(crate) fn fault(&mut self, token: u64) {
        let Some(fault) = self.faults.scheduled.get(token as usize).copied() else { return };
        match fault {
            Fault::LoseInterrupt(queue) => self.queues[usize::from(queue)].lose_next(),
            Fault::DelayInterrupt(queue, by) => self.queues[usize::from(queue)].delay_next(by),
            Fault::Stall(thread, time) => self.threads[thread].execution.stall(time),
            Fault::CloseEpoll(epoll) => self.close_epoll(epoll),
            Fault::Set(queue, settings) => {
                let id = Id(queue);
                let old = self.host.instance(id).settings();
                let timeouts = [old.irq_suspend_timeout, old.gro_flush_timeout, old.park_timeout()];
                timeouts.into_iter().for_each(|it| self.checks.note_replaced_timeout(it));
                let set = self.host.set(id, &settings);
                debug_assert!(set.is_ok(), "{set:?}");
                let polls = self.polls_by(id, old.threaded);
                // With and without busy polling the owner is the same thread.
                let changes = owner(settings.threaded) != owner(old.threaded);
                let from = changes.then_some((old.threaded, polls));
                self.queues[usize::from(queue)].set_mode_change(from);
            }
            Fault::Disable(queue, duration) => self.disable(Id(queue), duration),
            Fault::Signal(thread) => {
                self.threads[thread].wait.signal();
                if self.threads[thread].execution.in_pass() {
                    self.wake_thread(thread);
                }
            }
            Fault::Hold(cpu, time) => self.interrupt(usize::from(cpu), Source::Occupied(time)),
            Fault::LinkDown(time) => self.link.go_down(self.now + time),
            Fault::AlwaysReady(epoll, time) => self.always_ready(epoll, self.now + time),
        }
    }

    /// Closes an epoll context: its waiter waits no longer, and queues that it suspends resume at once (invariant 6).
    pub fn close_epoll(&mut self, epoll: u32) {
        self.catch_up_all();
        self.sockets.close(epoll);
        let op = self.contexts[epoll as usize].close(self.host, RaisedFrom::Application);
        // Only this context's part ends; others may continue to suspend their queues.
        if let Some(id) = self.contexts[epoll as usize].follows() {
            self.checks.record_violation(format!("invariant 6: closed, and follows {id:?} still"));
        }
        self.raise_from_outside(op);
    }

    /// Closes the epoll context that a thread waits on, if it has one, as when the thread exits.
    pub fn close_epoll_of(&mut self, thread: ThreadId) {
        if let Some(epoll) = self.threads[thread].wait.leave_epoll() {
            self.close_epoll(epoll);
        }
    }

    /// Schedules the queues that have work, no owner and no poll since the last run.
    pub(crate) fn watchdog(&mut self) {
        for index in 0..self.queues.len() {
            let id = Id(index as u16);
            let state = self.host.instance(id).state();
            let queue = &mut self.queues[index];
            let polls = self.host.instance(id).counts().all_polls();
            if queue.check_stuck(polls, state.has(SCHED)) {
                let op = self.host.schedule(id, RaisedFrom::Interrupt);
                self.raise_from_outside(op);
            }
        }
        if self.faults.watchdog > 0 {
            let at = self.now + self.faults.watchdog;
            self.events.schedule(at, Event::Watchdog);
        }
    }
}
