//! The core against the reference model: one instance, one CPU, any sequence of arrivals,
//! settings, waits and time, compared after every one of them.

use crate::model::{LOOK, Model, SOCKET, Seen};
use crate::world;
use crate::world::talk::{CPU, ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::{EpollPolicy, InstancePolicy, Policy};
use proptest::prelude::*;

const US: Ns = MICROSECOND;

/// One event.
#[derive(Debug, Clone)]
enum Happens {
    Arrive(usize),
    Completions(u16),
    Advance(Ns),
    Set(InstancePolicy),
    Follow(usize),
    Wait { who: usize, budget: u16, prefer: bool, keep: bool },
    Schedule,
}

/// The core, driven like the model: after each event everything runs until nothing more does.
struct Real<'t> {
    talk: &'t Talk,
    contexts: [EpollContext; 2],
    ksoftirqd: Speaker<'t, Softirq<'t, world::Port>>,
}

impl<'t> Real<'t> {
    fn new(talk: &'t Talk) -> Self {
        let prefer = || {
            EpollContext::new(EpollPolicy { prefer_busy_poll: true, ..EpollPolicy::default() }, 0)
        };
        let ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
        Real { talk, contexts: [prefer(), prefer()], ksoftirqd }
    }

    fn settle(&mut self) {
        let cpu = self.talk.host.cpu(CPU);
        if self.talk.interrupt(ID).ends_with("raise") {
            self.talk.softirq();
        }
        while cpu.ksoftirqd_runnable() {
            let steps = self.ksoftirqd.run_next(1);
            if steps == "yield" || steps == "sleep" {
                break;
            }
        }
    }

    fn happens(&mut self, what: &Happens) {
        let talk = self.talk;
        match *what {
            Happens::Arrive(frames) => talk.arrive(frames),
            Happens::Completions(n) => talk.device(ID).completions += n,
            Happens::Advance(ns) => return self.advance(ns),
            Happens::Set(policy) => {
                talk.host.set(ID, &policy).expect("within its limits");
                return;
            }
            Happens::Follow(who) => return self.contexts[who].follow(ID),
            Happens::Wait { who, budget, prefer, keep } => {
                let params = EpollPolicy {
                    busy_poll_usecs: u32::from(!prefer),
                    busy_poll_budget: budget,
                    prefer_busy_poll: prefer,
                    keep_napi_id: keep,
                };
                talk.look_cost.set(if prefer { 0 } else { LOOK });
                self.contexts[who].set(params);
                let wait = EpollWait::new(&talk.host, &self.contexts[who], None, true);
                let mut wait = talk.hear(wait);
                wait.run();
                if wait.pass.events() > 0 {
                    talk.read();
                }
            }
            Happens::Schedule => {
                if let Some(op) = talk.host.schedule(ID, RaisedFrom::Application) {
                    talk.word(op);
                }
            }
        }
        if let Happens::Completions(_) = what {
            return;
        }
        self.settle();
    }

    fn advance(&mut self, ns: Ns) {
        let talk = self.talk;
        let target = talk.now.get() + ns;
        while talk.now.get() < target {
            let now = talk.now.get();
            let spins = talk.host.cpu(CPU).ksoftirqd_runnable();
            let tick = if spins { now + US } else { NEVER };
            talk.at(target.min(tick).min(talk.host.next_deadline(CPU).max(now)));
            if talk.timer() == "raise" {
                talk.softirq();
            }
            self.settle();
        }
    }

    fn seen(&self) -> Seen {
        let instance = self.talk.host.instance(ID);
        let counts = instance.counts();
        let device = self.talk.device(ID);
        Seen {
            ring: device.waiting(),
            masked: device.masked,
            deadline: instance.deadline(),
            socket: self.talk.sockets.borrow()[0].frames,
            suspending: instance.suspending_contexts(),
            follows: [0, 1].map(|who| self.contexts[who].follows().is_some()),
            interrupts: counts.interrupts,
            polls: counts.polls.iter().sum(),
            empty_polls: counts.all_empty_polls(),
            packets: counts.packets,
            completions: counts.completions,
            unmasks: device.unmasks,
            deferrals: counts.deferrals,
            parks: counts.parks,
            repolls: counts.repolls,
            timer_polls: counts.timer_polls,
            timer_missed: counts.timer_missed,
        }
    }
}

fn model_happens(model: &mut Model, what: &Happens) {
    match *what {
        Happens::Arrive(frames) => model.arrive(frames),
        Happens::Completions(n) => model.done += n,
        Happens::Advance(ns) => model.advance(ns),
        Happens::Set(policy) => model.settings = policy,
        Happens::Follow(who) => model.seen.follows[who] = true,
        Happens::Wait { who, budget, prefer, keep } => model.wait(who, budget, prefer, keep),
        Happens::Schedule => model.schedule(),
    }
}

/// Runs both; the first difference is an error.
fn compare(settings: InstancePolicy, order: Order, story: &[Happens]) -> Result<Seen, String> {
    let talk = Talk::new("base");
    talk.sockets.borrow_mut()[0].capacity = SOCKET;
    // The model has one loop in place of softirq and ksoftirqd: let this host's softirq never hand over.
    let limits = Limits { dispatch_passes: u8::MAX, ..Limits::default() };
    talk.host.cpu(CPU).set_limits(limits);
    talk.host.set(ID, &settings).map_err(|e| e.to_string())?;
    talk.host.set_order(ID, order);
    let mut real = Real::new(&talk);
    let mut model = Model::new(settings, order);
    for (place, what) in story.iter().enumerate() {
        real.happens(what);
        model_happens(&mut model, what);
        let (seen, expected) = (real.seen(), model.observe());
        if seen != expected {
            return Err(format!(
                "{settings:?} {order:?}\nafter {:?}\ncore:  {seen:?}\nmodel: {expected:?}",
                &story[..=place]
            ));
        }
    }
    Ok(real.seen())
}

fn settings() -> impl Strategy<Value = InstancePolicy> {
    let times = |values: &'static [Ns]| prop::sample::select(values);
    (
        prop::sample::select(&[0u32, 1, 2, 3, 100][..]),
        times(&[0, 5_000, 20_000, 20_000]),
        times(&[0, 50_000, 200_000, 1_000_000]),
        times(&[0, 0, 0, 10_000, 30_000]),
        times(&[0, 0, 4_000]),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(n, period, suspend, hold, hold_tick, feedback)| InstancePolicy {
            defer_hard_irqs: n,
            gro_flush_timeout: period,
            irq_suspend_timeout: suspend,
            hold,
            hold_tick,
            feedback,
            ..InstancePolicy::default()
        })
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => prop::sample::select(&[1usize, 1, 5, 63, 64, 65, 150][..]).prop_map(Happens::Arrive),
        1 => (1u16..5).prop_map(Happens::Completions),
        6 => prop::sample::select(
            &[1, 999, 4_999, 5_000, 20_000, 20_000, 60_000, 250_000, 2_000_000][..]
        ).prop_map(Happens::Advance),
        1 => settings().prop_map(Happens::Set),
        3 => (0usize..2).prop_map(Happens::Follow),
        4 => (0usize..2, prop::sample::select(&[1u16, 8, 64][..]), prop::bool::weighted(0.7), prop::bool::weighted(0.3))
            .prop_map(|(who, budget, prefer, keep)| Happens::Wait { who, budget, prefer, keep }),
        1 => Just(Happens::Schedule),
    ]
}

fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 400;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_core_does_what_the_model_does(
        settings in settings(),
        story in prop::collection::vec(happens(), 1..120),
    ) {
        for order in [Order::DeliverFirst, Order::UnmaskFirst] {
            compare(settings, order, &story).map_err(TestCaseError::fail)?;
        }
    }

    /// The interrupt returns N periods after the last packet, whatever came before.
    #[test]
    fn the_interrupt_returns_n_periods_after_the_last_packet(
        n in 1u32..120,
        period in prop::sample::select(&[US, 20 * US, 333 * US][..]),
        arrivals in prop::collection::vec((1usize..130, 0u64..400_000), 1..12),
    ) {
        let settings = InstancePolicy {
            defer_hard_irqs: n,
            gro_flush_timeout: period,
            ..InstancePolicy::default()
        };
        let talk = Talk::new("base");
        talk.host.set(ID, &settings).expect("within its limits");
        let mut real = Real::new(&talk);
        for &(frames, gap) in &arrivals {
            real.happens(&Happens::Advance(gap));
            real.happens(&Happens::Arrive(frames));
        }
        // What waits for the timer is found at its next period; that poll is the last with work.
        while talk.device(ID).waiting() > 0 {
            real.advance(talk.host.instance(ID).deadline() - talk.now.get());
        }
        let (last, before) = (talk.now.get(), talk.counts());
        while talk.masked() {
            let deadline = talk.host.instance(ID).deadline();
            prop_assert!(deadline != NEVER);
            real.advance(deadline - talk.now.get());
        }
        let polled = talk.counts().all_empty_polls() - before.all_empty_polls();
        prop_assert_eq!(polled, u64::from(n));
        prop_assert_eq!(talk.now.get() - last, Ns::from(n) * period);
    }
}

#[test]
fn a_hundred_times_twenty_microseconds_are_two_milliseconds() {
    let preset: Policy = "defer20".parse().expect("a preset");
    let settings = preset.instance;
    let story = |rest| [Happens::Arrive(1), Happens::Advance(rest)];
    let order = Order::DeliverFirst;
    let seen = compare(settings, order, &story(2 * MILLISECOND - 1)).expect("the model agrees");
    assert!(seen.masked);
    let seen = compare(settings, order, &story(2 * MILLISECOND)).expect("the model agrees");
    assert!(!seen.masked);
    assert_eq!((seen.timer_polls, seen.deferrals, seen.empty_polls), (100, 100, 100));
}
