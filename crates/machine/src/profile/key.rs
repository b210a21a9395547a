//! The keys of a host profile: one line for each constant that the machine itself uses.
//!
//! Parser, checks, sweeps and `docs/profiles.md` all read this table, followed by those that workloads declare
//! ([`Constants`], see `schema.rs`). Every value is an `f64` in the base unit of its kind: nanoseconds, hertz, bits
//! per second, bytes, a plain number, or the index of a word among the key's choices. A key describes a host. None
//! may belong to one policy, one load or one row of a published table, or the machine would reproduce its input;
//! `tests/profile/table.rs` refuses a key that carries a policy's name. The effect of a constant is implemented
//! elsewhere.

use super::takes::ValueKind;

/// The largest number of frames that a key takes if nothing else limits it.
const MAX_FRAMES: u32 = 1_000_000;

/// A section of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Section {
    /// The name in brackets in the file: `cost`.
    pub name: &'static str,
    /// Whether every profile has it; the others describe the program of one workload each.
    pub required: bool,
    /// A short description of its keys, for lists of sections.
    pub what: &'static str,
}

/// A workload's section and its keys, as the workload declares them.
#[derive(Debug, Clone, Copy)]
pub struct Constants {
    /// The section's name, in brackets in the file.
    pub section: &'static str,
    /// A short description: the program of the workload, its clients.
    pub what: &'static str,
    /// Its keys ([`Key::new`]), in the order in which a profile shows them.
    pub keys: &'static [Key],
}

/// The host's sections, in the order in which a profile is usually written.
pub(super) const HOST_SECTIONS: &[Section] = &[
    always("processor", "the CPUs, their threads and idle states"),
    always("kernel", "how the kernel was built and how its scheduler is tuned"),
    always("cost", "CPU time of each step of delivery"),
    always("locality", "what it costs to touch state that has gone cold"),
    always("nic", "the network card and its driver"),
    always("link", "the wire between the hosts"),
];

/// One key of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// The section that it belongs to.
    pub section: &'static str,
    /// The name within the section.
    pub name: &'static str,
    /// The kind and the limits of its value.
    pub takes: ValueKind,
    /// The value in the base unit if a profile omits it; `None`: omitting it is an error.
    pub default: Option<f64>,
    /// The meaning, in one line.
    pub what: &'static str,
}

impl Key {
    /// Creates a key of a workload ([`Constants::keys`]), without a default. Its section is that of its table.
    pub const fn new(name: &'static str, takes: ValueKind, what: &'static str) -> Key {
        key("", name, takes, what)
    }

    /// Returns the full name, with the section: `nic.queues`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Returns the key with a default, in the base unit.
    #[must_use]
    pub const fn or(self, default: f64) -> Key {
        Key { default: Some(default), ..self }
    }
}

const fn always(name: &'static str, what: &'static str) -> Section {
    Section { name, required: true, what }
}

const fn key(
    section: &'static str,
    name: &'static str,
    takes: ValueKind,
    what: &'static str,
) -> Key {
    Key { section, name, takes, default: None, what }
}

const fn count(min: u32, max: u32) -> ValueKind {
    ValueKind::Count { min, max }
}

const fn ratio(min: f64, max: f64) -> ValueKind {
    ValueKind::Ratio { min, max }
}

const TIME: ValueKind = ValueKind::TIME;

/// The period of a repetition, which cannot be 0: an empty poll or check would repeat for ever at one moment of
/// virtual time.
const PERIOD: ValueKind = ValueKind::Time { min: 1.0 };

const OFF_ON: ValueKind = ValueKind::OFF_ON;
const PREEMPTION: ValueKind = ValueKind::Choice(&["none", "voluntary", "lazy", "full"]);
const SCHEDULER: ValueKind = ValueKind::Choice(&["cfs", "eevdf"]);
const GOVERNOR: ValueKind = ValueKind::Choice(&["timer", "menu"]);
const INTERRUPT_CPU: ValueKind = ValueKind::Choice(&["own", "sender"]);
const ORDER: ValueKind = ValueKind::Choice(&["deliver-first", "unmask-first"]);
const LATE: ValueKind = ValueKind::Choice(&["poll", "interrupt"]);

/// The host's keys. A new key takes one line here and its row in `docs/profiles.md`.
#[rustfmt::skip] // One key, one line.
pub(super) const HOST_KEYS: &[Key] = &[
    key("processor", "cpus", count(1, 1024), "CPUs that the kernel sees: cores times threads a core"),
    key("processor", "frequency", ValueKind::Frequency, "clock of every CPU; turns `cycles` into time"),
    key("processor", "smt", count(1, 2), "threads a core"),
    key("processor", "smt-speed", ratio(0.1, 1.0), "speed of each thread while its sibling is busy; alone it is 1"),
    key("processor", "shared-clock", OFF_ON, "CPUs of an emulator advance one clock in turn: those that work share its speed").or(0.0),
    key("processor", "shared-clock-slice", TIME, "for how long a CPU has that clock while others work; 0 lets all work at once, each at its share of the speed").or(0.0),
    key("processor", "idle-exit", TIME, "from an interrupt to the first instruction on a CPU that has just gone idle"),
    key("processor", "idle-deep-after", TIME, "how long a CPU is idle before it enters its deep state"),
    key("processor", "idle-exit-deep", TIME, "from an interrupt to the first instruction on a CPU in its deep state"),
    key("processor", "idle-governor", GOVERNOR, "when a CPU is in its deep state: idle for `idle-deep-after` (timer), or guessed from its last intervals to become so (menu)").or(0.0),

    key("kernel", "hz", count(1, 10_000), "ticks a second; a jiffy is one tick"),
    key("kernel", "preemption", PREEMPTION, "where a thread in the kernel gives way to another"),
    key("kernel", "scheduler", SCHEDULER, "the fair scheduler: cfs up to Linux 6.5, eevdf since 6.6"),
    key("kernel", "slice", PERIOD, "least time that a fair thread runs before the tick takes its CPU away"),
    key("kernel", "sched-latency", PERIOD, "time in which cfs gives every runnable thread its turn"),
    key("kernel", "wakeup-granularity", TIME, "lead in virtual run time that a woken thread needs to preempt under cfs"),
    key("kernel", "hrtick", OFF_ON, "a slice ends by its own timer instead of at the next tick").or(0.0),
    key("kernel", "balance-interval", PERIOD, "time from one look at the other CPUs' run queues to the next"),
    key("kernel", "migration-cost", TIME, "a CPU whose idle periods are shorter on average takes no waiting thread from another as it goes idle").or(0.0),
    key("kernel", "idle-scan", count(1, 1024), "CPUs that a wake-up looks at for an idle one once no whole core is idle").or(1024.0),
    key("kernel", "stacks-on-bound", OFF_ON, "a thread woken by a kernel thread bound to the CPU that it last ran on stays there (Linux 5.6 to 5.15)").or(0.0),
    key("kernel", "sync-wake-preempts", OFF_ON, "a thread woken by one that is about to sleep may preempt it").or(0.0),
    key("kernel", "next-buddy", OFF_ON, "a woken thread that is eligible goes first, whichever has the earlier deadline, as the counts of Linux 7.2 show; for eevdf").or(0.0),
    key("kernel", "irq-time", OFF_ON, "whether interrupts and softirqs are taken out of the time that threads are charged for (IRQ_TIME_ACCOUNTING)"),
    key("kernel", "session-polls-once-more", OFF_ON, "a busy-poll session that prefers busy polling polls once more before it leaves the ring to its timer: up to Linux 7.1, in 6.18 stable to September 2026 (7599c13dbe7a)").or(0.0),
    key("kernel", "prolongs-without-poll", OFF_ON, "a wait that finds events prolongs the suspension of interrupts although there was no poll since (race R18): Linux 6.13 to 7.3 at least").or(1.0),
    key("kernel", "inline-while-ksoftirqd", OFF_ON, "what this kernel does by itself with softirqs raised while ksoftirqd is runnable: on since Linux 6.5"),

    key("cost", "interrupt-entry", TIME, "from the interrupted instruction to the handler"),
    key("cost", "interrupt-exit", TIME, "from the handler's end back, without softirqs"),
    key("cost", "nic-handler", TIME, "the driver's interrupt handler: find the queue and schedule it"),
    key("cost", "tick", TIME, "the scheduler's tick"),
    key("cost", "timer-expiry", TIME, "one expiry of a high-resolution timer, without what it starts"),
    key("cost", "timer-arm", TIME, "setting a high-resolution timer"),
    key("cost", "ipi", TIME, "from waking a thread of another CPU to the interrupt that tells that CPU"),
    key("cost", "softirq-entry", TIME, "entering softirq context"),
    key("cost", "softirq-exit", TIME, "leaving softirq context"),
    key("cost", "poll", PERIOD, "one poll of a queue, with frames or without"),
    key("cost", "poll-frame", TIME, "each frame that a poll takes from its ring"),
    key("cost", "segment", TIME, "each further segment that a poll merges into a frame").or(0.0),
    key("cost", "copy", TIME, "copying a kibibyte between the kernel and a program").or(0.0),
    key("cost", "poll-completion", TIME, "each transmit completion that a poll takes"),
    key("cost", "deliver", TIME, "handing one poll's batch to the stack"),
    key("cost", "deliver-frame", TIME, "each frame from the stack's entry into its socket"),
    key("cost", "deliver-ack", TIME, "each pure acknowledgement through the stack"),
    key("cost", "wake", TIME, "waking a thread on the same CPU, without the switch to it"),
    key("cost", "mask", TIME, "masking a queue's interrupt"),
    key("cost", "unmask", TIME, "unmasking a queue's interrupt and looking at the ring again"),
    key("cost", "switch", TIME, "switching from one thread to another"),
    key("cost", "switch-idle", TIME, "going idle: from the last thread to the idle loop"),
    key("cost", "claim", TIME, "an application's attempt to win a queue for its own polling"),
    key("cost", "look", PERIOD, "one look of a waiting application at its ready list"),
    key("cost", "epoll-enter", TIME, "entering epoll_wait, system call included"),
    key("cost", "epoll-event", TIME, "each event that epoll_wait returns"),
    key("cost", "epoll-return", TIME, "leaving epoll_wait"),
    key("cost", "recv", TIME, "one receive call that finds something"),
    key("cost", "recv-empty", TIME, "one receive call that finds nothing"),
    key("cost", "send", TIME, "one send call down to the driver"),
    key("cost", "send-frame", TIME, "each frame of a send call in the driver"),
    key("cost", "vector", TIME, "running one softirq vector that is not the network's"),
    key("cost", "ksoftirqd-loop", TIME, "one round of ksoftirqd around its softirqs"),
    key("cost", "kthread-loop", TIME, "one round of a NAPI thread around its poll"),
    key("cost", "kthread-sleep", TIME, "a NAPI thread going to sleep, without the switch").or(0.0),
    key("cost", "worker-loop", TIME, "one item of a workqueue's worker around its poll"),
    key("cost", "migrate", TIME, "moving a thread to another CPU, caches included"),

    key("locality", "frame", TIME, "most that fetching one frame's state again costs"),
    key("locality", "half", count(1, MAX_FRAMES), "frames handled in between at which half of `locality.frame` is paid"),
    key("locality", "sharpness", count(1, 8), "how suddenly a cache is full: the exponent of the frames in between; with 1 the cost rises gradually").or(1.0),
    key("locality", "cross-cpu", TIME, "fetching one frame's state from another CPU's cache"),
    key("locality", "interrupted", TIME, "what a thread pays for its caches after a softirq on top of it whose last poll handled frames").or(0.0),
    key("locality", "queue", TIME, "fetching a queue's state, in a poll by another CPU than the last").or(0.0),

    key("nic", "queues", count(1, 1024), "receive queues; at most one a CPU"),
    key("nic", "ring", count(1, 65_536), "descriptors of a receive ring"),
    key("nic", "order", ORDER, "whether the driver hands its frames up before or after it unmasks"),
    key("nic", "late-frames", LATE, "what serves frames that came between the last poll and the unmasking: the driver looks once more and polls on, or the card interrupts").or(0.0),
    key("nic", "tx-budget", count(0, 65_535), "transmit completions that one poll reaps; one that reaps so many asks to be polled again, as if it had used its budget; 0 reaps them all").or(0.0),
    key("nic", "follows-affinity", OFF_ON, "a poll that asks to be polled again ends instead on a CPU to which the queue's interrupt does not go").or(0.0),
    key("nic", "gro-batch", count(0, 65_535), "frames that go up the stack together while a poll is under way; 0 keeps all to its end").or(0.0),
    key("nic", "dma", TIME, "from a frame's last bit to its descriptor in memory"),
    key("nic", "interrupt-latency", TIME, "from the card's decision to the CPU's interrupt"),
    key("nic", "transmit", TIME, "from the doorbell to the first bit on the wire"),
    key("nic", "coalesce-usecs", TIME, "longest that the card holds an interrupt back; where it adapts, the start value"),
    key("nic", "coalesce-frames", count(0, MAX_FRAMES), "frames after which it does not hold it back; where it adapts, the start value"),
    key("nic", "coalesce-restarts", OFF_ON, "each frame begins the coalescing time anew, instead of the first after an interrupt").or(0.0),
    key("nic", "adaptive", OFF_ON, "the driver adapts its coalescing to the traffic"),
    key("nic", "tx-interrupts", OFF_ON, "transmit completions raise interrupts of their own"),
    key("nic", "interrupt-cpu", INTERRUPT_CPU, "the CPU of a queue's interrupts: that of the thread that it serves (own), or, as with a veth's softirq, the one that sends and never sleeps, here the last (sender); for memcached").or(0.0),

    key("link", "rate", ValueKind::Rate, "bits a second in each direction"),
    key("link", "latency", TIME, "one way, switches and cables included"),
];
