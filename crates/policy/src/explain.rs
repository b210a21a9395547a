//! Descriptions of the presets and families: what each does, what it costs, and whose proposal it is.
//!
//! `napkin policies` prints this text, and the parser takes its list of names from here. The displayed values
//! are generated from the policies, so they cannot be wrong. Measurements are quoted only where a proposal
//! published them.

use alloc::string::{String, ToString};

use super::preset::HOLD;
use super::{FAMILY_MICROSECONDS, Policy};
use crate::{MICROSECOND, Ns};

/// A policy with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The name, as it is read and printed.
    pub name: &'static str,
    /// Whose proposal it is, with the year.
    pub proposal: &'static str,
    /// What it does.
    pub what: &'static str,
    /// What it costs.
    pub cost: &'static str,
    /// The policy that the name stands for.
    pub policy: Policy,
}

impl Preset {
    /// Looks a preset up by its exact name.
    pub fn find(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Its values in the spelled-out form.
    pub fn values(&self) -> String {
        self.policy.spelled_out().to_string()
    }
}

/// A group of policies that differ in one time, which is part of their name: `defer20`, `defer50` ...
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The name without its number.
    pub prefix: &'static str,
    /// The name with a letter for the number, as help shows it.
    pub pattern: &'static str,
    /// Whose proposal it is, with the year.
    pub proposal: &'static str,
    /// What it does.
    pub what: &'static str,
    /// What it costs.
    pub cost: &'static str,
    pub(super) make: fn(Ns) -> Policy,
    pub(super) time: fn(&Policy) -> Ns,
}

impl Family {
    /// Returns the member for this many microseconds; `None` outside of [`FAMILY_MICROSECONDS`].
    pub fn policy(&self, microseconds: u32) -> Option<Policy> {
        FAMILY_MICROSECONDS
            .contains(&microseconds)
            .then(|| (self.make)(Ns::from(microseconds) * MICROSECOND))
    }

    /// Returns the number of microseconds that `policy` has in this family, if it is a member.
    pub fn member(&self, policy: &Policy) -> Option<u32> {
        let time = (self.time)(policy);
        if !time.is_multiple_of(MICROSECOND) {
            return None;
        }
        let microseconds = u32::try_from(time / MICROSECOND).ok()?;
        (self.policy(microseconds)? == *policy).then_some(microseconds)
    }

    /// The values of an example in the spelled-out form, for a number that has no preset.
    pub fn values(&self) -> String {
        (self.make)(50 * MICROSECOND).spelled_out().to_string()
    }
}

const INTERRUPT_DRIVEN: &str = "Linux since 6.5";
const HOLD_2007: &str = "2007, hold in polled mode (Chapman)";
const KSOFTIRQD_2018: &str = "2018, network softirqs to ksoftirqd (Safonov)";
const KTHREAD_2020: &str = "2020, kthread polling (Wei Wang; after Abeni, Sowa)";
const WORKQUEUE_2020: &str = "2020, workqueue polling (Fietkau; compared by Wei Wang)";
const SUSPENSION_2024: &str = "2024, IRQ suspension (Damato, Karsten)";
const COMPARED_2024: &str = "2024, compared by IRQ suspension (Damato, Karsten)";
const THREADED_2025: &str = "2025, threaded busy poll (Khawaja)";
const COMPARED_2025: &str = "2025, compared by threaded busy poll (Khawaja)";

/// Every preset, in the order in which help shows them.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "base",
        proposal: INTERRUPT_DRIVEN,
        what: "Interrupt, then softirq on the same CPU until the ring is drained; interrupts are \
               allowed again at once.",
        cost: "An interrupt for nearly every packet at low load; under overload softirqs take the \
               CPU from the application.",
        policy: Policy::BASE,
    },
    Preset {
        name: "base-6.4",
        proposal: "Linux 4.9 to 6.4",
        what: "As base, but no softirq runs inline while ksoftirqd is runnable: under overload \
               packets are processed by a fair thread.",
        cost: "Once ksoftirqd is awake every softirq waits for the scheduler; just before that, \
               throughput can collapse.",
        policy: Policy::BASE_6_4,
    },
    Preset {
        name: "hold",
        proposal: HOLD_2007,
        what: "Stays in polled mode for 100 us after the last work, so that the next packet needs \
               no interrupt.",
        cost: "CPU: up to 100 us of empty polls after each burst.",
        policy: Policy::hold(HOLD),
    },
    Preset {
        name: "ksoftirqd",
        proposal: KSOFTIRQD_2018,
        what: "Network softirqs run in ksoftirqd, a fair thread, whenever another thread wants \
               the CPU; all other softirqs stay inline.",
        cost: "A thread's wake-up and its wait for the scheduler, for packets that meet a busy \
               CPU.",
        policy: Policy::KSOFTIRQD,
    },
    Preset {
        name: "ksoftirqd-as-posted",
        proposal: KSOFTIRQD_2018,
        what: "The patch to the letter: its mask names HI and TIMER instead of the network, and \
               either of them sends all pending softirqs to ksoftirqd.",
        cost: "Timers and every other softirq wait for the scheduler; network softirqs alone \
               still run inline. For reproducing the published figures only.",
        policy: Policy::KSOFTIRQD_AS_POSTED,
    },
    Preset {
        name: "threaded",
        proposal: KTHREAD_2020,
        what: "Each queue is polled by a thread of its own, which the scheduler sees, moves and \
               accounts for.",
        cost: "A wake-up for each burst: published, 3 % of the throughput and 10 % of the median \
               at 1 B, for less than half the p99.",
        policy: Policy::THREADED,
    },
    Preset {
        name: "workqueue",
        proposal: WORKQUEUE_2020,
        what: "Queues are polled by a shared pool of workers, as many as there are CPUs.",
        cost: "As threaded, with more workers awake and none that can be pinned to one queue. No \
               kernel has this mode.",
        policy: Policy::WORKQUEUE,
    },
    Preset {
        name: "defer20",
        proposal: COMPARED_2024,
        what: "Interrupts stay masked until 100 polls, 20 us apart, have found nothing.",
        cost: "A timer every 20 us for up to 2 ms after each packet; the timer's polls compete \
               with the application at high load.",
        policy: Policy::defer(20 * MICROSECOND),
    },
    Preset {
        name: "defer200",
        proposal: COMPARED_2024,
        what: "Interrupts stay masked until 100 polls, 200 us apart, have found nothing.",
        cost: "Latency: a packet waits up to 200 us for the timer. Little CPU.",
        policy: Policy::defer(200 * MICROSECOND),
    },
    Preset {
        name: "napibusy",
        proposal: COMPARED_2024,
        what: "The application polls its queue for up to 64 us before it sleeps; deferral keeps \
               interrupts masked meanwhile.",
        cost: "Latency at low load: after a busy poll that found nothing (64 us) epoll drops its \
               NAPI id, and a packet waits up to 200 us for the timer.",
        policy: Policy::NAPIBUSY,
    },
    Preset {
        name: "fullbusy",
        proposal: COMPARED_2024,
        what: "The application polls its queue and never sleeps: the lowest latency and the highest \
               throughput of the 2024 comparison, where packets come all the time.",
        cost: "A whole CPU for each application thread at every load, idle included. At low load the \
               worst latency: after a busy poll that found nothing (1 ms) epoll drops its NAPI id, and a \
               packet waits up to 5 ms for the timer. gro-flush-timeout=200us bounds that; \
               epoll-keep-napi-id=on, in no Linux, ends it.",
        policy: Policy::FULLBUSY,
    },
    Preset {
        name: "interrupts",
        proposal: COMPARED_2025,
        what: "As base; the timer's period that its script leaves set has no use without \
               deferral.",
        cost: "As base.",
        policy: Policy::INTERRUPTS,
    },
    Preset {
        name: "busypoll",
        proposal: COMPARED_2025,
        what: "The receiving thread's own receive calls poll the queue, for up to 400 us each.",
        cost: "A CPU that spins; nothing polls the queue while the application works: published, \
               3-4 us more once it does.",
        policy: Policy::BUSYPOLL,
    },
    Preset {
        name: "busypoll-separate",
        proposal: COMPARED_2025,
        what: "A separate thread does nothing but receive calls that poll the queue.",
        cost: "A whole CPU, and a system call, a claim and a release for each poll: published, \
               about 1 us more than threaded-busy-poll.",
        policy: Policy::BUSYPOLL_SEPARATE,
    },
    Preset {
        name: "threaded-busy-poll",
        proposal: THREADED_2025,
        what: "Each queue is polled without end by a thread of its own, whatever the application \
               does.",
        cost: "A whole CPU for each queue at every load, idle included.",
        policy: Policy::THREADED_BUSY_POLL,
    },
    Preset {
        name: "suspend20",
        proposal: SUSPENSION_2024,
        what: "While the application finds events its waits alone poll the queue, and interrupts \
               stay off; when it finds none, defer20 takes over.",
        cost: "Other receivers on the same queue wait for the application's batch: at most 20 ms in \
               napkin's engine, in Linux (6.13 to 7.3) for as long as the program always finds \
               something else ready, which run, attach and apply --for watch for. Between batches, \
               as defer20.",
        policy: Policy::suspend(20 * MICROSECOND),
    },
    Preset {
        name: "suspend200",
        proposal: SUSPENSION_2024,
        what: "While the application finds events its waits alone poll the queue, and interrupts \
               stay off; when it finds none, defer200 takes over.",
        cost: "As suspend20; at low load a packet waits up to 200 us for the timer.",
        policy: Policy::suspend(200 * MICROSECOND),
    },
    Preset {
        name: "feedback",
        proposal: "1996, receive livelock (Mogul, Ramakrishnan); napkin",
        what: "A queue whose receivers are all full is not polled until one has room again or \
               20 ms have passed: overload is dropped by the NIC, for nothing.",
        cost: "Packets of that queue that nobody was receiving yet wait too, 20 ms at the most. \
               No kernel has this mode.",
        policy: Policy::FEEDBACK,
    },
];

/// Every family: a name and a number of microseconds within [`FAMILY_MICROSECONDS`].
pub const FAMILIES: &[Family] = &[
    Family {
        prefix: "defer",
        pattern: "deferN",
        proposal: COMPARED_2024,
        what: "Interrupts stay masked until 100 polls, N us apart, have found nothing.",
        cost: "A short time: timer polls, which cost CPU and disturb the application. A long one: \
               a packet waits up to N us.",
        make: Policy::defer,
        time: |policy| policy.instance.gro_flush_timeout,
    },
    Family {
        prefix: "suspend",
        pattern: "suspendN",
        proposal: SUSPENSION_2024,
        what: "While the application finds events its waits alone poll the queue; when it finds \
               none, deferN takes over. About one request's time is a good number.",
        cost: "Other receivers on the same queue wait for the application's batch, as with \
               suspend20; between batches, as deferN.",
        make: Policy::suspend,
        time: |policy| policy.instance.gro_flush_timeout,
    },
    Family {
        prefix: "hold",
        pattern: "holdN",
        proposal: HOLD_2007,
        what: "Stays in polled mode for N us after the last work.",
        cost: "CPU: up to N us of empty polls after each burst; a time above the usual gap \
               between packets means polling without end.",
        make: Policy::hold,
        time: |policy| policy.instance.hold,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promised_name_exists() {
        let promised = "base hold ksoftirqd threaded workqueue defer20 defer200 napibusy fullbusy \
                        threaded-busy-poll suspend20 suspend200 feedback interrupts busypoll \
                        busypoll-separate ksoftirqd-as-posted base-6.4";
        for name in promised.split_whitespace() {
            assert!(Preset::find(name).is_some(), "{name}");
        }
        assert_eq!(PRESETS.len(), promised.split_whitespace().count());
    }

    #[test]
    fn no_two_presets_share_a_name_or_a_value() {
        for (place, one) in PRESETS.iter().enumerate() {
            for other in &PRESETS[place + 1..] {
                assert_ne!(one.name, other.name);
                assert_ne!(one.policy, other.policy, "{} and {}", one.name, other.name);
            }
        }
    }

    #[test]
    fn every_preset_is_valid_and_prints_as_its_name() {
        for preset in PRESETS {
            assert_eq!(preset.policy.validate(), Ok(()), "{}", preset.name);
            assert_eq!(preset.policy.to_string(), preset.name);
        }
    }

    #[test]
    fn a_member_knows_its_number() {
        for family in FAMILIES {
            for microseconds in [1, 37, 10_000_000] {
                let policy = family.policy(microseconds).expect("within the bounds");
                assert_eq!(family.member(&policy), Some(microseconds), "{}", family.pattern);
            }
            assert_eq!(family.policy(0), None);
            assert_eq!(family.policy(10_000_001), None);
            assert_eq!(family.member(&Policy::FULLBUSY), None);
        }
    }

    #[test]
    fn the_values_shown_are_the_values_held() {
        let shown = |name| Preset::find(name).map(Preset::values).unwrap_or_default();
        assert_eq!(
            shown("suspend20"),
            "defer-hard-irqs=100,gro-flush-timeout=20us,irq-suspend-timeout=20ms,\
             epoll-busy-poll-budget=64,epoll-prefer-busy-poll=on"
        );
        assert_eq!(shown("feedback"), "feedback=on");
        assert_eq!(FAMILIES[0].values(), "defer-hard-irqs=100,gro-flush-timeout=50us");
    }
}
