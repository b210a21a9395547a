//! Derives the keys of a profile from raw figures.
//!
//! The machine charges the parts of a step one after another (`docs/profiles.md`), while a call that was timed from
//! outside consists of several of them. Each difference is taken within one round, and the spread of a key is that
//! of its rounds.

use std::collections::BTreeMap;

use napkin_machine::profile::{DraftConstant, Profile};
use napkin_measure::interleave::median;

use super::calls::{EVENTS_BEYOND_ONE, FRAMES_BETWEEN};
use super::estimate::Estimate;
use super::round::Round;
use super::threads::IDLE_US;

/// A constant of this host, for a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// The key in a profile.
    pub key: String,
    /// The value, in the key's base unit.
    pub value: f64,
    /// Whether it was read or measured, rather than assumed.
    pub sourced: bool,
    /// How it was measured, where it was read, or why it is assumed.
    pub how: String,
    /// The minimum and maximum of the rounds.
    pub range: Option<(f64, f64)>,
}

impl Constant {
    /// A constant that was read or measured.
    pub fn sourced(key: &str, value: f64, how: impl Into<String>) -> Constant {
        Constant { key: key.into(), value, sourced: true, how: how.into(), range: None }
    }

    /// A constant that was not measured.
    pub fn assumed(key: &str, value: f64, why: impl Into<String>) -> Constant {
        Constant { sourced: false, ..Constant::sourced(key, value, why) }
    }

    /// Converts it for writing into a profile.
    pub fn written(&self) -> DraftConstant {
        let Constant { key, value, sourced, how, range } = self.clone();
        DraftConstant { key, value, sourced, why: how, range }
    }
}

/// Keys that were not measured, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The keys, separated by commas.
    pub keys: String,
    /// The reason, in words.
    pub why: String,
}

/// A key, a description of how it is measured, and its value in one round.
type Rule = (&'static str, &'static str, fn(&Parts) -> Option<f64>);

/// One round, with values of the base profile for steps that cannot be timed separately.
struct Parts {
    round: Round,
    look: f64,
    entry_and_exit: f64,
    locality_half: f64,
    sharpness: f64,
}

impl Parts {
    fn raw(&self, name: &str) -> Option<f64> {
        self.round.get(name)
    }

    fn difference(&self, name: &str, other: &str) -> Option<f64> {
        Some(self.raw(name)? - self.raw(other)?)
    }

    fn event(&self) -> Option<f64> {
        Some(self.difference("call.epoll-several", "call.epoll-one")? / EVENTS_BEYOND_ONE)
    }

    fn epoll_half(&self) -> Option<f64> {
        Some((self.raw("call.epoll-none")? - self.look) / 2.0)
    }

    fn switch(&self) -> Option<f64> {
        self.difference("thread.yield", "thread.null")
    }

    fn wake(&self) -> Option<f64> {
        self.difference("thread.ring-sleeper", "thread.ring-nobody")
    }

    /// Entry and exit of an interrupt together; from the base profile if they were not measured, as in that case
    /// their keys are too.
    fn entry_and_exit(&self) -> f64 {
        self.raw("trace.interrupt-outside").map_or(self.entry_and_exit, |time| time.max(0.0))
    }

    /// The arming of an instance's timer, or else of any timer that is the next to expire.
    fn timer_arm(&self) -> Option<f64> {
        self.raw("trace.timer-arm").or_else(|| self.difference("call.timer-set", "call.null"))
    }

    fn frame(&self) -> Option<f64> {
        // At most the cost of a whole frame, of which GRO is a part.
        Some(self.raw("trace.frame")?.min(self.raw("trace.poll-each")?))
    }

    /// A softirq that polls one frame, within the sender's call.
    fn inline(&self) -> Option<f64> {
        // The measured polls arm the instance's timer; the poll in the sender's call does not.
        let base = self.raw("trace.poll-base")? - self.timer_arm()?;
        let each = self.raw("trace.poll-each")?;
        Some(self.raw("trace.softirq-entry")? + base + each + self.raw("trace.softirq-exit")?)
    }

    /// From the interrupt's arrival at a busy CPU to the return of the wait there.
    fn after_ipi(&self) -> Option<f64> {
        Some(
            self.entry_and_exit()
                + self.switch()?
                + self.look
                + self.event()?
                + self.epoll_half()?,
        )
    }

    fn idle(&self, us: u64) -> Option<f64> {
        self.difference(&format!("wake.idle-{us}"), "wake.busy")
    }

    fn client_delay(&self) -> Option<f64> {
        let send = self.raw("call.send-request")? - self.inline()?;
        let recv = self.raw("across.recv").or_else(|| self.raw("call.recv"))?;
        Some(send.max(0.0) + self.raw("call.epoll-one")? + recv)
    }
}

/// The rules of all measured keys.
const RULES: &[Rule] = &[
    (
        "cost.interrupt-entry",
        "half of a timer interrupt beyond its trace points, seen by a thread that reads the clock",
        |it| it.raw("trace.interrupt-outside").map(|time| time / 2.0),
    ),
    ("cost.interrupt-exit", "the other half of it", |it| {
        it.raw("trace.interrupt-outside").map(|time| time / 2.0)
    }),
    ("cost.tick", "local_timer_entry to local_timer_exit of a tick on a busy CPU", |it| {
        it.raw("trace.tick")
    }),
    ("cost.timer-expiry", "local_timer_entry to local_timer_exit of an instance's timer", |it| {
        it.raw("trace.timer")
    }),
    (
        "cost.timer-arm",
        "hrtimer_start to napi_poll in an empty poll; without trace points, timerfd_settime of the next timer less an empty system call",
        Parts::timer_arm,
    ),
    ("cost.softirq-entry", "local_timer_exit to softirq_entry", |it| it.raw("trace.softirq-entry")),
    ("cost.softirq-exit", "napi_poll to softirq_exit", |it| it.raw("trace.softirq-exit")),
    ("cost.vector", "softirq_entry to softirq_exit of the others' vectors", |it| {
        it.raw("trace.vector")
    }),
    (
        "cost.poll",
        "softirq_entry to hrtimer_start in an empty poll by the instance's timer",
        // A profile does not accept a poll that costs nothing.
        |it| it.raw("trace.poll").map(|time| time.max(1.0)),
    ),
    ("cost.poll-frame", "one napi_gro_receive_entry to the next", Parts::frame),
    ("cost.deliver", "the line through polls of 1 to 31 frames, at 0, less an empty poll", |it| {
        it.difference("trace.poll-base", "trace.poll-empty")
    }),
    ("cost.deliver-frame", "the line's slope less cost.poll-frame: TCP, to the socket", |it| {
        Some(it.raw("trace.poll-each")? - it.frame()?)
    }),
    ("cost.wake", "a write to an eventfd with a sleeper of this CPU less one without", Parts::wake),
    ("cost.switch", "sched_yield between two threads less an empty system call", Parts::switch),
    ("cost.ipi", "a wake-up of a busy CPU's thread less the parts at both ends", |it| {
        let wake = it.raw("thread.ring-nobody")? + it.wake()?;
        Some(it.raw("wake.busy")? - wake - it.after_ipi()?)
    }),
    (
        "processor.idle-exit",
        "a wake-up 20 us after the CPU went idle less one of a busy CPU",
        |it| it.idle(20),
    ),
    (
        "processor.idle-exit-deep",
        "a wake-up 4 ms after the CPU went idle less one of a busy CPU",
        |it| it.idle(4_000),
    ),
    (
        "cost.epoll-enter",
        "half of an epoll_wait that finds nothing and does not wait",
        Parts::epoll_half,
    ),
    ("cost.epoll-return", "the other half of it", Parts::epoll_half),
    (
        "cost.epoll-event",
        "an epoll_wait that returns 8 events less one that returns 1, by 7",
        Parts::event,
    ),
    ("cost.recv", "recv of a request that this CPU has just delivered", |it| it.raw("call.recv")),
    ("cost.recv-empty", "recv that finds nothing", |it| it.raw("call.recv-empty")),
    (
        "cost.send",
        "send of an answer to a client on another CPU that spins, whose poll and delivery are in it",
        |it| it.raw("across.send-answer").or_else(|| it.raw("call.send-answer")),
    ),
    (
        "locality.cross-cpu",
        "recv of a request that another CPU delivered less one of this CPU's",
        |it| it.difference("across.recv", "call.recv"),
    ),
    (
        "locality.frame",
        "recv of a request delivered 31 frames ago less one delivered just now, at locality.half",
        |it| {
            let full = (FRAMES_BETWEEN / it.locality_half).powf(it.sharpness);
            Some(it.difference("call.recv-cold", "call.recv")? * (full + 1.0) / full)
        },
    ),
    (
        "memcached.client-delay",
        "the client's send without the server's poll in it, an epoll_wait and a recv",
        Parts::client_delay,
    ),
];

/// Derives the constants from these rounds, each with the spread of the rounds. `base` provides what cannot be
/// measured separately.
pub fn constants(rounds: &[Round], base: &Profile) -> Vec<Constant> {
    let parts = |round: &Round| Parts {
        round: round.clone(),
        look: base.get("cost.look"),
        entry_and_exit: base.get("cost.interrupt-entry") + base.get("cost.interrupt-exit"),
        locality_half: base.get("locality.half"),
        sharpness: base.get("locality.sharpness"),
    };
    let parts: Vec<Parts> = rounds.iter().map(parts).collect();
    let mut found = Vec::new();
    for (key, how, of) in RULES {
        let all: Vec<f64> = parts.iter().filter_map(of).collect();
        if let Some(Estimate { value, low, high, rounds }) = Estimate::of(&all) {
            found.push(Constant {
                key: (*key).into(),
                value,
                sourced: true,
                how: format!("{how}; median of {rounds} rounds"),
                range: Some((low, high)),
            });
        }
    }
    found.extend(idle_depth(rounds));
    if let Some(switch) = found.iter().find(|it| it.key == "cost.switch").map(|it| it.value) {
        let why = "half of a switch: its way to the idle loop";
        let range = Some((0.0, switch));
        let constant = Constant::assumed("cost.switch-idle", switch / 2.0, why);
        found.push(Constant { range, ..constant });
    }
    found
}

/// The keys that have a rule but no value from the rounds.
pub fn unmeasured(found: &[Constant]) -> Vec<&'static str> {
    let keys = RULES.iter().map(|it| it.0).chain(["processor.idle-deep-after"]);
    keys.filter(|key| !found.iter().any(|it| it.key == *key)).collect()
}

/// Median latency of a wake-up, in nanoseconds, by how long the CPU had been idle, in microseconds.
pub fn idle_table(rounds: &[Round]) -> Vec<(u64, f64)> {
    IDLE_US
        .iter()
        .filter_map(|&us| {
            let all: Vec<f64> =
                rounds.iter().filter_map(|it| it.get(&format!("wake.idle-{us}"))).collect();
            Some((us, Estimate::of(&all)?.value))
        })
        .collect()
}

/// The idle time after which a CPU is in a deep idle state: the first at which a wake-up takes longer than half way
/// between the shortest and the longest idle time.
fn idle_depth(rounds: &[Round]) -> Option<Constant> {
    /// A ratio up to this counts as no difference.
    const NONE: f64 = 1.3;
    let table = idle_table(rounds);
    let (&(_, shallow), &(longest, deep)) = (table.first()?, table.last()?);
    let key = "processor.idle-deep-after";
    if deep < shallow * NONE {
        let how = format!("a wake-up takes as long after {longest} us of idleness as after 20");
        return Some(Constant::assumed(key, 1e9, how));
    }
    let middle = (shallow + deep) / 2.0;
    let place = table.iter().position(|(_, time)| *time > middle)?;
    let (us, before) = (table.get(place)?.0, table.get(place.checked_sub(1)?)?.0);
    Some(Constant {
        range: Some((before as f64 * 1e3, us as f64 * 1e3)),
        ..Constant::sourced(
            key,
            (before + us) as f64 / 2.0 * 1e3,
            format!("wake-ups take longer after {us} us of idleness than after {before}"),
        )
    })
}

/// The distance of a profile's costs from the measured ones: the median ratio, in whichever direction exceeds 1,
/// over the costs that both have; 1 means none.
pub fn distance(profile: &Profile, constants: &[Constant]) -> f64 {
    let known: BTreeMap<String, f64> =
        profile.constants().map(|it| (it.key.path(), it.value)).collect();
    let ratios = constants
        .iter()
        .filter(|it| it.key.starts_with("cost.") && it.value > 0.0 && it.range.is_some())
        .filter_map(|it| Some((it.value, *known.get(&it.key)?)))
        .filter(|(_, other)| *other > 0.0)
        .map(|(value, other)| (value / other).max(other / value));
    median(ratios).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {

    use super::*;

    fn base() -> Profile {
        Profile::named(napkin_workload::schema(), "epyc-7662").expect("built in")
    }

    /// A host with known costs, timed as the rounds time them; `slow` scales all times of the round.
    fn host(slow: f64) -> Round {
        let mut round = Round::default();
        for (name, value) in [
            ("call.null", 100.0),
            ("call.epoll-none", 330.0),
            ("call.epoll-one", 480.0),
            ("call.epoll-several", 480.0 + 7.0 * 40.0),
            ("call.recv", 300.0),
            ("call.recv-cold", 400.0),
            ("call.recv-empty", 150.0),
            ("call.send-request", 5_000.0),
            ("call.send-answer", 4_000.0),
            ("call.timer-set", 350.0),
            ("across.recv", 700.0),
            ("across.send-answer", 4_500.0),
            ("thread.null", 100.0),
            ("thread.yield", 900.0),
            ("thread.ring-nobody", 300.0),
            ("thread.ring-sleeper", 1_000.0),
            ("wake.busy", 5_000.0),
            ("wake.idle-20", 6_000.0),
            ("wake.idle-50", 6_100.0),
            ("wake.idle-4000", 45_000.0),
            ("trace.interrupt-outside", 400.0),
            ("trace.timer", 500.0),
            ("trace.softirq-entry", 80.0),
            ("trace.softirq-exit", 90.0),
            ("trace.poll-empty", 600.0),
            ("trace.poll", 340.0),
            ("trace.timer-arm", 260.0),
            ("trace.poll-base", 750.0),
            ("trace.poll-each", 1_500.0),
            ("trace.frame", 250.0),
        ] {
            round.put(name, value * slow);
        }
        round
    }

    #[test]
    fn each_step_is_charged_to_its_key_once() {
        let found = constants(&[host(1.0)], &base());
        let of = |key: &str| found.iter().find(|it| it.key == key).map(|it| it.value);
        for (key, value) in [
            ("cost.interrupt-entry", 200.0),
            ("cost.interrupt-exit", 200.0),
            ("cost.timer-arm", 260.0),
            ("cost.poll", 340.0),
            ("cost.deliver", 150.0),
            ("cost.poll-frame", 250.0),
            ("cost.deliver-frame", 1_250.0),
            ("cost.wake", 700.0),
            ("cost.switch", 800.0),
            ("cost.epoll-enter", 150.0),
            ("cost.epoll-event", 40.0),
            ("cost.send", 4_500.0),
            ("locality.cross-cpu", 400.0),
            ("processor.idle-exit", 1_000.0),
            ("processor.idle-exit-deep", 40_000.0),
            // Half way between 50 us and 4 ms.
            ("processor.idle-deep-after", 2_025_000.0),
            // 5000 - (300 + 700) - (400 + 800 + 30 + 40 + 150)
            ("cost.ipi", 2_580.0),
            // 5000 - (80 + 750 - 260 + 1500 + 90) + 480 + 700
            ("memcached.client-delay", 4_020.0),
        ] {
            let found = of(key).unwrap_or_else(|| panic!("{key}"));
            assert!((found - value).abs() < 1e-6, "{key}: {found}");
        }
        assert_eq!(of("cost.tick"), None, "no tick was seen");
    }

    #[test]
    fn the_range_is_the_spread_of_the_rounds_and_holds_the_value() {
        let found = constants(&[host(1.2), host(1.0), host(1.1)], &base());
        let recv = found.iter().find(|it| it.key == "cost.recv").unwrap();
        assert_eq!((recv.value, recv.range), (330.0, Some((300.0, 360.0))));
        for constant in &found {
            let (low, high) = constant.range.unwrap_or((constant.value, constant.value));
            assert!(low <= constant.value && constant.value <= high, "{constant:?}");
        }
    }

    #[test]
    fn without_the_kernel_s_trace_points_the_calls_are_still_measured() {
        let mut round = host(1.0);
        round.0.retain(|name, _| !name.starts_with("trace."));
        let found = constants(&[round], &base());
        let has = |key: &str| found.iter().any(|it| it.key == key);
        assert!(has("cost.recv") && has("cost.switch") && has("processor.idle-exit"));
        assert!(!has("cost.poll") && !has("cost.interrupt-entry"));
        let arm = found.iter().find(|it| it.key == "cost.timer-arm").map(|it| it.value);
        assert_eq!(arm, Some(250.0), "by the system call");
        // Entry and exit of an interrupt are those of the base profile: 250 and 150 ns.
        let ipi = found.iter().find(|it| it.key == "cost.ipi").map(|it| it.value);
        assert!((ipi.unwrap() - 2_580.0).abs() < 1e-6, "{ipi:?}");
    }

    #[test]
    fn every_rule_is_of_a_key() {
        for (key, ..) in RULES {
            assert!(napkin_workload::schema().key(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_profile_is_at_no_distance_from_itself() {
        let base = base();
        let own: Vec<Constant> = base
            .constants()
            .map(|it| Constant {
                range: Some((it.value, it.value)),
                ..Constant::sourced(&it.key.path(), it.value, "itself")
            })
            .collect();
        assert_eq!(distance(&base, &own), 1.0);
        let other = Profile::named(napkin_workload::schema(), "emulator-7.2").expect("built in");
        assert!(distance(&other, &own) > 1.5);
    }
}
