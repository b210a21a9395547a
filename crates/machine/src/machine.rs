//! The machine: a host, its link and the peer, in virtual time.
//!
//! Events are handled in order of time. Each makes at most one CPU run, and that CPU runs on without the event queue
//! until the next pending event. The core makes all decisions of packet delivery; this file and its neighbours model
//! what the decisions cost and what they act on.
//!
//! The machine holds the clients and programs and is passed to them. So this file, `client.rs` and `sched/thread.rs`
//! depend on each other, and with the threads all files that use one (the CPU, the run queue, the kernel's own
//! threads).

use napkin_core::{CpuId, EpollContext, Host, Id, Limits, MILLISECOND, NEVER, Ns};
use napkin_policy::Policy;

use crate::abort::Flag;
use crate::checks::Checks;
use crate::client::Client;
use crate::config::Config;
use crate::counts::{DetailedCounts, QueueCounts};
use crate::disabling::Disabling;
use crate::events::{Event, Events};
use crate::fault::Faults;
use crate::host::clock::Clock;
use crate::host::contexts::Source;
use crate::host::cpu::Cpu;
use crate::host::execution::Execution;
use crate::net::NicQueue;
use crate::net::link::Link;
use crate::net::sockets::Sockets;
use crate::sched::id::{Affinity, Class, Role, ThreadId};
use crate::sched::kernel_threads::KernelThreads;
use crate::sched::thread::{Program, Thread};
use crate::sched::threads::Threads;
use crate::snapshot::Snapshot;
use crate::trace::Trace;
use crate::tracer::Tracer;
use napkin_traffic::Histogram;
use napkin_traffic::Rng;

/// One run of one host under one policy.
///
/// Build it, add sockets, flows and threads, then let virtual time pass with [`Machine::run`].
#[derive(Debug)]
pub struct Machine<'a> {
    pub(crate) config: Config,
    policy: Policy,
    pub(crate) host: &'a Host<()>,
    pub(crate) contexts: &'a [EpollContext],
    pub(crate) now: Ns,
    pub(crate) end: Ns,
    pub(crate) events: Events,
    pub(crate) cpus: Vec<Cpu<'a>>,
    pub(crate) threads: Threads<'a>,
    pub(crate) queues: Vec<NicQueue>,
    pub(crate) sockets: Sockets,
    pub(crate) link: Link,
    pub(crate) kernel_threads: KernelThreads,
    client: Option<Box<dyn Client>>,
    pub(crate) clock: Clock,
    rng: Rng,
    pub(crate) steps: u64,
    /// Whether spinning threads and expiries of idle CPUs' timers are skipped in bulk instead of stepped.
    pub(crate) skip: bool,
    started: bool,
    pub(crate) trace: Tracer,
    /// Latencies that the client or a program has recorded.
    latency: Histogram,
    /// Requests that have fallen due, as reported by the client or a program.
    due: u64,
    pub(crate) detailed_counts: DetailedCounts,
    /// The CPU that is being stepped.
    pub(crate) running_cpu: u16,
    abort: Flag,
    pub(crate) checks: Checks,
    pub(crate) faults: Faults,
    /// Disables in progress, by instance.
    pub(crate) disabling: Vec<Option<Disabling<'a>>>,
}

/// The assignment of a host's queues and threads to CPUs.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The CPU of each queue's interrupt.
    pub queue_cpus: Vec<u16>,
    /// Affinity of each instance's own thread; without an entry the thread may run anywhere.
    pub napi_threads: Vec<Affinity>,
    /// Scheduling class of the instances' own threads.
    pub napi_class: Class,
    /// Affinity of the worker pool.
    pub workers: Affinity,
}

impl Placement {
    /// Places queue `i` and its thread on CPU `i`, modulo the number of CPUs.
    pub fn aligned(queues: u16, cpus: u16) -> Self {
        Placement {
            queue_cpus: (0..queues).map(|queue| queue % cpus).collect(),
            napi_threads: (0..queues).map(|queue| Affinity::pinned(queue % cpus)).collect(),
            napi_class: Class::Fair,
            workers: Affinity { first: 0, last: cpus - 1 },
        }
    }

    /// Creates the core's host for this placement.
    pub fn host(&self, cpus: u16) -> Host<()> {
        let host = Host::new(cpus, self.queue_cpus.iter().map(|&cpu| ((), CpuId(cpu))));
        host.contexts_share_a_thread();
        host
    }
}

impl<'a> Machine<'a> {
    /// Creates a host at virtual time 0, with its instances enabled under the policy, and without sockets and
    /// application threads.
    pub fn new(
        config: Config,
        policy: Policy,
        placement: &Placement,
        host: &'a Host<()>,
        contexts: &'a [EpollContext],
        client: Box<dyn Client>,
        seed: u64,
    ) -> Self {
        let cpus = config.processor.cpus;
        let mut rng = Rng::new(seed);
        let mut threads = Threads::default();
        let kernel_threads = KernelThreads::new(placement, cpus, host, &mut threads);
        let mut machine = Machine {
            config,
            policy,
            host,
            contexts,
            now: 0,
            end: 0,
            events: Events::new(),
            cpus: (0..cpus).map(|_| Cpu::new()).collect(),
            threads,
            queues: placement.queue_cpus.iter().map(|_| NicQueue::new(&config.nic)).collect(),
            sockets: Sockets::new(contexts.len()),
            link: Link::default(),
            kernel_threads,
            client: Some(client),
            clock: Clock::new(),
            rng: rng.split(),
            steps: 0,
            skip: true,
            started: false,
            trace: Tracer::default(),
            latency: Histogram::default(),
            due: 0,
            detailed_counts: DetailedCounts::default(),
            running_cpu: 0,
            abort: Flag::of_this_thread(),
            checks: Checks::default(),
            faults: Faults::default(),
            disabling: placement.queue_cpus.iter().map(|_| None).collect(),
        };
        machine.set_policy(&policy);
        host.set_rules(config.kernel.rules);
        for id in host.ids() {
            host.set_order(id, config.nic.order);
            machine.enable(id);
        }
        machine
    }

    /// Sets the policy on every instance and CPU; the caller has set that of the epoll contexts.
    fn set_policy(&mut self, policy: &Policy) {
        let tick = self.config.kernel.tick;
        for cpu in 0..self.host.cpus() {
            let mut rules = policy.cpu;
            rules.inline_while_ksoftirqd &= self.config.kernel.inline_while_ksoftirqd;
            self.host.cpu(CpuId(cpu)).set_policy(rules);
            // The kernel counts in jiffies: 2 of them, and 2 ms rounded up to at least one.
            self.host.cpu(CpuId(cpu)).set_limits(Limits {
                budget_time: 2 * tick,
                dispatch_time: (2 * MILLISECOND).max(tick),
                ..Limits::default()
            });
        }
        for id in self.host.ids() {
            // The policy has been validated before.
            let set = self.host.set(id, &policy.instance);
            debug_assert!(set.is_ok(), "{set:?}");
        }
    }

    /// Adds a thread of an application, asleep; [`Machine::wake_thread`] starts it.
    pub fn add_thread(
        &mut self,
        name: &str,
        affinity: Affinity,
        class: Class,
        program: Box<dyn Program>,
    ) -> ThreadId {
        let execution = Execution::of_program(program);
        let (name, role) = (name.to_owned(), Role::Application);
        self.threads.add(Thread::new(name, role, class, affinity, execution))
    }

    /// Returns virtual time, in nanoseconds from the start.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// Returns the configuration of the host and its costs.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the policy that the host was built with.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the machine's own random number generator.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Returns a measure of the machine's memory: pending events, and slots for frames. It must not grow with virtual
    /// time.
    pub fn items_kept(&self) -> usize {
        let queues: usize = self.queues.iter().map(NicQueue::kept).sum();
        self.events.len() + self.link.kept() + queues + self.sockets.kept()
    }

    /// Returns the number of events and steps handled so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Records a latency in nanoseconds; the caller defines what it is of, a request or a frame.
    pub fn record(&mut self, nanoseconds: Ns) {
        self.latency.add(nanoseconds);
    }

    /// Counts a request that falls due now.
    pub fn request_due(&mut self) {
        self.due += 1;
    }

    /// Returns the requests that have fallen due since the window began.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Returns the latencies recorded since the window began.
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    /// Begins a window: clears the latencies and the count of requests.
    pub fn restart_latency(&mut self) {
        self.latency.clear();
        self.due = 0;
    }

    /// Tells the client that the window has ended.
    pub fn end_client(&mut self) {
        let end = self.end;
        self.with_client(|client, _| client.end(end));
    }

    /// Attaches a trace, which replaces the previous one.
    pub fn set_trace(&mut self, mut trace: Box<dyn Trace>) {
        self.catch_up_all();
        for (index, queue) in (0..).zip(self.queues.iter_mut()) {
            trace.depth(index, self.now, queue.depth());
            trace.masked(index, self.now, !queue.armed());
            queue.set_traced_suspension(false);
        }
        self.trace.set(trace);
        self.trace.suspensions(self.now, self.host, &mut self.queues);
    }

    /// Schedules a call of [`Client::timer`].
    pub fn client_timer(&mut self, at: Ns, token: u64) {
        self.events.schedule(at.max(self.now), Event::Client { token });
    }

    fn with_client(&mut self, act: impl FnOnce(&mut dyn Client, &mut Self)) {
        if let Some(mut client) = self.client.take() {
            act(&mut *client, self);
            self.client = Some(client);
        }
    }

    /// Runs until virtual time `end`, or until an invariant is violated.
    pub fn run(&mut self, end: Ns) {
        self.end = end;
        if !self.started {
            self.started = true;
            self.with_client(|client, machine| client.start(machine));
        }
        while self.events.next_time() <= end {
            self.steps += 1;
            if let Some((time, order, cpu)) = self.events.pop_segment_end() {
                self.advance_to(time);
                self.segment_due(usize::from(cpu), order);
                // The invariants are checked, and the abort flag is read, at the next other event, which follows
                // soon.
                if self.checks.after_every_event() {
                    self.check();
                    if self.broken().is_some() {
                        return;
                    }
                }
            } else {
                let Some((time, order, event)) = self.events.pop() else { break };
                self.advance_to(time);
                self.handle_event(event, order);
                self.check();
                if self.broken().is_some() {
                    return;
                }
                self.abort.check();
            }
            self.trace.suspensions(self.now, self.host, &mut self.queues);
        }
        self.now = self.now.max(end);
        self.check_queues();
        self.events.finish();
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
    }

    #[inline]
    fn advance_to(&mut self, time: Ns) {
        debug_assert!(time >= self.now, "time runs backwards");
        self.now = self.now.max(time);
    }

    fn handle_event(&mut self, event: Event, order: u64) {
        match event {
            Event::SegmentEnd { cpu } => self.segment_due(usize::from(cpu), order),
            Event::Arrive { packet } => {
                let packet = self.link.take(packet);
                self.arrive(packet);
            }
            Event::ReachPeer { packet } => {
                let packet = self.link.take(packet);
                self.with_client(|client, machine| client.receive(machine, packet));
            }
            Event::Transmitted { queue } => self.transmitted(usize::from(queue)),
            Event::ModerationTimer { queue, generation } => {
                self.moderation_expires(usize::from(queue), generation);
            }
            Event::TxModerationTimer { queue, generation } => {
                self.tx_moderation_expires(usize::from(queue), generation);
            }
            Event::InterruptLine { queue } => {
                let id = Id(queue);
                self.queues[usize::from(queue)].line_arrived();
                let cpu = usize::from(self.host.instance(id).cpu().0);
                self.interrupt(cpu, Source::Queue(id));
            }
            Event::Timer { queue } => self.timer_fires(usize::from(queue)),
            Event::Tick { cpu } => self.tick_fires(usize::from(cpu)),
            Event::SliceEnd { cpu, generation } => {
                let cpu = usize::from(cpu);
                if self.cpus[cpu].run_queue.slice_expires(generation) {
                    self.interrupt(cpu, Source::SliceEnd);
                }
            }
            Event::Reschedule { cpu } => self.interrupt(usize::from(cpu), Source::Reschedule),
            Event::Wake { thread, generation } => {
                let thread = ThreadId(thread);
                if self.threads[thread].is_same_sleep(generation) {
                    self.wake_thread(thread);
                }
            }
            Event::Client { token } => {
                self.with_client(|client, machine| client.timer(machine, token));
            }
            Event::SharedSliceEnd { generation } => self.shared_slice_ends(generation),
            Event::Control { queue } => {
                self.catch_up_all();
                self.control(Id(queue));
            }
            Event::Watchdog => {
                self.catch_up_all();
                self.watchdog();
            }
            Event::Fault { token } => {
                self.catch_up_all();
                self.fault(token);
            }
        }
    }

    /// Handles a timer event of an instance: the deadline is the core's, and may have moved since.
    fn timer_fires(&mut self, queue: usize) {
        let id = Id(queue as u16);
        // A redundant event may come while the CPU skips expiries of this timer.
        self.catch_up_expiries(queue);
        if !self.queues[queue].take_due_timer_check(self.now) {
            return;
        }
        let deadline = self.host.instance(id).deadline();
        if deadline <= self.now {
            let cpu = self.queues[queue].timer_cpu();
            if !self.skip_expiries(cpu, id) {
                self.interrupt(cpu, Source::Timer(id));
            }
        } else if deadline != NEVER {
            self.arm(queue, deadline);
        }
    }

    /// Ensures that an event checks the instance's timer by time `at`.
    pub(crate) fn arm(&mut self, queue: usize, at: Ns) {
        if self.queues[queue].request_timer_check(at) {
            self.events.schedule(at.max(self.now), Event::Timer { queue: queue as u16 });
        }
    }

    /// Returns all counts, up to date.
    pub fn snapshot(&mut self) -> Snapshot {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
        Snapshot::of(self.now, self.host, &self.cpus, &self.queues, &self.sockets)
    }

    /// Returns the time of a CPU by [`Use`](crate::Use), as last accounted.
    pub fn used(&self, cpu: u16) -> [Ns; crate::USES] {
        self.cpus[usize::from(cpu)].used()
    }

    /// Returns the detailed counts, to read them or to enable their collection.
    pub fn detailed_counts(&mut self) -> &mut DetailedCounts {
        &mut self.detailed_counts
    }

    /// Returns the number of frames in a queue's ring, or between a poll and their delivery.
    pub fn ring_depth(&self, queue: u16) -> usize {
        self.queues[usize::from(queue)].backlog()
    }

    /// Returns the card's counts of a queue since virtual time 0.
    pub fn queue_counts(&self, queue: u16) -> QueueCounts {
        *self.queues[usize::from(queue)].counts()
    }
}
