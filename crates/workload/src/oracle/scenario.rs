//! One scenario of the emulated machine: one queue, one sink and one generator, with every count that the kernel's
//! tracer took.
//!
//! CPU 0 has the queue's interrupt, its softirqs, its thread, ksoftirqd and the application; CPU 1 has the
//! generator. A second instance stands for the transmit side, which has its own interrupt and softirqs and default
//! settings; a third one for the generator's card, which an echo interrupts. Occasional events of the emulated
//! machine itself (pauses of some 0.4 ms, other tasks) are not modelled.

use std::collections::BTreeMap;

use napkin_core::{EpollContext, Id, MICROSECOND, MILLISECOND, Ns};
use napkin_machine::{
    Affinity, Class, Config, CurrentTask, Fault, Machine, Placement, SilentClient,
};
use napkin_policy::{EpollPolicy, InstancePolicy, Policy, Threaded};

use super::generator::{Arrivals, Generator};
use crate::machine::run::Outcome;
use napkin_machine::UdpSink;
use napkin_machine::profile::Profile;
use napkin_traffic::Rng;

/// Frames before the window, from which the epoll context learns its instance.
const WARM_UP_FRAMES: u64 = 3;

/// Time from the last of these frames to the first frame of the window.
const WARM_UP_GAP: Ns = 30 * MILLISECOND;

/// Time from the start of the window to its first frame.
const WINDOW_LEAD: Ns = 5 * MILLISECOND;

/// Time from the last frame to the end of the window.
const WINDOW_TAIL: Ns = 37 * MILLISECOND;

/// The sink's receive buffer in bytes if the scenario does not set it.
const BUFFER: u64 = 8 << 20;

/// Limit of the virtual time by which sending may be late.
const MAX_LATENESS: Ns = 2_000 * MILLISECOND;

/// What happens to the sink during the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Event {
    /// Nothing: the sink only receives.
    #[default]
    None,
    /// The sink computes for 50 ms after its 150th datagram.
    Stall,
    /// The sink exits at its 200th datagram.
    Exit,
    /// A second process whose epoll context has learnt the same instance waits for ever.
    TwoIdle,
    /// A second process with its own epoll context receives every 50th datagram.
    Second,
    /// During the frames, the instance's `threaded` changes every 50 ms, in the cycle 0, 1, 2.
    ThreadedCycle,
}

/// Under [`Event::Second`], the second process receives one datagram in this many.
const SECOND: u64 = 50;

/// Under [`Event::ThreadedCycle`], time between two changes of `threaded`.
const CYCLE: Ns = 50 * MILLISECOND;

/// The call in which the sink waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// `epoll_wait`, under the parameters of its context.
    #[default]
    Epoll,
    /// A blocking receive call.
    Receive,
}

/// The parameters of a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// The receiving instance's settings.
    pub instance: InstancePolicy,
    /// The parameters of the sink's epoll context.
    pub epoll: EpollPolicy,
    /// How it waits; without epoll, the parameters above are unused.
    pub wait: Wait,
    /// The sink's work per datagram.
    pub spin: Ns,
    /// Whether it sends each datagram back.
    pub echo: bool,
    /// The socket's receive buffer in bytes; 0 for 8 MiB.
    pub buffer: u64,
    /// The schedule of the frames.
    pub arrivals: Arrivals,
    /// The number of frames, without those before the window.
    pub frames: u64,
    /// What happens to the sink.
    pub event: Event,
}

/// What the kernel's tracer would count in the window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    /// Latencies from stamp to receive call, the counts of queues and CPUs, and the window. A second process
    /// contributes to the counts of polls and interrupts only.
    pub outcome: Outcome,
    /// Polls of the receiving instance, by current task, budget and work.
    pub polls: BTreeMap<(CurrentTask, u16, u16), u64>,
    /// Returns of `epoll_wait`.
    pub wait_returns: u64,
    /// Returns of `epoll_wait` by the number of events.
    pub events: BTreeMap<u32, u64>,
    /// Interrupts of the receive queue.
    pub rx_interrupts: u64,
    /// Interrupts of the transmit queue.
    pub tx_interrupts: u64,
    /// Runs of the network receive softirq.
    pub net_rx: u64,
    /// Softirqs that ran out of time or budget.
    pub time_squeeze: u64,
    /// Expiries of the receiving instance's timer.
    pub timer_expiries: u64,
    /// Starts of that timer.
    pub timer_starts: u64,
    /// Frames that reached the queue.
    pub nic_rx: u64,
    /// Datagrams that the sink read.
    pub received: u64,
    /// Datagrams that were dropped because its socket was full.
    pub dropped: u64,
    /// The sink's voluntary and involuntary switches, and its CPU time in ns.
    pub app: (u64, u64, Ns),
    /// ksoftirqd's switches and CPU time.
    pub ksoftirqd: (u64, Ns),
    /// The instance thread's switches and CPU time.
    pub kthread: (u64, Ns),
}

impl Observed {
    /// Returns all polls and the empty polls by a kind of task.
    pub fn polls_by(&self, who: CurrentTask) -> (u64, u64) {
        let of = |empty: bool| -> u64 {
            let kind =
                |(it, _, work): &(CurrentTask, u16, u16)| *it == who && (!empty || *work == 0);
            self.polls.iter().filter(|(key, _)| kind(key)).map(|(_, count)| count).sum()
        };
        (of(false), of(true))
    }

    /// Returns all polls and the empty polls.
    pub fn all_polls(&self) -> (u64, u64) {
        let empty = self.polls.iter().filter(|((.., work), _)| *work == 0).map(|(_, n)| n).sum();
        (self.polls.values().sum(), empty)
    }
}

/// Random variations of a run, to test whether a count depends on them. The default varies nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disturbance {
    /// Upper limit of a single delay of all frames of the window.
    pub phase: Ns,
    /// Upper limit of each burst's own delay.
    pub jitter: Ns,
    /// Upper limit of the extra time of each send.
    pub sends: Ns,
    /// Upper limit of a single reduction of the cost of every poll, which stays at least 1 ns.
    pub polls: Ns,
    /// Upper limit of the variation of each slice of a shared clock, in either direction.
    pub slices: Ns,
    /// Of a thousand device accesses, those at which the CPU keeps the shared clock instead of giving it away.
    pub keeps: u16,
    /// How long the receiving CPU is held once with interrupts off, at a random moment between the first frame and
    /// the last.
    pub hold: Ns,
}

/// Runs a scenario without random variations.
///
/// # Errors
///
/// If the profile has no `[oracle]` or fewer than two CPUs, the scenario sends nothing, or a burst
/// without frames, or the machine broke one of its invariants.
pub fn run(profile: &Profile, scenario: &Scenario, seed: u64) -> Result<Observed, String> {
    run_disturbed(profile, scenario, &Disturbance::default(), seed)
}

/// Runs a scenario with random variations drawn from the seed.
///
/// # Errors
///
/// Any error of [`run`].
pub fn run_disturbed(
    profile: &Profile,
    scenario: &Scenario,
    disturbance: &Disturbance,
    seed: u64,
) -> Result<Observed, String> {
    let mut rng = Rng::new(seed);
    profile.require("oracle").map_err(|error| error.to_string())?;
    let mut config = Config::of(profile);
    if config.processor.cpus < 2 {
        return Err("the generator needs a CPU of its own: give processor.cpus at least 2".into());
    }
    if scenario.frames == 0 || scenario.arrivals.burst == 0 {
        return Err("a scenario without frames: give it a burst and a number to send".into());
    }
    let less = rng.below(disturbance.polls + 1);
    config.cost.poll = config.cost.poll.saturating_sub(less).max(1);
    // For the transmit side's interrupts; the receiving queue never transmits.
    config.nic.tx_interrupts = true;
    let policy = Policy { instance: scenario.instance, epoll: scenario.epoll, ..Policy::default() };
    let placement = Placement { queue_cpus: vec![0, 0, 1], ..Placement::aligned(3, 1) };
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(scenario.epoll, 0), EpollContext::new(scenario.epoll, 0)];
    let client = Box::new(SilentClient);
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, client, seed);
    for other in [Id(1), Id(2)] {
        host.set(other, &InstancePolicy::default()).map_err(|error| error.to_string())?;
    }

    let buffer = if scenario.buffer == 0 { BUFFER } else { scenario.buffer };
    // The kernel accepts a frame as long as those before it are within the limit, so one more fits.
    let capacity = buffer / profile.count("oracle.truesize").max(1) + 1;
    let socket = machine.add_socket(capacity.min(u64::from(u32::MAX)) as u32);
    let flow = machine.add_flow(0, Some(socket));
    let mut sink = UdpSink::new(scenario.spin + profile.time("oracle.work"), scenario.echo);
    sink.answers_by = Some(1);
    sink.answers_to = Some(machine.add_flow(2, None));
    if scenario.wait == Wait::Receive {
        sink.blocking = Some(socket);
    }
    match scenario.event {
        Event::None | Event::TwoIdle | Event::Second | Event::ThreadedCycle => {}
        Event::Stall => sink.stall = Some((150 + WARM_UP_FRAMES, 50 * MILLISECOND)),
        Event::Exit => sink.exit = Some((200 + WARM_UP_FRAMES, profile.time("oracle.exit"))),
    }
    let app = machine.add_thread("sink", Affinity::pinned(0), Class::Fair, Box::new(sink));
    match scenario.wait {
        Wait::Epoll => machine.watch(app, 0, socket),
        Wait::Receive => machine.own(app, socket),
    }
    machine.wake_thread(app);
    let second = match scenario.event {
        Event::TwoIdle => Some(0),
        Event::Second => Some(SECOND),
        _ => None,
    };
    let second = second.map(|every| {
        let socket = machine.add_socket(capacity.min(u64::from(u32::MAX)) as u32);
        let mut sink = UdpSink::new(scenario.spin + profile.time("oracle.work"), false);
        sink.unrecorded = true;
        let thread = machine.add_thread("second", Affinity::pinned(0), Class::Fair, Box::new(sink));
        machine.watch(thread, 1, socket);
        machine.wake_thread(thread);
        (machine.add_flow(0, Some(socket)), every)
    });

    let warm_up: Vec<Ns> = (1..=WARM_UP_FRAMES).map(|i| i * MILLISECOND).collect();
    let start = WARM_UP_FRAMES * MILLISECOND + WARM_UP_GAP + rng.below(disturbance.phase + 1);
    let send = ["oracle.send", "oracle.send-next", "oracle.sleep", "oracle.wake"];
    let send = send.map(|it| profile.time(it));
    let mut generator =
        Generator::new(flow, send, warm_up, start, scenario.arrivals, scenario.frames);
    generator.second = second;
    generator.late = (disturbance.jitter, rng.bits());
    generator.slower = (disturbance.sends, rng.split());
    let generator =
        machine.add_thread("generator", Affinity::pinned(1), Class::Fair, Box::new(generator));
    machine.wake_thread(generator);

    machine.run(start - WINDOW_LEAD);
    machine.restart_latency();
    let seen = machine.detailed_counts();
    (seen.detailed, seen.queue) = (true, Some(0));
    let threads = [app, machine.ksoftirqd(0), machine.napi_thread(0).unwrap_or(app)];
    let times = |machine: &Machine<'_>| {
        threads.map(|it| (machine.thread_switches(it), machine.cpu_time(it)))
    };
    let before = machine.snapshot();
    let times_before = times(&machine);
    let drops_before = machine.socket_drops(socket);
    let last = start + scenario.arrivals.due(scenario.frames - 1);
    machine.randomize_shared_clock(disturbance.slices, disturbance.keeps, rng.bits());
    if disturbance.hold > 0 {
        machine.fault_at(start + rng.below(last - start + 1), Fault::Hold(0, disturbance.hold));
    }
    if scenario.event == Event::ThreadedCycle {
        let cycle = [Threaded::Disabled, Threaded::Enabled, Threaded::BusyPoll];
        let first = cycle.iter().position(|mode| *mode == scenario.instance.threaded).unwrap_or(0);
        let changes = (1..).map(|k| (k, start + k as Ns * CYCLE)).take_while(|(_, at)| *at < last);
        for (k, at) in changes {
            let threaded = cycle[(first + k) % cycle.len()];
            machine.fault_at(at, Fault::Set(0, InstancePolicy { threaded, ..scenario.instance }));
        }
    }
    let mut end = last;
    while machine.queue_counts(0).arrived < WARM_UP_FRAMES + scenario.frames
        && end < last + MAX_LATENESS
    {
        machine.run(end);
        if let Some(broken) = machine.broken() {
            return Err(broken.to_owned());
        }
        end += 100 * MICROSECOND;
    }
    machine.run(end + WINDOW_TAIL);
    if let Some(broken) = machine.broken() {
        return Err(broken.to_owned());
    }
    let counts = machine.snapshot().since(&before);
    let grown = times(&machine);
    let switches = |i: usize| {
        let ((now, then), time) = ((grown[i].0, times_before[i].0), grown[i].1 - times_before[i].1);
        (now.0 - then.0, now.1 - then.1, time)
    };
    let both = |(voluntary, involuntary, time): (u64, u64, Ns)| (voluntary + involuntary, time);
    let received = machine.latency().count();
    let (rx, tx) = (counts.queues[0].nic, counts.queues[1].nic);
    let seen = machine.detailed_counts().clone();
    let latency = machine.latency().clone();
    let dropped = machine.socket_drops(socket) - drops_before;
    Ok(Observed {
        polls: seen.polls,
        events: seen.returns,
        wait_returns: counts.epolls[0].returns,
        rx_interrupts: rx.interrupts,
        tx_interrupts: tx.interrupts,
        net_rx: counts.cpus[0].softirq.net_rx,
        time_squeeze: counts.cpus[0].softirq.time_squeeze,
        timer_expiries: rx.timer_expiries,
        timer_starts: rx.timer_starts,
        nic_rx: rx.arrived,
        received,
        dropped,
        app: switches(0),
        ksoftirqd: both(switches(1)),
        kthread: both(switches(2)),
        outcome: Outcome {
            window: counts.at,
            achieved_per_s: received as f64 * 1e9 / counts.at.max(1) as f64,
            latency,
            serving: vec![0],
            steps: machine.steps(),
            counts,
            ..Outcome::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs 400 frames, one every millisecond.
    fn observed(event: Event, wait: Wait, policy: &str) -> Observed {
        let profile = Profile::named(crate::schema(), "emulator-7.2").expect("built in");
        let policy: Policy = policy.parse().expect(policy);
        let arrivals = Arrivals { burst: 1, gap: MILLISECOND, train_bursts: 0, off: 0 };
        let scenario = Scenario {
            instance: policy.instance,
            epoll: policy.epoll,
            wait,
            spin: 0,
            echo: false,
            buffer: 0,
            arrivals,
            frames: 400,
            event,
        };
        run(&profile, &scenario, 1).expect("it runs")
    }

    #[test]
    fn a_blocking_receiver_is_woken_for_each_datagram_and_never_returns_from_epoll() {
        let seen = observed(Event::None, Wait::Receive, "base");
        assert_eq!((seen.received, seen.wait_returns), (400, 0));
        assert_eq!((seen.rx_interrupts, seen.app.0), (400, 400));
    }

    #[test]
    fn a_second_process_takes_its_share_and_an_idle_one_takes_nothing() {
        let alone = observed(Event::None, Wait::Epoll, "base");
        let idle = observed(Event::TwoIdle, Wait::Epoll, "base");
        assert_eq!((idle.received, idle.wait_returns), (400, alone.wait_returns));
        let second = observed(Event::Second, Wait::Epoll, "base");
        assert_eq!((second.received, second.nic_rx), (392, 400));
        assert_eq!(second.wait_returns, 392);
        // One context suspends and another sleeps on the same instance: nothing is lost.
        let suspended = observed(Event::Second, Wait::Epoll, "suspend20");
        assert_eq!((suspended.received, suspended.nic_rx), (392, 400));
    }

    #[test]
    fn a_disturbance_of_no_width_changes_nothing_and_each_other_is_its_seed_s() {
        let profile = Profile::named(crate::schema(), "emulator-7.2").expect("built in");
        let arrivals = Arrivals { burst: 16, gap: MILLISECOND, train_bursts: 0, off: 0 };
        let policy: Policy = "defer20".parse().expect("a policy");
        let scenario = Scenario {
            instance: policy.instance,
            epoll: policy.epoll,
            wait: Wait::Epoll,
            spin: 0,
            echo: false,
            buffer: 0,
            arrivals,
            frames: 320,
            event: Event::None,
        };
        let plain = run(&profile, &scenario, 1).expect("it runs");
        let none = Disturbance::default();
        let disturbed =
            |it: &Disturbance, seed| run_disturbed(&profile, &scenario, it, seed).expect("it runs");
        assert_eq!(disturbed(&none, 1), plain);
        assert_eq!(disturbed(&none, 2).polls, plain.polls, "no seed matters to it");
        for it in [
            Disturbance { phase: 4 * MILLISECOND, ..none },
            Disturbance { jitter: MICROSECOND, ..none },
            Disturbance { sends: MICROSECOND, ..none },
            Disturbance { polls: MICROSECOND, ..none },
            Disturbance { slices: 3 * MICROSECOND, ..none },
            Disturbance { keeps: 300, ..none },
            Disturbance { hold: 400 * MICROSECOND, ..none },
        ] {
            assert_eq!(disturbed(&it, 1), disturbed(&it, 1), "{it:?}");
            assert_ne!(disturbed(&it, 1), disturbed(&it, 2), "{it:?}");
            assert_eq!(disturbed(&it, 1).nic_rx, 320, "{it:?}");
        }
    }

    #[test]
    fn a_cpu_that_is_held_polls_nothing_until_it_is_let_go() {
        let profile = Profile::named(crate::schema(), "emulator-7.2").expect("built in");
        let arrivals = Arrivals { burst: 1, gap: 50 * MICROSECOND, train_bursts: 0, off: 0 };
        let policy = Policy::default();
        let scenario = Scenario {
            instance: policy.instance,
            epoll: policy.epoll,
            wait: Wait::Epoll,
            spin: 0,
            echo: false,
            buffer: 0,
            arrivals,
            frames: 200,
            event: Event::None,
        };
        let most = |it: &Disturbance| {
            let seen = run_disturbed(&profile, &scenario, it, 1).expect("it runs");
            seen.polls.keys().map(|(.., work)| *work).max()
        };
        assert_eq!(most(&Disturbance::default()), Some(1));
        // Six packets of the held time, 50 us apart, and more while the generator has the clock.
        let held = most(&Disturbance { hold: 300 * MICROSECOND, ..Disturbance::default() });
        assert!((Some(6)..=Some(10)).contains(&held), "{held:?}");
    }

    #[test]
    fn a_cycle_of_modes_has_polls_of_each_owner_and_loses_nothing() {
        let seen = observed(Event::ThreadedCycle, Wait::Epoll, "base");
        assert_eq!((seen.received, seen.nic_rx), (400, 400));
        let by = |who| seen.polls_by(who);
        assert!(
            by(CurrentTask::Idle).0 > 100 && by(CurrentTask::Kthread).0 > 100,
            "{:?}",
            seen.polls
        );
        assert!(by(CurrentTask::Kthread).1 > 1_000, "busy polling: {:?}", seen.polls);
    }
}
