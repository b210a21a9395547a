//! A profile's numbers in the form in which the machine uses them: whole nanoseconds, resolved
//! once. Costs, never policies.

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
    /// What each step costs the CPU that takes it; the profile's schema says what each covers.
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

/// How much dearer a frame gets that one context leaves for another.
///
/// The cost of a frame that was delivered `n` frames ago on this CPU is `frame * n / (n + half)`:
/// nothing for the last one, all of it for one that the caches have forgotten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Locality {
    /// The most that a frame's state costs to fetch again.
    pub frame: f64,
    /// Frames in between at which half of it is paid.
    pub half: f64,
    /// The exponent of the frames in between: how suddenly a cache is full.
    pub sharpness: u32,
    /// What a frame costs that another CPU has delivered.
    pub cross_cpu: Ns,
    /// What a thread pays for its caches after a softirq on top of it whose last poll handled frames.
    pub interrupted: Ns,
    /// What a poll costs on top where another CPU made the last one.
    pub queue: Ns,
}

impl Locality {
    /// What it costs to fetch a frame's state again after so many others, in nanoseconds: little
    /// while the cache holds them all, `frame` when it holds none.
    pub(crate) fn fetch(&self, between: f64) -> f64 {
        let ratio = between / self.half;
        let full = (1..self.sharpness).fold(ratio, |full, _| full * ratio);
        if full.is_finite() { self.frame * full / (full + 1.0) } else { self.frame }
    }
}

/// When a kernel lets another thread have the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// Only on the way to user space.
    None,
    /// There and at points chosen by hand; for what the machine models, as `None`.
    Voluntary,
    /// On the way to user space for fair threads, at once for real-time ones.
    Lazy,
    /// Wherever no lock is held.
    Full,
}

/// Who of the fair threads (`SCHED_OTHER`) runs next: `kernel.scheduler` of the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fair {
    /// Completely fair, to 6.5: least virtual time first.
    Cfs,
    /// Earliest eligible virtual deadline first, since 6.6.
    Eevdf,
}

/// The CPUs: threads of a core, idle states, and what of a clock they share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Processor {
    /// Logical CPUs, all threads of a core counted.
    pub cpus: u16,
    /// Hardware threads of a core: 1 or 2.
    pub smt: u16,
    /// A thread's time for a piece of work while its sibling is busy, in thousandths of its own.
    pub smt_dilation: u64,
    /// All CPUs advance one clock in turn.
    pub shared_clock: bool,
    /// For how long a CPU has it while others work; 0: all at once, each at its share of the speed.
    pub shared_clock_slice: Ns,
    /// Latency of leaving idleness.
    pub idle_exit: Ns,
    /// Idleness after which it becomes deep.
    pub idle_deep_after: Ns,
    /// Latency of leaving deep idleness.
    pub idle_exit_deep: Ns,
    /// The depth is guessed when idleness begins (Linux's menu governor), not reached after a time.
    pub idle_menu: bool,
}

/// The kernel's configuration, as far as it decides when who runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Time between two ticks.
    pub tick: Ns,
    /// Where a thread in the kernel may be preempted.
    pub preemption: Preemption,
    /// Which scheduler picks among fair threads.
    pub fair: Fair,
    /// EEVDF's slice; CFS's smallest granularity.
    pub slice: Ns,
    /// CFS's latency: a period in which everybody runs once.
    pub sched_latency: Ns,
    /// CFS: how far behind a thread must be to preempt when it wakes.
    pub wakeup_granularity: Ns,
    /// Slices end by a timer of their own, not by the tick.
    pub hrtick: bool,
    /// Time between two looks for an imbalance.
    pub balance_interval: Ns,
    /// A CPU that is idle for less than this on average does not pull as it goes idle.
    pub migration_cost: Ns,
    /// CPUs that a wake-up looks at for an idle one where no core is idle.
    pub idle_scan: u16,
    /// A thread woken by a kernel thread bound to the CPU that it last ran on stays there.
    pub stacks_on_bound: bool,
    /// Whether a thread that another wakes in passing (a socket's) may preempt it.
    pub sync_wake_preempts: bool,
    /// Whether a woken thread that is eligible goes first, whoever has the earlier deadline.
    pub next_buddy: bool,
    /// Whether softirqs run inline while ksoftirqd is runnable.
    pub inline_while_ksoftirqd: bool,
    /// Whether interrupts and softirqs are taken out of the time that threads are charged for.
    pub irq_time: bool,
    /// In what its busy polling and suspension differ from the core's.
    pub rules: KernelRules,
}

use napkin_core::{KernelRules, Order};

/// The NIC and its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicConfig {
    /// Receive queues; each has an instance, and a transmit queue beside it.
    pub queues: u16,
    /// Frames a ring holds.
    pub ring: u32,
    /// Completion order of the driver.
    pub order: Order,
    /// The card interrupts for frames that came between a poll and the unmasking; else the driver looks
    /// for them.
    pub late_frames_interrupt: bool,
    /// Transmit completions that a poll reaps at most, and then asks for another; 0: all there are.
    pub tx_budget: u16,
    /// A poll that would ask for another completes on a CPU that is not the interrupt's.
    pub follows_affinity: bool,
    /// Frames that are handed to the stack together while a poll is under way; 0: all at its end.
    pub gro_batch: u16,
    /// From the wire to the ring.
    pub dma: Ns,
    /// From the ring to the CPU's interrupt.
    pub interrupt_latency: Ns,
    /// From the doorbell to the wire.
    pub transmit: Ns,
    /// Interrupt moderation: nanoseconds from a frame to its interrupt (`rx-usecs`); 0: none.
    pub coalesce: Ns,
    /// Interrupt moderation: frames; 0: time alone.
    pub coalesce_frames: u32,
    /// Each frame begins the time anew, instead of the first one only.
    pub coalesce_restarts: bool,
    /// Whether the NIC's driver adapts them.
    pub adaptive: bool,
    /// Whether finished transmissions raise interrupts.
    pub tx_interrupts: bool,
}

/// The link to the other side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Its rate in bits a nanosecond, which are Gbit/s.
    pub bits_per_ns: f64,
    /// From one end to the other, besides the time that the bits take.
    pub latency: Ns,
}

/// A host and its link as a profile has them, section by section.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Section `processor`: the CPUs.
    pub processor: Processor,
    /// Section `kernel`: its ticks and its scheduler.
    pub kernel: Kernel,
    /// Section `cost`: CPU time of each step.
    pub cost: Costs,
    /// Section `locality`: what cold state costs.
    pub locality: Locality,
    /// Section `nic`: the card and its driver.
    pub nic: NicConfig,
    /// Section `link`: the wire.
    pub link: Link,
}

impl Config {
    /// What a profile says, in nanoseconds and counts.
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
