//! The machine: a host and its other side in virtual time.
//!
//! Events happen in order of time. Each gets at most one CPU going, and that CPU goes on without
//! the queue for as long as nothing else is due. All decisions of delivery are the core's; what is
//! here and in the files beside this one is what the decisions cost and what they happen to.

use napkin_core::policy::Policy;
use napkin_core::{
    CpuId, Did, Enable, EpollContext, Host, Id, Limits, MILLISECOND, NEVER, Ns, Op, Pass,
};

use crate::client::Client;
use crate::config::Config;
use crate::counts::{QueueCounts, Seen};
use crate::cpu::{Cpu, Source};
use crate::events::{Event, Events};
use crate::fault::Fault;
use crate::histogram::Histogram;
use crate::nic::NicQueue;
use crate::packet::Packet;
use crate::rng::Rng;
use crate::socket::{Flow, Ready, Socket};
use crate::thread::{Affinity, Class, Program, Role, State, Thread, ThreadId};
use crate::trace::Trace;

/// One run of one host under one policy.
///
/// Build it, add sockets, flows and threads, then let virtual time pass with [`Machine::run`].
#[derive(Debug)]
pub struct Machine<'a> {
    pub(crate) config: Config,
    pub(crate) policy: Policy,
    pub(crate) host: &'a Host<()>,
    pub(crate) contexts: &'a [EpollContext],
    pub(crate) now: Ns,
    pub(crate) end: Ns,
    pub(crate) events: Events,
    pub(crate) cpus: Vec<Cpu<'a>>,
    pub(crate) threads: Vec<Thread<'a>>,
    pub(crate) queues: Vec<NicQueue>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) ready: Vec<Ready>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) packets: Vec<Packet>,
    pub(crate) free_packets: Vec<u32>,
    pub(crate) ksoftirqds: Vec<ThreadId>,
    pub(crate) napi_threads: Vec<Option<ThreadId>>,
    pub(crate) workers: Vec<ThreadId>,
    pub(crate) client: Option<Box<dyn Client>>,
    /// When the link is free again, to the host and from it.
    pub(crate) link_in: Ns,
    pub(crate) link_out: Ns,
    pub(crate) busy_cpus: u16,
    /// The CPU that has the shared clock, and its slices so far.
    pub(crate) clock_turn: usize,
    pub(crate) clock_generation: u32,
    pub(crate) rng: Rng,
    pub(crate) steps: u64,
    /// Threads that poll in vain are skipped in bulk.
    pub(crate) skip: bool,
    pub(crate) started: bool,
    pub(crate) trace: Option<Box<dyn Trace>>,
    /// Latencies that the client or a program recorded.
    pub(crate) latency: Histogram,
    pub(crate) seen: Seen,
    /// The CPU that is being run.
    pub(crate) running_cpu: u16,
    /// The first invariant that did not hold.
    pub(crate) broken: Option<String>,
    pub(crate) checks_all: bool,
    /// The longest timeout that was in force before the present settings.
    pub(crate) longest_timeout: Ns,
    pub(crate) faults: Vec<Fault>,
    /// Period of the watchdog; 0: there is none.
    pub(crate) watchdog: Ns,
    pub(crate) link_down_until: Ns,
}

/// Where a host's queues and threads are.
#[derive(Debug, Clone)]
pub struct Placement {
    /// For each queue the CPU of its interrupt.
    pub queue_cpus: Vec<u16>,
    /// Where the instances' own threads may run; empty: each anywhere.
    pub napi_threads: Vec<Affinity>,
    /// Their class.
    pub napi_class: Class,
    /// Where the workers of the pool may run.
    pub workers: Affinity,
}

impl Placement {
    /// Queue `i` on CPU `i`, its thread there as well.
    pub fn aligned(queues: u16, cpus: u16) -> Self {
        Placement {
            queue_cpus: (0..queues).map(|queue| queue % cpus).collect(),
            napi_threads: (0..queues).map(|queue| Affinity::pinned(queue % cpus)).collect(),
            napi_class: Class::Fair,
            workers: Affinity { first: 0, last: cpus - 1 },
        }
    }

    /// The core's host for it.
    pub fn host(&self, cpus: u16) -> Host<()> {
        Host::new(cpus, self.queue_cpus.iter().map(|&cpu| ((), CpuId(cpu))))
    }
}

impl<'a> Machine<'a> {
    /// A host at virtual time 0, its instances enabled under the policy, without sockets and
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
        let mut machine = Machine {
            config,
            policy,
            host,
            contexts,
            now: 0,
            end: 0,
            events: Events::new(),
            cpus: (0..cpus).map(|_| Cpu::new()).collect(),
            threads: Vec::new(),
            queues: placement.queue_cpus.iter().map(|_| NicQueue::new(&config.nic)).collect(),
            sockets: Vec::new(),
            ready: contexts.iter().map(|_| Ready::default()).collect(),
            flows: Vec::new(),
            packets: Vec::new(),
            free_packets: Vec::new(),
            ksoftirqds: Vec::new(),
            napi_threads: Vec::new(),
            workers: Vec::new(),
            client: Some(client),
            link_in: 0,
            link_out: 0,
            busy_cpus: 0,
            clock_turn: 0,
            clock_generation: 0,
            rng: rng.split(),
            steps: 0,
            skip: true,
            started: false,
            trace: None,
            latency: Histogram::default(),
            seen: Seen::default(),
            running_cpu: 0,
            broken: None,
            checks_all: false,
            longest_timeout: 0,
            faults: Vec::new(),
            watchdog: 0,
            link_down_until: 0,
        };
        machine.set_policy(&policy);
        for cpu in 0..cpus {
            let role = Role::Ksoftirqd(cpu);
            let id = machine.kernel_thread(
                format!("ksoftirqd/{cpu}"),
                role,
                Class::Fair,
                Affinity::pinned(cpu),
            );
            machine.ksoftirqds.push(id);
        }
        for queue in 0..placement.queue_cpus.len() {
            let everywhere = Affinity { first: 0, last: cpus - 1 };
            let affinity = placement.napi_threads.get(queue).copied().unwrap_or(everywhere);
            let id = machine.kernel_thread(
                format!("napi/{queue}"),
                Role::Napi(queue as u16),
                placement.napi_class,
                affinity,
            );
            machine.napi_threads.push(Some(id));
        }
        for worker in 0..cpus {
            let mut affinity = placement.workers;
            affinity.last = affinity.last.min(cpus - 1);
            let id = machine.kernel_thread(
                format!("kworker/u:{worker}"),
                Role::Worker,
                Class::Fair,
                affinity,
            );
            machine.workers.push(id);
        }
        for id in host.ids() {
            host.set_order(id, config.nic.order);
            machine.enable(id);
        }
        machine
    }

    /// Sets the policy on every instance and CPU; the epoll contexts are the caller's.
    fn set_policy(&mut self, policy: &Policy) {
        let tick = self.config.kernel.tick;
        for cpu in 0..self.host.cpus() {
            let mut rules = policy.cpu;
            rules.inline_while_ksoftirqd &= self.config.kernel.inline_while_ksoftirqd;
            self.host.cpu(CpuId(cpu)).set_policy(rules);
            // The kernel reads jiffies: two of them, and 2 ms in whole ones.
            self.host.cpu(CpuId(cpu)).set_limits(Limits {
                budget_time: 2 * tick,
                dispatch_time: (2 * MILLISECOND).max(tick),
                ..Limits::default()
            });
        }
        for id in self.host.ids() {
            // A policy's own checks have let it in.
            let set = self.host.set(id, &policy.instance);
            debug_assert!(set.is_ok(), "{set:?}");
        }
    }

    /// Enables an instance before virtual time begins; costs nothing.
    fn enable(&mut self, id: Id) {
        let Ok(mut pass) = Enable::new(self.host, id) else { return };
        let mut did = Did::Start;
        loop {
            did = match pass.next(self.now, did) {
                Op::Unmask(id) => Did::Unmasked(self.queues[usize::from(id.0)].unmask()),
                Op::Mask(id) => {
                    self.queues[usize::from(id.0)].mask();
                    Did::Ok
                }
                Op::Done => return,
                _ => Did::Ok,
            };
        }
    }

    fn kernel_thread(
        &mut self,
        name: String,
        role: Role,
        class: Class,
        affinity: Affinity,
    ) -> ThreadId {
        let mut thread = Thread::new(name, role, class, affinity);
        thread.pass = Thread::loops(role, self.host);
        self.threads.push(thread);
        ThreadId(self.threads.len() as u32 - 1)
    }

    /// Adds a thread of an application, asleep; [`Machine::wake_thread`] lets it begin.
    pub fn add_thread(
        &mut self,
        name: &str,
        affinity: Affinity,
        class: Class,
        program: Box<dyn Program>,
    ) -> ThreadId {
        let mut thread = Thread::new(name.to_owned(), Role::Application, class, affinity);
        thread.program = Some(program);
        self.threads.push(thread);
        ThreadId(self.threads.len() as u32 - 1)
    }

    /// Adds a socket that holds so many frames; its place.
    pub fn add_socket(&mut self, capacity: u32) -> u32 {
        self.sockets.push(Socket::new(capacity, None, None));
        self.sockets.len() as u32 - 1
    }

    /// Lets a thread wait for a socket through an epoll context.
    pub fn watch(&mut self, thread: ThreadId, epoll: u32, socket: u32) {
        self.threads[thread.0 as usize].epoll = Some(epoll);
        self.ready[epoll as usize].waiter = Some(thread);
        self.sockets[socket as usize].epoll = Some(epoll);
    }

    /// Lets a thread wait for a socket by a receive call.
    pub fn own(&mut self, thread: ThreadId, socket: u32) {
        self.threads[thread.0 as usize].socket = Some(socket);
        self.sockets[socket as usize].waiter = Some(thread);
    }

    /// Binds a socket to a queue (AF_XDP): its receive calls busy poll that queue from the first.
    pub fn bind(&mut self, socket: u32, queue: u16) {
        self.sockets[socket as usize].napi = Some(Id(queue));
    }

    /// Adds a flow that arrives at a queue; without a socket its frames are counted and dropped.
    pub fn add_flow(&mut self, queue: u16, socket: Option<u32>) -> u32 {
        self.flows.push(Flow { queue, socket });
        self.flows.len() as u32 - 1
    }

    /// The queue at which a flow arrives.
    pub fn queue_of(&self, flow: u32) -> u16 {
        self.flows[flow as usize].queue
    }

    /// Virtual time.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The machine's own random numbers.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// What the machine keeps at this moment: events to come, frames in flight and room for
    /// frames. It must not grow with virtual time.
    pub fn kept(&self) -> usize {
        let rings: usize = self.queues.iter().map(|it| it.ring.capacity()).sum();
        let receivers: usize = self.queues.iter().map(|it| it.receivers.len()).sum();
        let sockets: usize = self.sockets.iter().map(|it| it.frames.capacity()).sum();
        self.events.len() + self.packets.len() + rings + receivers + sockets
    }

    /// Events and steps handled so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Records a latency.
    pub fn record(&mut self, nanoseconds: Ns) {
        self.latency.add(nanoseconds);
    }

    /// The latencies recorded since the window began.
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    /// Forgets the latencies recorded so far: the window begins.
    pub fn restart_latency(&mut self) {
        self.latency.clear();
    }

    /// Lets somebody watch from now on.
    pub fn set_trace(&mut self, mut trace: Box<dyn Trace>) {
        self.catch_up_all();
        for (index, queue) in (0..).zip(&self.queues) {
            trace.depth(index, self.now, queue.ring.len());
            trace.masked(index, self.now, !queue.armed);
        }
        self.trace = Some(trace);
    }

    /// Keeps a frame until an event needs it.
    pub(crate) fn store(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free_packets.pop() {
            self.packets[place as usize] = packet;
            return place;
        }
        self.packets.push(packet);
        self.packets.len() as u32 - 1
    }

    fn unstore(&mut self, place: u32) -> Packet {
        self.free_packets.push(place);
        self.packets[place as usize]
    }

    /// A frame of the other side, sent now: it reaches the host after the link.
    pub fn send_to_host(&mut self, packet: Packet) {
        self.send_to_host_at(self.now, packet);
    }

    /// A frame of a program of this host, sent by the thread that asks: it reaches the host itself.
    pub fn send_from(&mut self, thread: ThreadId, packet: Packet) {
        self.send_to_host(packet);
        self.touch_device(usize::from(self.threads[thread.0 as usize].cpu));
    }

    /// A frame of the other side, put on the wire at a time not before now.
    pub fn send_to_host_at(&mut self, time: Ns, packet: Packet) {
        if self.now < self.link_down_until {
            return;
        }
        let begin = time.max(self.link_in).max(self.now);
        let wire = (f64::from(packet.bytes) * 8.0 / self.config.link.bits_per_ns) as Ns;
        self.link_in = begin + wire;
        let arrives = begin + wire + self.config.link.latency + self.config.nic.dma;
        let packet = self.store(packet);
        self.events.at(arrives, Event::Arrive { packet });
    }

    /// A frame of the other side, put on the wire at a later time than now. It does not queue for the
    /// link, which those that are sent meanwhile share: right only where the link is mostly idle.
    pub fn send_to_host_later(&mut self, time: Ns, packet: Packet) {
        if self.now < self.link_down_until {
            return;
        }
        let wire = (f64::from(packet.bytes) * 8.0 / self.config.link.bits_per_ns) as Ns;
        let arrives = time.max(self.now) + wire + self.config.link.latency + self.config.nic.dma;
        let packet = self.store(packet);
        self.events.at(arrives, Event::Arrive { packet });
    }

    /// Asks that the client's timer be called.
    pub fn client_timer(&mut self, at: Ns, token: u64) {
        self.events.at(at.max(self.now), Event::Client { token });
    }

    fn with_client(&mut self, act: impl FnOnce(&mut dyn Client, &mut Self)) {
        if let Some(mut client) = self.client.take() {
            act(&mut *client, self);
            self.client = Some(client);
        }
    }

    /// Lets virtual time pass until `end`.
    pub fn run(&mut self, end: Ns) {
        self.end = end;
        if !self.started {
            self.started = true;
            self.with_client(|client, machine| client.start(machine));
        }
        while let Some(time) = self.events.next_time() {
            if time > end {
                break;
            }
            let Some((time, event)) = self.events.pop() else { break };
            debug_assert!(time >= self.now, "time runs backwards");
            self.now = self.now.max(time);
            self.steps += 1;
            self.happen(event);
            self.check();
            if self.broken.is_some() {
                return;
            }
        }
        self.now = self.now.max(end);
        self.events.all_over();
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Segment { cpu, generation } => {
                let cpu = usize::from(cpu);
                if self.cpus[cpu].generation == generation {
                    if self.cpus[cpu].spin.is_some() {
                        self.catch_up(cpu);
                    } else {
                        self.segment_ended(cpu);
                    }
                    self.go(cpu);
                }
            }
            Event::Arrive { packet } => {
                let packet = self.unstore(packet);
                self.arrive(packet);
            }
            Event::Leave { packet } => {
                let packet = self.unstore(packet);
                self.with_client(|client, machine| client.receive(machine, packet));
            }
            Event::Transmitted { queue } => self.transmitted(usize::from(queue)),
            Event::Moderated { queue, generation } => {
                self.moderated(usize::from(queue), generation);
            }
            Event::ModeratedTx { queue, generation } => {
                self.moderated_tx(usize::from(queue), generation);
            }
            Event::Line { queue } => {
                let id = Id(queue);
                self.queues[usize::from(queue)].line = false;
                let cpu = usize::from(self.host.instance(id).cpu().0);
                self.interrupt(cpu, Source::Queue(id));
            }
            Event::Timer { queue } => self.timer_fires(usize::from(queue)),
            Event::Tick { cpu } => self.tick_fires(usize::from(cpu)),
            Event::SliceEnd { cpu, generation } => {
                let cpu = usize::from(cpu);
                if self.cpus[cpu].slice_generation == generation {
                    self.cpus[cpu].slice_armed = false;
                    self.interrupt(cpu, Source::SliceEnd);
                }
            }
            Event::Reschedule { cpu } => self.interrupt(usize::from(cpu), Source::Reschedule),
            Event::Wake { thread, generation } => {
                let thread = ThreadId(thread);
                if self.threads[thread.0 as usize].wake_generation == generation {
                    self.wake_thread(thread);
                }
            }
            Event::Client { token } => {
                self.with_client(|client, machine| client.timer(machine, token));
            }
            Event::Turn { generation } => {
                if self.clock_generation == generation {
                    self.next_turn();
                }
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

    /// An instance's timer may be due: the deadline is the core's, and may have moved.
    fn timer_fires(&mut self, queue: usize) {
        let id = Id(queue as u16);
        let slot = &mut self.queues[queue].timer_at;
        if *slot > self.now {
            // An earlier one that was brought forward since: this event is surplus.
            return;
        }
        *slot = NEVER;
        let deadline = self.host.instance(id).deadline();
        if deadline <= self.now {
            let cpu = usize::from(self.queues[queue].timer_cpu);
            self.interrupt(cpu, Source::Timer(id));
        } else if deadline != NEVER {
            self.arm(queue, deadline);
        }
    }

    /// Sees to it that an instance's timer is looked at.
    pub(crate) fn arm(&mut self, queue: usize, at: Ns) {
        let slot = &mut self.queues[queue].timer_at;
        if at < *slot {
            *slot = at;
            self.events.at(at.max(self.now), Event::Timer { queue: queue as u16 });
        }
    }

    /// How many events, or frames, the thread's last wait found.
    pub fn events(&self, me: ThreadId) -> u32 {
        self.threads[me.0 as usize].events
    }

    /// Takes the next ready socket of a thread's epoll context; the thread reads it until it is
    /// empty, or it is put back with [`Machine::still_ready`].
    pub fn next_ready(&mut self, me: ThreadId) -> Option<u32> {
        let epoll = self.threads[me.0 as usize].epoll?;
        let socket = self.ready[epoll as usize].list.pop_front()?;
        self.sockets[socket as usize].ready = false;
        Some(socket)
    }

    /// A socket that was not read until it was empty is still ready.
    pub fn still_ready(&mut self, socket: u32) {
        let this = &mut self.sockets[socket as usize];
        if let (false, Some(epoll)) = (this.ready, this.epoll) {
            this.ready = true;
            self.ready[epoll as usize].list.push_back(socket);
        }
    }

    /// Receives one frame of a socket, with what its distance from its delivery costs on top of
    /// the call itself.
    pub fn receive(&mut self, me: ThreadId, socket: u32) -> Option<(Packet, Ns)> {
        let packet = self.sockets[socket as usize].frames.pop_front()?;
        self.sockets[socket as usize].received += 1;
        let cpu = self.threads[me.0 as usize].cpu;
        let locality = &self.config.locality;
        let extra = if packet.cpu == cpu {
            let between =
                (self.cpus[usize::from(cpu)].delivered - packet.delivered).saturating_sub(1) as f64;
            (locality.frame * between / (between + locality.half)) as Ns
        } else {
            locality.cross_cpu
        };
        self.drained(socket);
        Some((packet, extra))
    }

    /// Frames that wait in a socket.
    pub fn waiting(&self, socket: u32) -> u32 {
        self.sockets[socket as usize].frames.len() as u32
    }

    /// The frames that a socket had no room for.
    pub fn socket_drops(&self, socket: u32) -> u64 {
        self.sockets[socket as usize].dropped
    }

    /// The instance that last delivered to a socket (`SO_INCOMING_NAPI_ID`).
    pub fn incoming_napi(&self, socket: u32) -> Option<Id> {
        self.sockets[socket as usize].napi
    }

    /// Wakes a thread from outside of any CPU: a timer, a start.
    pub fn wake_thread(&mut self, thread: ThreadId) {
        if let Some(cpu) = self.wake(thread, None) {
            self.events.at(self.now, Event::Reschedule { cpu: cpu as u16 });
        }
    }

    /// The CPU time a thread has used.
    pub fn cpu_time(&self, thread: ThreadId) -> Ns {
        self.threads[thread.0 as usize].cpu_time
    }

    /// Voluntary and involuntary context switches of a thread.
    pub fn thread_switches(&self, thread: ThreadId) -> (u64, u64) {
        let thread = &self.threads[thread.0 as usize];
        (thread.voluntary, thread.involuntary)
    }

    /// The thread of a CPU's ksoftirqd.
    pub fn ksoftirqd(&self, cpu: u16) -> ThreadId {
        self.ksoftirqds[usize::from(cpu)]
    }

    /// An instance's own thread.
    pub fn napi_thread(&self, queue: u16) -> Option<ThreadId> {
        self.napi_threads[usize::from(queue)]
    }

    /// What a CPU's time has gone into, by [`Use`](crate::Use).
    pub fn used(&self, cpu: u16) -> [Ns; crate::USES] {
        self.cpus[usize::from(cpu)].used
    }

    /// What a watcher has counted.
    pub fn seen(&mut self) -> &mut Seen {
        &mut self.seen
    }

    /// Whether a thread is in the pass of a wait.
    pub(crate) fn state_of(&self, thread: ThreadId) -> State {
        self.threads[thread.0 as usize].state
    }

    /// Frames that wait in a queue's ring, or between a poll and its delivery.
    pub fn ring_depth(&self, queue: u16) -> usize {
        let queue = &self.queues[usize::from(queue)];
        queue.ring.len() + queue.batch.len()
    }

    /// A queue's counts.
    pub fn queue_counts(&self, queue: u16) -> QueueCounts {
        self.queues[usize::from(queue)].counts
    }
}
