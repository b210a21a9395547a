//! What may go wrong, or be changed, while a machine runs: asked for at a virtual time.
//!
//! Faults are how a swarm shakes the core: interrupts that are lost or late, applications that
//! stall, epoll contexts that vanish, modes that change under load, a link that flaps. A lost
//! interrupt is found by a slow watchdog, as drivers have; it schedules a queue that has frames,
//! no owner and no progress since it last looked.

use napkin_core::state::SCHED;
use napkin_core::{Id, Ns, RaisedFrom};
use napkin_policy::{InstancePolicy, Threaded};

use crate::cpu::Source;
use crate::events::Event;
use crate::machine::Machine;
use crate::thread::ThreadId;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The queue's next interrupt never reaches its CPU.
    LoseInterrupt(u16),
    /// The queue's next interrupt is late by so much.
    DelayInterrupt(u16, Ns),
    /// The thread does nothing but compute for so long when it next runs.
    Stall(ThreadId, Ns),
    /// The epoll context goes away: its application has exited, or closed it.
    CloseEpoll(u32),
    /// The instance's settings change.
    Set(u16, InstancePolicy),
    /// The instance is disabled, and enabled again so long after that.
    Disable(u16, Ns),
    /// A signal reaches the thread: its wait ends without events.
    Signal(ThreadId),
    /// Frames to the host are lost for so long.
    LinkDown(Ns),
    /// Something that is not modelled keeps the CPU for so long, with its interrupts off.
    Hold(u16, Ns),
    /// The epoll context's ready list does not run empty for so long.
    AlwaysReady(u32, Ns),
}

/// Who polls in a mode.
fn owner(mode: Threaded) -> Threaded {
    if mode == Threaded::BusyPoll { Threaded::Enabled } else { mode }
}

impl Machine<'_> {
    /// Asks for a fault.
    pub fn fault_at(&mut self, at: Ns, fault: Fault) {
        self.faults.push(fault);
        let token = self.faults.len() as u64 - 1;
        self.events.at(at.max(self.now), Event::Fault { token });
    }

    /// Starts the watchdog that finds what a lost interrupt was for, or changes its period, from the
    /// next time on that it looks. 0: it looks no more.
    pub fn set_watchdog(&mut self, period: Ns) {
        let runs = std::mem::replace(&mut self.watchdog, period) > 0;
        if period > 0 && !runs {
            self.events.at(self.now + period, Event::Watchdog);
        }
    }

    pub(crate) fn fault(&mut self, token: u64) {
        let Some(fault) = self.faults.get(token as usize).copied() else { return };
        match fault {
            Fault::LoseInterrupt(queue) => self.queues[usize::from(queue)].lose_next = true,
            Fault::DelayInterrupt(queue, by) => self.queues[usize::from(queue)].late_by = by,
            Fault::Stall(thread, time) => self.threads[thread.0 as usize].stall = time,
            Fault::CloseEpoll(epoll) => self.close_epoll(epoll),
            Fault::Set(queue, settings) => {
                let id = Id(queue);
                // A timeout in force now may outlast a shorter one that replaces it.
                let old = self.host.instance(id).settings();
                self.longest_timeout = self
                    .longest_timeout
                    .max(old.irq_suspend_timeout)
                    .max(old.gro_flush_timeout)
                    .max(old.park_timeout());
                let set = self.host.set(id, &settings);
                debug_assert!(set.is_ok(), "{set:?}");
                let polls = self.polls_by(id, old.threaded);
                self.queues[usize::from(queue)].changed =
                    // With or without busy polling, the thread is the same owner.
                    (owner(settings.threaded) != owner(old.threaded))
                        .then_some((old.threaded, polls));
            }
            Fault::Disable(queue, stays) => self.disable(Id(queue), stays),
            Fault::Signal(thread) => {
                self.threads[thread.0 as usize].interrupted = true;
                if self.threads[thread.0 as usize].pass.is_some() {
                    self.wake_thread(thread);
                }
            }
            Fault::Hold(cpu, time) => self.interrupt(usize::from(cpu), Source::Held(time)),
            Fault::LinkDown(time) => self.link_down_until = self.now + time,
            Fault::AlwaysReady(epoll, time) => self.always_ready(epoll, self.now + time),
        }
    }

    /// An epoll context goes away: nobody waits on it any more, and what it suspends resumes at
    /// once (invariant 6).
    pub fn close_epoll(&mut self, epoll: u32) {
        let ready = &mut self.ready[epoll as usize];
        ready.waiter = None;
        for socket in &mut self.sockets {
            if socket.epoll == Some(epoll) {
                socket.open = false;
            }
        }
        let op = self.contexts[epoll as usize].close(self.host, RaisedFrom::Application);
        // Of this context's part; others may go on with theirs.
        if let Some(id) = self.contexts[epoll as usize].follows() {
            self.broken.get_or_insert(format!("invariant 6: closed, and follows {id:?} still"));
        }
        self.raise_from_outside(op);
    }

    /// The epoll context that a thread waits on goes away, if it has one: the thread exits.
    pub fn close_epoll_of(&mut self, thread: ThreadId) {
        if let Some(epoll) = self.threads[thread.0 as usize].epoll.take() {
            self.close_epoll(epoll);
        }
    }

    /// Looks for queues that nobody will ever serve.
    pub(crate) fn watchdog(&mut self) {
        for index in 0..self.queues.len() {
            let id = Id(index as u16);
            let state = self.host.instance(id).state();
            let queue = &mut self.queues[index];
            let polls = self.host.instance(id).counts().all_polls();
            let stuck = queue.waits() && !state.has(SCHED) && queue.polls_seen == polls;
            queue.polls_seen = polls;
            if stuck {
                queue.lost = false;
                queue.counts.watchdog += 1;
                let op = self.host.schedule(id, RaisedFrom::Interrupt);
                self.raise_from_outside(op);
            }
        }
        if self.watchdog > 0 {
            let at = self.now + self.watchdog;
            self.events.at(at, Event::Watchdog);
        }
    }
}
