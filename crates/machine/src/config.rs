//! A profile's numbers in the form that the machine uses: whole nanoseconds, converted once. They are costs, never
//! policies.

use napkin_core::{MILLISECOND, Ns};

use crate::profile::Profile;

macro_rules! times {
    ($(#[$doc:meta])* $name:ident, $section:literal, $($(#[$field_doc:meta])* $field:ident = $key:literal,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$field_doc])* #[doc = concat!("`", $section, ".", $key, "` of the profile.")] pub $field: Ns,)* }

        impl $name {
            fn of(profile: &Profile) -> Self {
                $name { $($field: profile.time(concat!($section, ".", $key)),)* }
            }
        }
    };
}

times! {
    /// The CPU time of each step; the profile's schema says what each covers.
    Costs, "cost",
    interrupt_entry = "interrupt-entry",
    interrupt_exit = "interrupt-exit",
    nic_handler = "nic-handler",
    tick = "tick",
    timer_expiry = "timer-expiry",
    timer_arm = "timer-arm",
    ipi = "ipi",
    softirq_entry = "softirq-entry",
    softirq_exit = "softirq-exit",
    poll = "poll",
    poll_frame = "poll-frame",
    segment = "segment",
    copy = "copy",
    poll_completion = "poll-completion",
    deliver = "deliver",
    deliver_frame = "deliver-frame",
    deliver_ack = "deliver-ack",
    wake = "wake",
    mask = "mask",
    unmask = "unmask",
    switch = "switch",
    switch_idle = "switch-idle",
    claim = "claim",
    look = "look",
    epoll_enter = "epoll-enter",
    epoll_event = "epoll-event",
    epoll_return = "epoll-return",
    recv = "recv",
    recv_empty = "recv-empty",
    send = "send",
    send_frame = "send-frame",
    vector = "vector",
    ksoftirqd_loop = "ksoftirqd-loop",
    kthread_loop = "kthread-loop",
    kthread_sleep = "kthread-sleep",
    worker_loop = "worker-loop",
    migrate = "migrate",
}

/// The cost of cold caches when one context hands a frame to another.
///
/// The cost of a frame after which `n` others were delivered on this CPU is `frame * x / (1 + x)`, where `x` is `n /
/// half` raised to `sharpness`: nothing for the last one, near `frame` for one that the caches have lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Locality {
    /// The most that fetching a frame's state again costs, in nanoseconds.
    pub frame: f64,
    /// Number of frames in between at which half of that is paid.
    pub half: f64,
    /// The exponent `sharpness`: how abruptly the cost rises once a cache is full.
    pub sharpness: u32,
    /// Nanoseconds for a frame that another CPU has delivered.
    pub cross_cpu: Ns,
    /// Nanoseconds that a thread pays after a softirq on top of it whose last poll took frames.
    pub interrupted: Ns,
    /// Extra nanoseconds of a poll if another CPU made the last one.
    pub queue: Ns,
}

impl Locality {
    /// Returns the nanoseconds for fetching a frame's state again after `between` other frames: little while the
    /// cache holds them all, up to `frame` when it holds none.
    pub(crate) fn fetch(&self, between: f64) -> f64 {
        let ratio = between / self.half;
        let full = (1..self.sharpness).fold(ratio, |full, _| full * ratio);
        if full.is_finite() { self.frame * full / (full + 1.0) } else { self.frame }
    }
}

/// Where a kernel allows preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// Only on return to user space.
    None,
    /// There and at explicit preemption points; for what the machine models, the same as `None`.
    Voluntary,
    /// On return to user space for fair threads, at once for real-time ones.
    Lazy,
    /// Wherever no lock is held.
    Full,
}

/// The scheduler of fair threads (`SCHED_OTHER`): `kernel.scheduler` of the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fair {
    /// Completely Fair Scheduler, up to 6.5: least virtual time first.
    Cfs,
    /// Earliest eligible virtual deadline first, since 6.6.
    Eevdf,
}

/// The CPUs: hardware threads, idle states, and whether they share one clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Processor {
    /// Logical CPUs, counting all hardware threads.
    pub cpus: u16,
    /// Hardware threads per core: 1 or 2.
    pub smt: u16,
    /// Time that a hardware thread needs for a segment while its sibling is busy, in thousandths of its time alone.
    pub smt_dilation: u64,
    /// Whether all CPUs share one clock, as an emulator's do.
    pub shared_clock: bool,
    /// Nanoseconds that a CPU has the clock while others are busy; 0: all run at once, each with an equal share of
    /// the speed.
    pub shared_clock_slice: Ns,
    /// Latency of leaving the shallow idle state.
    pub idle_exit: Ns,
    /// Idle time after which the state becomes deep; with `idle_menu`: the deep state's target residency.
    pub idle_deep_after: Ns,
    /// Latency of leaving the deep idle state.
    pub idle_exit_deep: Ns,
    /// Whether the idle state is chosen when idleness begins (Linux's menu governor), instead of reached after a
    /// time.
    pub idle_menu: bool,
}

/// The kernel's configuration, as far as it affects scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Tick period.
    pub tick: Ns,
    /// Where a thread in the kernel may be preempted.
    pub preemption: Preemption,
    /// Scheduler of the fair threads.
    pub fair: Fair,
    /// EEVDF's slice; CFS's minimum granularity.
    pub slice: Ns,
    /// CFS's latency: the period in which every runnable thread runs once.
    pub sched_latency: Ns,
    /// CFS: how far behind the current thread a waking thread must be to preempt it.
    pub wakeup_granularity: Ns,
    /// Whether slices end by a timer of their own, not by the tick.
    pub hrtick: bool,
    /// Period of load balancing.
    pub balance_interval: Ns,
    /// A CPU whose idle periods are shorter than this on average does not pull a thread as it goes idle.
    pub migration_cost: Ns,
    /// Number of CPUs that a wake-up searches for an idle one where no core is idle.
    pub idle_scan: u16,
    /// Whether a thread stays on its last CPU when it is woken by a kernel thread bound to that CPU.
    pub stacks_on_bound: bool,
    /// Whether a thread that a running thread wakes synchronously (a socket's reader) may preempt it.
    pub sync_wake_preempts: bool,
    /// Whether a woken thread that is eligible runs next, regardless of deadlines.
    pub next_buddy: bool,
    /// Whether softirqs run inline while ksoftirqd is runnable.
    pub inline_while_ksoftirqd: bool,
    /// Whether the time of interrupts and softirqs is excluded from the run time of threads.
    pub irq_time: bool,
    /// Differences of the kernel's busy polling and suspension from the core's.
    pub rules: KernelRules,
}

use napkin_core::{KernelRules, Order};

/// The NIC and its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicConfig {
    /// Receive queues; each has an instance and a paired transmit queue.
    pub queues: u16,
    /// Frames that a ring holds.
    pub ring: u32,
    /// Whether the driver delivers or unmasks first.
    pub order: Order,
    /// Whether the card raises an interrupt for frames that came between the poll and the unmask; otherwise the
    /// driver checks the ring again.
    pub late_frames_interrupt: bool,
    /// Most transmit completions that a poll reaps; on reaching it the driver asks for another poll. 0: no limit.
    pub tx_budget: u16,
    /// Whether a poll on a CPU other than the interrupt's completes even though it would ask for another.
    pub follows_affinity: bool,
    /// Frames that are handed to the stack together while a poll is in progress; 0: all of them after it.
    pub gro_batch: u16,
    /// Latency from the wire to the ring.
    pub dma: Ns,
    /// Latency from raising the interrupt to the CPU.
    pub interrupt_latency: Ns,
    /// Latency from the doorbell to the wire.
    pub transmit: Ns,
    /// Interrupt moderation: nanoseconds from a frame to its interrupt (`rx-usecs`); 0: none.
    pub coalesce: Ns,
    /// Interrupt moderation: number of frames; 0: by time alone.
    pub coalesce_frames: u32,
    /// Whether each frame restarts the moderation timer, instead of only the first one starting it.
    pub coalesce_restarts: bool,
    /// Whether the driver adapts the moderation.
    pub adaptive: bool,
    /// Whether transmit completions raise interrupts.
    pub tx_interrupts: bool,
}

/// The link to the peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Rate in bits per nanosecond, which is Gbit/s.
    pub bits_per_ns: f64,
    /// One-way latency, without the serialisation time.
    pub latency: Ns,
}

/// A host and its link, section by section as in the profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Section `processor`: the CPUs.
    pub processor: Processor,
    /// Section `kernel`: its tick and its scheduler.
    pub kernel: Kernel,
    /// Section `cost`: CPU time of each step.
    pub cost: Costs,
    /// Section `locality`: the cost of cold state.
    pub locality: Locality,
    /// Section `nic`: the card and its driver.
    pub nic: NicConfig,
    /// Section `link`: the wire.
    pub link: Link,
}

impl Config {
    /// Converts a profile to nanoseconds and counts.
    pub fn of(profile: &Profile) -> Config {
        let p = profile;
        let smt_speed = p.ratio("processor.smt-speed").max(0.001);
        Config {
            processor: Processor {
                cpus: p.count("processor.cpus") as u16,
                smt: p.count("processor.smt").max(1) as u16,
                smt_dilation: (1000.0 / smt_speed) as u64,
                shared_clock: p.on("processor.shared-clock"),
                shared_clock_slice: p.time("processor.shared-clock-slice"),
                idle_exit: p.time("processor.idle-exit"),
                idle_deep_after: p.time("processor.idle-deep-after"),
                idle_exit_deep: p.time("processor.idle-exit-deep"),
                idle_menu: p.choice("processor.idle-governor") == "menu",
            },
            kernel: Kernel {
                tick: 1000 * MILLISECOND / p.count("kernel.hz").max(1),
                preemption: match p.choice("kernel.preemption") {
                    "none" => Preemption::None,
                    "voluntary" => Preemption::Voluntary,
                    "lazy" => Preemption::Lazy,
                    _ => Preemption::Full,
                },
                fair: match p.choice("kernel.scheduler") {
                    "cfs" => Fair::Cfs,
                    _ => Fair::Eevdf,
                },
                slice: p.time("kernel.slice"),
                sched_latency: p.time("kernel.sched-latency"),
                wakeup_granularity: p.time("kernel.wakeup-granularity"),
                hrtick: p.on("kernel.hrtick"),
                balance_interval: p.time("kernel.balance-interval"),
                migration_cost: p.time("kernel.migration-cost"),
                idle_scan: p.count("kernel.idle-scan") as u16,
                stacks_on_bound: p.on("kernel.stacks-on-bound"),
                sync_wake_preempts: p.on("kernel.sync-wake-preempts"),
                next_buddy: p.on("kernel.next-buddy"),
                inline_while_ksoftirqd: p.on("kernel.inline-while-ksoftirqd"),
                irq_time: p.on("kernel.irq-time"),
                rules: KernelRules {
                    session_polls_once_more: p.on("kernel.session-polls-once-more"),
                    prolongs_without_poll: p.on("kernel.prolongs-without-poll"),
                },
            },
            cost: Costs::of(p),
            locality: Locality {
                frame: p.get("locality.frame"),
                half: p.get("locality.half").max(1.0),
                sharpness: p.count("locality.sharpness").clamp(1, 8) as u32,
                cross_cpu: p.time("locality.cross-cpu"),
                interrupted: p.time("locality.interrupted"),
                queue: p.time("locality.queue"),
            },
            nic: NicConfig {
                queues: p.count("nic.queues") as u16,
                ring: p.count("nic.ring") as u32,
                order: match p.choice("nic.order") {
                    "unmask-first" => Order::UnmaskFirst,
                    _ => Order::DeliverFirst,
                },
                late_frames_interrupt: p.choice("nic.late-frames") == "interrupt",
                tx_budget: p.count("nic.tx-budget") as u16,
                follows_affinity: p.on("nic.follows-affinity"),
                gro_batch: p.count("nic.gro-batch") as u16,
                dma: p.time("nic.dma"),
                interrupt_latency: p.time("nic.interrupt-latency"),
                transmit: p.time("nic.transmit"),
                coalesce: p.time("nic.coalesce-usecs"),
                coalesce_frames: p.count("nic.coalesce-frames") as u32,
                coalesce_restarts: p.on("nic.coalesce-restarts"),
                adaptive: p.on("nic.adaptive"),
                tx_interrupts: p.on("nic.tx-interrupts"),
            },
            link: Link { bits_per_ns: p.get("link.rate") / 1e9, latency: p.time("link.latency") },
        }
    }
}
