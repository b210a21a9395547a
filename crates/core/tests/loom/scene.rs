//! A scene: settings, a start situation and concurrent acts; and its exploration.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use loom::thread::spawn;
use napkin_core::race::{self, Race};
use napkin_core::*;
use napkin_policy::{CpuPolicy, EpollPolicy, InstancePolicy, NetSoftirq, Threaded};

use crate::world::{Actor, CPU, ID, LATE, PERIOD, SUSPENSION, World, join};

/// Preemptions to explore where neither the environment nor the model says otherwise.
const PREEMPTIONS: usize = 2;

/// The situation in which a scene starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Unmasked, without an owner, nothing waits.
    Idle,
    /// A packet's interrupt has been taken; its owner has not begun to poll ([`Act::Owner`]).
    Taken,
    /// A packet has been delivered, and (with deferral) the timer is armed.
    Served,
    /// Disabled, a packet in the ring.
    Disabled,
}

/// What one actor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// The softirq, thread or worker that [`Start::Taken`] has left to be run.
    Owner,
    /// A packet arrives; its interrupt, softirq and so on run here.
    Packet,
    /// An interrupt without a cause.
    Stray,
    /// An application's wait; with `prefer` or without.
    Busy(bool),
    /// The timer fires late.
    Timer,
    /// A poll with budget 0.
    TxPoll,
    /// A receiver has drained.
    Schedule,
    /// The mode changes.
    Set(Threaded),
    /// The interrupt moves to the other CPU.
    Move,
    /// Disable, from the model's main thread only.
    Disable,
    /// A disable that is abandoned at its first sleep.
    Abandon,
    /// A disable that is abandoned before its first step.
    AbandonAtOnce,
    /// Enable.
    Enable,
}

/// Settings of the models.
pub(crate) const SOFTIRQ: InstancePolicy = InstancePolicy {
    threaded: Threaded::Disabled,
    defer_hard_irqs: 0,
    gro_flush_timeout: 0,
    irq_suspend_timeout: 0,
    hold: 0,
    hold_tick: 0,
    feedback: false,
};
pub(crate) const DEFER: InstancePolicy =
    InstancePolicy { defer_hard_irqs: 1, gro_flush_timeout: PERIOD, ..SOFTIRQ };
pub(crate) const SUSPEND: InstancePolicy =
    InstancePolicy { defer_hard_irqs: 2, irq_suspend_timeout: SUSPENSION, ..DEFER };
pub(crate) const THREAD: InstancePolicy = InstancePolicy { threaded: Threaded::Enabled, ..SOFTIRQ };
pub(crate) const THREAD_DEFER: InstancePolicy =
    InstancePolicy { threaded: Threaded::Enabled, ..DEFER };
pub(crate) const BUSY_THREAD: InstancePolicy =
    InstancePolicy { threaded: Threaded::BusyPoll, ..SOFTIRQ };
pub(crate) const WORKER: InstancePolicy =
    InstancePolicy { threaded: Threaded::Workqueue, ..SOFTIRQ };
pub(crate) const HOLD: InstancePolicy = InstancePolicy { hold: 3, ..SOFTIRQ };

/// An epoll context that follows the instance.
pub(crate) fn context(prefer: bool) -> EpollContext {
    let policy = EpollPolicy {
        busy_poll_usecs: 0,
        busy_poll_budget: 1,
        prefer_busy_poll: prefer,
        keep_napi_id: false,
    };
    let context = EpollContext::new(policy, u32::from(!prefer));
    context.follow(ID);
    context
}

/// One model.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) policy: InstancePolicy,
    pub(crate) start: Start,
    /// The concurrent acts; the last one runs on the main thread.
    pub(crate) acts: Vec<Act>,
    pub(crate) one_shot: bool,
    pub(crate) rules: Rules,
    pub(crate) order: Order,
    pub(crate) depth: Depth,
}

/// Where a CPU's softirqs run, and how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Inline, within limits that no model reaches.
    Inline,
    /// Inline, one packet and one pass at a time; ksoftirqd takes over.
    Squeezed,
    /// The same, and nothing inline while ksoftirqd is runnable (Linux 4.9 to 6.4).
    SqueezedOld,
    /// Network vectors in ksoftirqd, as another thread wants the CPU (2018, as meant).
    Ksoftirqd,
}

impl Rules {
    pub(crate) fn apply(self, world: &World) {
        let squeezed =
            Limits { budget: 1, budget_time: LATE, dispatch_time: LATE, dispatch_passes: 1 };
        let (limits, policy) = match self {
            Rules::Inline => (Limits::default(), CpuPolicy::default()),
            Rules::Squeezed => (squeezed, CpuPolicy::default()),
            Rules::SqueezedOld => {
                (squeezed, CpuPolicy { inline_while_ksoftirqd: false, ..Default::default() })
            }
            Rules::Ksoftirqd => {
                let net_softirq = NetSoftirq::Ksoftirqd;
                (Limits::default(), CpuPolicy { net_softirq, ..Default::default() })
            }
        };
        for cpu in 0..world.host.cpus() {
            world.host.cpu(CpuId(cpu)).set_limits(limits);
            world.host.cpu(CpuId(cpu)).set_policy(policy);
        }
    }
}

/// How many preemptions are explored where the environment does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Shallow,
    Usual,
    Unbounded,
}

impl Scene {
    pub(crate) fn new(policy: InstancePolicy, start: Start, acts: &[Act]) -> Self {
        let acts = acts.to_vec();
        let (rules, depth) = (Rules::Inline, Depth::Usual);
        let order = Order::DeliverFirst;
        Scene { policy, start, acts, one_shot: false, rules, order, depth }
    }

    pub(crate) fn rules(self, rules: Rules) -> Self {
        Scene { rules, ..self }
    }

    /// The driver unmasks before it delivers.
    pub(crate) fn unmask_first(self) -> Self {
        Scene { order: Order::UnmaskFirst, ..self }
    }

    /// One preemption: for scenes that have many schedules.
    pub(crate) fn shallow(self) -> Self {
        Scene { depth: Depth::Shallow, ..self }
    }

    /// Every schedule: for the smallest scenes.
    pub(crate) fn unbounded(self) -> Self {
        Scene { depth: Depth::Unbounded, ..self }
    }

    pub(crate) fn one_shot(self) -> Self {
        Scene { one_shot: true, ..self }
    }

    /// Runs the scene once, under loom.
    fn play(&self) {
        let world = World::new(&self.policy, self.one_shot);
        world.host.set_order(ID, self.order);
        let mut main = Actor::new(&world);
        self.rules.apply(&world);
        match self.start {
            Start::Idle => main.enable(),
            Start::Taken => {
                main.enable();
                main.packet_only();
            }
            Start::Served => {
                main.enable();
                main.packet();
            }
            Start::Disabled => main.packet(),
        }
        let mut owner = Some(main.hand_over());
        let mut others = vec![];
        let (last, first) = self.acts.split_last().expect("a scene has acts");
        for &act in first {
            let mut actor = match act {
                Act::Owner => owner.take().expect("one owner"),
                _ => Actor::new(&world),
            };
            let policy = self.policy;
            others.push(spawn(move || actor.play(act, policy, &mut vec![])));
        }
        if *last == Act::Owner {
            main = owner.take().expect("one owner");
        }
        main.play(*last, self.policy, &mut others);
        join(&mut others);
        if let Some(mut owner) = owner {
            owner.way_out();
        }
        if self.policy.threaded == Threaded::BusyPoll {
            // The thread no longer spins, or the model would not have got here.
            main.set(&SOFTIRQ);
        }
        main.settle();
        if world.host.instance(ID).state().disabled() {
            main.enable();
            main.settle();
        }
        // Traffic still flows.
        main.packet();
        main.settle();
    }

    /// Explores the scene; panics if it fails.
    pub(crate) fn check(&self) {
        if let Err(why) = self.outcome() {
            panic!("{self}: {why}");
        }
    }

    /// Explores the scene, and returns what failed.
    pub(crate) fn outcome(&self) -> Result<(), String> {
        let scene = self.clone();
        let began = std::time::Instant::now();
        match catch_unwind(AssertUnwindSafe(|| explored(self.depth, move || scene.play()))) {
            Ok(runs) => {
                println!("{runs:>9} schedules, {:>6} ms: {self}", began.elapsed().as_millis());
                Ok(())
            }
            Err(why) => Err(text_of(why)),
        }
    }

    /// Explores the scene with a race re-introduced, and requires it to fail.
    pub(crate) fn fails_with(&self, race: Race) -> String {
        let scene = self.clone();
        fails_with(race, move || scene.play())
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = match self.policy {
            SOFTIRQ => "softirq",
            DEFER => "defer",
            SUSPEND => "suspend",
            THREAD => "thread",
            THREAD_DEFER => "thread, defer",
            BUSY_THREAD => "busy thread",
            WORKER => "worker",
            HOLD => "hold",
            _ => "other settings",
        };
        let line = if self.one_shot { ", one-shot" } else { "" };
        let Scene { start, acts, rules, order, depth, .. } = self;
        write!(f, "{policy}{line}, {order:?}, {rules:?}, {depth:?}, {start:?}: {acts:?}")
    }
}

impl Actor {
    pub(crate) fn play(
        &mut self,
        act: Act,
        policy: InstancePolicy,
        others: &mut Vec<loom::thread::JoinHandle<()>>,
    ) {
        match act {
            Act::Owner => self.way_out(),
            Act::Packet => self.packet(),
            Act::Stray => self.interrupt(),
            Act::Busy(prefer) => {
                self.events = Some([0, 0].into());
                self.wait(&context(prefer));
            }
            Act::Timer => self.timer(LATE),
            Act::TxPoll => self.tx_poll(),
            Act::Schedule => self.schedule(napkin_core::RaisedFrom::Application),
            Act::Set(threaded) => self.set(&InstancePolicy { threaded, ..policy }),
            Act::Move => {
                // No timer of this world fires by itself, whichever CPU's it is.
                let _ = self.world.host.set_cpu(self.id, CpuId(1 - CPU.0));
            }
            Act::Disable => self.disable(others),
            Act::Abandon => self.abandon_disable(false),
            Act::AbandonAtOnce => self.abandon_disable(true),
            Act::Enable => self.enable(),
        }
    }
}

/// Explores a model, and returns the number of its schedules.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) -> u64 {
    explored(Depth::Usual, model)
}

pub(crate) fn explored(depth: Depth, model: impl Fn() + Send + Sync + 'static) -> u64 {
    let runs = Arc::new(AtomicU64::new(0));
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    let asked = builder.preemption_bound;
    builder.preemption_bound = match depth {
        _ if std::env::var_os("NAPKIN_LOOM_UNBOUNDED").is_some() => None,
        Depth::Unbounded => None,
        Depth::Usual => asked.or(Some(PREEMPTIONS)),
        Depth::Shallow => asked.or(Some(PREEMPTIONS - 1)),
    };
    let count = runs.clone();
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        model();
    });
    runs.load(Relaxed)
}

/// Explores a model with a race re-introduced, requires it to fail, and returns how.
pub(crate) fn fails_with(race: Race, model: impl Fn() + Send + Sync + 'static) -> String {
    race::set(Some(race));
    let outcome = catch_unwind(AssertUnwindSafe(|| explore(model)));
    race::set(None);
    match outcome {
        Ok(runs) => panic!("{race:?} was switched on, and none of {runs} schedules failed"),
        Err(why) => text_of(why),
    }
}

fn text_of(why: Box<dyn std::any::Any + Send>) -> String {
    match why.downcast::<String>() {
        Ok(text) => *text,
        Err(why) => why.downcast::<&str>().map_or_else(|_| String::new(), |text| text.to_string()),
    }
}
