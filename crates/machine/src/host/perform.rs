//! Executes each `Op` of a pass: spends its cost, then takes its effect.
//!
//! A step has parts. Each part is first paid for and then takes effect, so that events in between (a frame that
//! arrives during a poll, an interrupt between two frames) find the right state.

use napkin_core::{CpuId, Did, EpollWait, Id, Ns, Op, SocketWait, Task, Work};
use napkin_policy::ApplicationPolicy;

use crate::counts::CurrentTask;
use crate::events::Event;
use crate::host::contexts::Body;
use crate::host::execution::ThreadPass;
use crate::host::segment::Use;
use crate::host::speed::STOPPED;
use crate::host::step::Exec;
use crate::host::step::{At, Next};
use crate::machine::Machine;
use crate::net::packet::Kind;
use crate::sched::id::{Role, State, ThreadId};
use crate::trace::Mark;

// Stages of a poll and of a delivery.
const FRAMES: u8 = 2;
const TAKEN: u8 = 3;
const HAND_UP: u8 = 4;
const HANDED: u8 = 5;
const WAKE: u8 = 6;
const SEND: u8 = 7;

impl Machine<'_> {
    /// Performs the next part of the step in progress.
    #[inline(always)]
    pub(super) fn perform(
        &mut self,
        cpu: usize,
        at: At,
        exec: &mut Exec,
        op: Op,
        class: Use,
    ) -> Next {
        let cost = &self.config.cost;
        match op {
            Op::Poll { id, budget } => self.poll(cpu, at, exec, (id, budget), class),
            Op::Deliver(id) => self.deliver(cpu, exec, id, class),
            Op::Mask(id) => match exec.stage {
                0 => exec.pay(cost.mask, class),
                _ => {
                    self.queues[usize::from(id.0)].mask();
                    self.trace.masked(usize::from(id.0), self.now, true);
                    Next::Did(Did::Ok)
                }
            },
            Op::Unmask(id) => match exec.stage {
                0 => exec.pay(cost.unmask, class),
                _ => Next::Did(Did::Unmasked(self.unmask(usize::from(id.0)))),
            },
            Op::Arm { id, at: deadline } => match exec.stage {
                0 => {
                    let time = cost.timer_arm;
                    // The deadline counts from the start of this step, not from the end of its cost.
                    self.queues[usize::from(id.0)].timer_starts(cpu);
                    self.trace.mark(cpu, self.now, Mark::TimerArmed(id.0, deadline));
                    self.arm(usize::from(id.0), deadline);
                    exec.pay(time, class)
                }
                _ => Next::Did(Did::Ok),
            },
            Op::Wake(task) => match exec.stage {
                0 => exec.pay(cost.wake, class),
                _ => {
                    self.wake_task(cpu, task);
                    Next::Did(Did::Ok)
                }
            },
            Op::Raise(target) => {
                self.raise_softirq(cpu, usize::from(target.0));
                Next::Did(Did::Ok)
            }
            Op::RunHere(target) => Next::Nested(target),
            Op::Vector(..) => match exec.stage {
                0 => {
                    let time = cost.vector;
                    if let At::Thread(me) = at {
                        self.cpus[cpu]
                            .add_empty_poll_time(self.threads[me].execution.round.close_poll());
                    }
                    exec.pay(time, class)
                }
                _ => Next::Did(Did::Ok),
            },
            Op::Look => match exec.stage {
                0 => {
                    exec.bh_disabled = false;
                    exec.pay(cost.look, class)
                }
                _ => self.look(cpu, at),
            },
            Op::Resched | Op::Yield | Op::Pause => match exec.stage {
                0 => {
                    exec.bh_disabled = false;
                    let time = match self.role(at) {
                        Some(Role::Ksoftirqd(_)) => cost.ksoftirqd_loop,
                        Some(Role::Worker) if self.host.work_waits() => {
                            let time = cost.worker_loop + cost.wake;
                            // An unbound workqueue pool does not track its running workers: each queued item wakes an
                            // idle one, although this worker goes on.
                            self.wake_task(cpu, Task::Worker);
                            time
                        }
                        Some(Role::Worker) => cost.worker_loop,
                        Some(Role::Napi(_)) => cost.kthread_loop,
                        _ => 0,
                    };
                    exec.pay(time, class)
                }
                _ => {
                    let this = &self.cpus[cpu];
                    let others = this.run_queue.waiting() > 0;
                    let wanted = this.run_queue.need_resched() || (op == Op::Yield && others);
                    if wanted { Next::Yielded } else { Next::Did(Did::Ok) }
                }
            },
            Op::Sleep(until) => match self.role(at) {
                Some(Role::Napi(_)) if exec.stage == 0 => exec.pay(cost.kthread_sleep, class),
                _ => self.sleep(cpu, at, exec, until),
            },
            Op::Done => {
                exec.bh_disabled = false;
                Next::Ended
            }
        }
    }

    #[inline]
    fn role(&self, at: At) -> Option<Role> {
        match at {
            At::Context => None,
            At::Thread(me) => Some(self.threads[me].role()),
        }
    }

    #[inline(always)]
    fn poll(
        &mut self,
        cpu: usize,
        at: At,
        exec: &mut Exec,
        (id, budget): (Id, u16),
        class: Use,
    ) -> Next {
        let index = usize::from(id.0);
        loop {
            let time = match exec.stage {
                0 => self.begin_poll(cpu, at, exec, id),
                1 => {
                    (exec.tx, exec.again) = self.reap(index);
                    let sends = self.queues[index].has_outgoing();
                    exec.stage = if sends { SEND } else { FRAMES };
                    let first = if sends { self.config.cost.send_frame } else { 0 };
                    let time = Ns::from(exec.tx) * self.config.cost.poll_completion + first;
                    if time == 0 {
                        continue;
                    }
                    time
                }
                SEND => {
                    if let Some(packet) = self.queues[index].next_to_send() {
                        self.transmit(id.0, packet);
                    }
                    if !self.queues[index].has_outgoing() {
                        exec.stage = FRAMES;
                        continue;
                    }
                    self.config.cost.send_frame
                }
                FRAMES => {
                    let queue = &mut self.queues[index];
                    let packet = if exec.rx < budget { queue.take() } else { None };
                    let Some(packet) = packet else {
                        return self.polled(cpu, at, exec, id, budget);
                    };
                    let merged = Ns::from(packet.segments() - 1) * self.config.cost.segment;
                    let depth = queue.depth();
                    self.trace.depth(index, self.now, depth);
                    exec.rx += 1;
                    exec.stage = TAKEN;
                    self.config.cost.poll_frame + merged
                }
                TAKEN => {
                    let batch = usize::from(self.config.nic.gro_batch);
                    if batch == 0 || self.queues[index].taken() < batch {
                        exec.stage = FRAMES;
                        continue;
                    }
                    exec.stage = HAND_UP;
                    self.config.cost.deliver
                }
                _ => match self.hand_up_a_batch(cpu, exec, index) {
                    Some(time) => time,
                    None => {
                        exec.stage = FRAMES;
                        continue;
                    }
                },
            };
            if let Some(over) = self.pay_part(cpu, time, class) {
                return Next::Paid(over);
            }
        }
    }

    /// Ends a poll that has emptied the ring or used its budget.
    #[inline(always)]
    fn polled(&mut self, cpu: usize, at: At, exec: &Exec, id: Id, budget: u16) -> Next {
        let (work, again) = (Work { rx: exec.rx, tx: exec.tx }, exec.again);
        let reported = self.reported_work(cpu, id, budget, work.rx, again);
        self.queues[usize::from(id.0)].polled(self.now);
        if work.rx > 0 {
            self.check_round_of(cpu, at, id, (work.rx, reported), budget);
        }
        match at {
            At::Thread(me) => self.threads[me].execution.round.polled(work.any()),
            // In a softirq only the poll itself counts as empty; its overhead and the interrupt's count as work.
            At::Context if !work.any() => {
                let (this, poll) = (&mut self.cpus[cpu], self.config.cost.poll);
                // Wall time, as in a thread's round. A CPU that is stopped now had the shared clock until now.
                let time = if this.dilation < STOPPED { this.wall_time(poll) } else { poll };
                this.add_empty_poll_time(time);
            }
            At::Context => {}
        }
        if self.trace.is_some() {
            // A poll by the application does not hold.
            let holds = self.role(at) != Some(Role::Application)
                && self.host.instance(id).settings().hold > 0;
            self.trace.polled(cpu, id, self.now, work, holds);
        }
        if self.counts_polls_of(id) {
            let who = self.who(cpu);
            *self.detailed_counts.polls.entry((who, budget, work.rx)).or_insert(0) += 1;
        }
        Next::Did(Did::Polled(Work { rx: reported, ..work }))
    }

    /// Checks the softirq's round that a poll belongs to (invariant 5).
    #[inline(always)]
    fn check_round_of(
        &mut self,
        cpu: usize,
        at: At,
        id: Id,
        (rx, reported): (u16, u16),
        budget: u16,
    ) {
        // Not always this CPU's: a thread that has migrated runs the softirq of the CPU on which its call began.
        let of = match at {
            At::Context => match self.cpus[cpu].contexts.top().map(|context| &context.body) {
                Some(Body::Softirq(softirq)) => softirq.cpu(),
                _ => return,
            },
            At::Thread(me) => match &self.threads[me].execution.pass {
                Some(ThreadPass::Softirq(softirq)) => softirq.cpu(),
                _ => return,
            },
        };
        self.check_round(of, id, (rx, reported), budget);
    }

    /// Returns the kind of the current task of a CPU.
    pub(super) fn who(&self, cpu: usize) -> CurrentTask {
        let Some(curr) = self.cpus[cpu].run_queue.curr() else { return CurrentTask::Idle };
        match self.threads[curr].role() {
            Role::Ksoftirqd(_) => CurrentTask::Ksoftirqd,
            Role::Napi(_) => CurrentTask::Kthread,
            Role::Worker => CurrentTask::Worker,
            Role::Application => CurrentTask::App,
        }
    }

    /// Begins a poll. Returns the cost of its first part.
    #[inline]
    fn begin_poll(&mut self, cpu: usize, at: At, exec: &mut Exec, id: Id) -> Ns {
        if let At::Thread(me) = at {
            self.cpus[cpu].add_empty_poll_time(self.threads[me].execution.round.begin_poll());
        }
        (exec.rx, exec.tx, exec.again) = (0, 0, false);
        exec.bh_disabled = true;
        exec.stage = 1;
        let mut time = self.config.cost.poll;
        if !exec.claimed && self.role(at) == Some(Role::Application) {
            time += self.config.cost.claim;
        }
        exec.claimed = true;
        if self.queues[usize::from(id.0)].record_polling_cpu(cpu) {
            time += self.config.locality.queue;
        }
        time
    }

    /// Returns the cost of handing up the next frame of the batch; `None` if the batch is empty.
    #[inline(always)]
    fn frame_cost(&mut self, index: usize, cpu: usize) -> Option<Ns> {
        let packet = self.queues[index].next_taken()?;
        let cost = &self.config.cost;
        let time = if packet.kind == Kind::Ack { cost.deliver_ack } else { cost.deliver_frame };
        let flow = packet.flow;
        Some(time + self.fetch_flow(flow, cpu))
    }

    /// [`Machine::hand_up`] out of line, for polls with small batches.
    #[inline(never)]
    fn hand_up_a_batch(&mut self, cpu: usize, exec: &mut Exec, index: usize) -> Option<Ns> {
        self.hand_up(cpu, exec, index)
    }

    /// Hands the batch to the stack, frame by frame. Returns the cost of the next part; `None` once the batch is
    /// empty.
    #[inline(always)]
    fn hand_up(&mut self, cpu: usize, exec: &mut Exec, index: usize) -> Option<Ns> {
        loop {
            match exec.stage {
                HAND_UP => {
                    let time = self.frame_cost(index, cpu)?;
                    exec.stage = HANDED;
                    return Some(time);
                }
                HANDED => {
                    exec.wakes = self.deliver_one(index, cpu);
                    if exec.wakes.is_some() {
                        exec.stage = WAKE;
                        return Some(self.config.cost.wake);
                    }
                    exec.stage = HAND_UP;
                }
                _ => {
                    exec.stage = HAND_UP;
                    if let Some(thread) = exec.wakes.take() {
                        self.wake_from(cpu, thread);
                    }
                }
            }
        }
    }

    fn deliver(&mut self, cpu: usize, exec: &mut Exec, id: Id, class: Use) -> Next {
        let index = usize::from(id.0);
        loop {
            let time = if exec.stage == 0 {
                exec.stage = HAND_UP;
                let empty = self.queues[index].taken() == 0;
                if empty { 0 } else { self.config.cost.deliver }
            } else {
                match self.hand_up(cpu, exec, index) {
                    Some(time) => time,
                    None => return Next::Did(Did::Delivered(self.pressure(index))),
                }
            };
            if let Some(over) = self.pay_part(cpu, time, class) {
                return Next::Paid(over);
            }
        }
    }

    /// Checks what the application's wait has found.
    fn look(&mut self, cpu: usize, at: At) -> Next {
        let At::Thread(me) = at else { return Next::Did(Did::Events(0)) };
        if self.threads[me].wait.take_signal() {
            return Next::Did(Did::Interrupted);
        }
        let found = self.found(me);
        let gives_way = found == 0 && self.cpus[cpu].run_queue.need_resched();
        Next::Did(if gives_way { Did::Resched } else { Did::Events(found) })
    }

    pub(crate) fn found(&self, me: ThreadId) -> u32 {
        let thread = &self.threads[me];
        match (thread.wait.epoll(), thread.wait.socket()) {
            (Some(epoll), _) => self.sockets.events(epoll, self.now).min(thread.wait.max_events()),
            (None, Some(socket)) => self.waiting(socket),
            (None, None) => 0,
        }
    }

    fn sleep(&mut self, cpu: usize, at: At, exec: &mut Exec, until: Ns) -> Next {
        let At::Thread(me) = at else { return Next::Did(Did::Ok) };
        exec.bh_disabled = false;
        if self.cpus[cpu].raised && !self.cpus[cpu].in_softirq() {
            // Bottom halves are enabled again: a raised softirq runs before the thread sleeps.
            self.cpus[cpu].raised = false;
            return Next::Nested(CpuId(cpu as u16));
        }
        let thread = &mut self.threads[me];
        let mut ready = thread.take_woken();
        match thread.role() {
            Role::Application => ready |= self.found(me) > 0,
            Role::Worker => ready |= self.host.work_waits(),
            _ => {}
        }
        if ready || until <= self.now {
            return Next::Did(Did::Ok);
        }
        (exec.op, exec.did) = (None, Did::Ok);
        self.block(cpu, me, until);
        Next::Blocked
    }

    pub(crate) fn begin_epoll(&mut self, me: ThreadId, timeout: Option<Ns>, max_events: u32) {
        let Some(epoll) = self.threads[me].wait.epoll() else { return };
        self.next_round(me);
        let context = &self.contexts[epoll as usize];
        let spin = self.policy().application.spin;
        let thread = &mut self.threads[me];
        thread.wait.begin_epoll(max_events);
        thread.take_woken();
        thread.execution.pass =
            Some(ThreadPass::Epoll(EpollWait::new(self.host, context, timeout, spin)));
    }

    pub(super) fn begin_receive(&mut self, me: ThreadId, timeout: Option<Ns>) {
        self.next_round(me);
        let policy: ApplicationPolicy = self.policy().application;
        let napi = self.threads[me].wait.socket().and_then(|socket| self.incoming_napi(socket));
        let thread = &mut self.threads[me];
        thread.take_woken();
        thread.execution.pass =
            Some(ThreadPass::Socket(SocketWait::new(self.host, policy, napi, timeout)));
    }

    pub(super) fn epoll_returned(&mut self, me: ThreadId) {
        let thread = &self.threads[me];
        let (events, epoll) = (thread.wait.found(), thread.wait.epoll());
        if events == 0 {
            return;
        }
        if let Some(epoll) = epoll {
            self.sockets.returned(epoll, events);
        }
        if self.detailed_counts.detailed {
            *self.detailed_counts.returns.entry(events).or_insert(0) += 1;
        }
    }

    /// Raises a softirq on a CPU, with an IPI if another CPU raises it.
    pub(crate) fn raise_softirq(&mut self, by: usize, target: usize) {
        self.catch_up(target);
        self.cpus[target].raised = true;
        if target != by {
            let at = self.now + self.config.cost.ipi;
            self.events.schedule(at, Event::Reschedule { cpu: target as u16 });
        }
    }

    /// Performs an operation that comes from no modelled CPU: raises a softirq, or wakes a task.
    pub(crate) fn raise_from_outside(&mut self, op: Option<Op>) {
        match op {
            Some(Op::Raise(cpu) | Op::RunHere(cpu)) => {
                self.catch_up(usize::from(cpu.0));
                self.cpus[usize::from(cpu.0)].raised = true;
                self.events.schedule(self.now, Event::Reschedule { cpu: cpu.0 });
            }
            Some(Op::Wake(task)) => {
                if let Some(thread) = self.kernel_threads.of(task, 0, &self.threads) {
                    self.wake_thread(thread);
                }
            }
            _ => {}
        }
    }

    /// Whether a thread sleeps.
    pub fn asleep(&self, thread: ThreadId) -> bool {
        self.state_of(thread) == State::Sleeping
    }
}
