//! Dialogues: the handling of one frame, step by step, each at the nanosecond that the costs predict.
//!
//! Every step of this host has a different cost, so that a time identifies the steps taken. The story consists of the
//! calls of a trace and the reads of the application; times count from the first frame.

use std::cell::RefCell;
use std::rc::Rc;

use napkin_core::{EpollContext, MILLISECOND, Ns, Order, Owner};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;

/// Time of the first frame.
const BEGIN: Ns = 10 * MILLISECOND;

/// The events, with their times.
#[derive(Debug, Clone, Default)]
struct Story(Rc<RefCell<Vec<(Ns, String)>>>);

impl Story {
    fn add(&self, at: Ns, what: impl Into<String>) {
        if at >= BEGIN {
            self.0.borrow_mut().push((at - BEGIN, what.into()));
        }
    }
}

impl Trace for Story {
    fn ran(&mut self, _: u16, _: &str, _: Use, _: Ns, _: Ns) {}

    fn depth(&mut self, queue: u16, at: Ns, frames: usize) {
        self.add(at, format!("{frames} in ring {queue}"));
    }

    fn masked(&mut self, queue: u16, at: Ns, masked: bool) {
        self.add(at, format!("{}masked {queue}", if masked { "" } else { "un" }));
    }

    fn mark(&mut self, _: u16, at: Ns, mark: Mark<'_>) {
        self.add(
            at,
            match mark {
                Mark::Interrupt(queue) => format!("interrupt {queue}"),
                Mark::Softirq => "softirq".to_owned(),
                Mark::TimerArmed(_, until) => format!("timer armed for {}", until - BEGIN),
                Mark::TimerExpired(_) => "timer expired".to_owned(),
                Mark::Wake(name) => format!("{name} woken"),
            },
        );
    }
}

/// Sends a frame of the given flow at each of these times.
#[derive(Debug)]
struct Sender(Vec<(Ns, u32)>);

impl Client for Sender {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for (token, (at, _)) in (0..).zip(&self.0) {
            machine.client_timer(BEGIN + at, token);
        }
    }

    fn timer(&mut self, machine: &mut Machine<'_>, token: u64) {
        let (now, flow) = (machine.now(), self.0[token as usize].1);
        machine.send_to_host(Packet::new(flow, Kind::Data, 64, token, now));
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// Waits in epoll, and reads all frames.
#[derive(Debug)]
struct Reader {
    story: Story,
    waited: bool,
    ready: Option<u32>,
}

impl Program for Reader {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        if self.ready.is_none() && std::mem::take(&mut self.waited) {
            self.ready = machine.next_ready(me);
        }
        if let Some(socket) = self.ready
            && let Some((packet, _)) = machine.receive(me, socket)
        {
            self.story.add(machine.now(), format!("frame {} read", packet.tag));
            return Act::Kernel(machine.config().cost.recv);
        }
        (self.ready, self.waited) = (None, true);
        Act::Epoll { timeout: None, max_events: 8 }
    }
}

/// One CPU without a tick, and a different cost for each step.
fn config() -> Config {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    let mut config = Config::of(&profile);
    config.cost = Costs {
        interrupt_entry: 100,
        nic_handler: 50,
        mask: 10,
        interrupt_exit: 40,
        softirq_entry: 20,
        softirq_exit: 30,
        poll: 200,
        poll_frame: 60,
        deliver: 5,
        deliver_frame: 300,
        wake: 70,
        unmask: 15,
        switch: 500,
        switch_idle: 400,
        look: 8,
        epoll_enter: 25,
        epoll_return: 35,
        epoll_event: 3,
        recv: 90,
        timer_arm: 12,
        timer_expiry: 45,
        kthread_loop: 6,
        kthread_sleep: 33,
        ..Costs::default()
    };
    config.processor.cpus = 1;
    config.processor.shared_clock = false;
    (config.processor.idle_exit, config.processor.idle_exit_deep) = (0, 0);
    config.kernel.tick = 1_000_000 * MILLISECOND;
    config.nic = NicConfig {
        queues: 1,
        ring: 8192,
        order: Order::DeliverFirst,
        gro_batch: 0,
        dma: 0,
        interrupt_latency: 0,
        coalesce: 0,
        coalesce_frames: 0,
        adaptive: false,
        ..config.nic
    };
    config.locality =
        Locality { frame: 0.0, cross_cpu: 0, interrupted: 0, queue: 0, ..config.locality };
    // A frame of 64 bytes is on the wire for less than a nanosecond.
    config.link = Link { bits_per_ns: 1e6, latency: 0 };
    config
}

/// Runs the machine for these frames. Returns the story, and the final counts.
fn run(config: Config, policy: &str, frames: &[(Ns, u32)]) -> (Vec<(Ns, String)>, Snapshot) {
    let policy: Policy = policy.parse().unwrap_or_else(|error| panic!("{error}"));
    let queues = config.nic.queues;
    let placement = Placement::aligned(queues, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(policy.epoll, 0)];
    let client = Box::new(Sender(frames.to_vec()));
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, client, 1);
    let socket = machine.add_socket(10_000);
    for queue in 0..queues {
        machine.add_flow(queue, Some(socket));
    }
    // A flow without a socket.
    machine.add_flow(0, None);
    let story = Story::default();
    let reader = Reader { story: story.clone(), waited: false, ready: None };
    let app = machine.add_thread("app", Affinity::pinned(0), Class::Fair, Box::new(reader));
    machine.watch(app, 0, socket);
    machine.wake_thread(app);
    machine.check_everything();
    machine.set_trace(Box::new(story.clone()));
    machine.run(BEGIN + 100 * MILLISECOND);
    assert_eq!(machine.broken(), None);
    let events = story.0.borrow().clone();
    (events, machine.snapshot())
}

fn assert_story(events: &[(Ns, String)], expected: &[(Ns, &str)]) {
    let events: Vec<_> = events.iter().map(|(at, what)| (*at, what.as_str())).collect();
    assert_eq!(events, expected, "what happened, and what the costs say");
}

#[test]
fn a_frame_interrupts_is_polled_delivered_and_the_interrupt_allowed_again() {
    let (events, _) = run(config(), "base", &[(0, 0)]);
    assert_story(
        &events,
        &[
            (0, "1 in ring 0"),
            (0, "masked 0"),
            (150, "interrupt 0"),
            (160, "masked 0"),
            // Exit from the interrupt: 40.
            (200, "softirq"),
            // The softirq's entry, and the poll's fixed part: 220. Then the frame is taken.
            (420, "0 in ring 0"),
            // 60 for the frame, 5 and 300 for its delivery, 70 for the wake-up.
            (855, "app woken"),
            (870, "unmasked 0"),
            // Exit from the softirq 30, a switch 500, a look 8, and the return of the wait with one event: 38.
            (1446, "frame 0 read"),
        ],
    );
}

#[test]
fn a_frame_that_arrives_during_a_poll_is_in_it() {
    let (events, counts) = run(config(), "base", &[(0, 0), (450, 0)]);
    assert_eq!(
        events[5..8],
        [(420, "0 in ring 0".into()), (450, "1 in ring 0".into()), (480, "0 in ring 0".into())]
    );
    let napi = counts.queues[0].napi;
    assert_eq!((napi.interrupts, napi.polls[Owner::Softirq as usize]), (1, 1));
    // Two frames of 60 and 300, one delivery and one wake-up.
    assert!(events.contains(&(420 + 60 + 60 + 5 + 300 + 70, "app woken".into())), "{events:?}");
}

#[test]
fn a_frame_that_arrives_during_a_delivery_is_found_at_the_unmasking() {
    let (events, counts) = run(config(), "base", &[(0, 0), (600, 0)]);
    assert_story(
        &events[6..],
        &[
            (600, "1 in ring 0"),
            (855, "app woken"),
            (870, "unmasked 0"),
            // The owner has seen the frame and keeps the instance. But the application wants the CPU, so the softirq
            // does not restart: it wakes ksoftirqd, for another 70.
            (880, "masked 0"),
            (950, "ksoftirqd/0 woken"),
            // Exit from the softirq 30, a switch 500, a look 8, return of the wait 38.
            (1526, "frame 0 read"),
            // Receive call 90, entry to the wait 25, a look 8; a switch 500, a poll 200.
            (2349, "0 in ring 0"),
            (2784, "app woken"),
            (2799, "unmasked 0"),
            (3345, "frame 1 read"),
        ],
    );
    assert_eq!(counts.queues[0].napi.interrupts, 1);
}

#[test]
fn a_card_that_interrupts_for_late_frames_gets_no_second_look() {
    let mut config = config();
    config.nic.late_frames_interrupt = true;
    let (events, counts) = run(config, "base", &[(0, 0), (600, 0)]);
    assert_story(
        &events[6..],
        &[
            (600, "1 in ring 0"),
            (855, "app woken"),
            // The driver does not check the ring: the card remembers the frame, and raises the line at once.
            (870, "unmasked 0"),
            (870, "masked 0"),
            (1020, "interrupt 0"),
            (1030, "masked 0"),
            // Exit from the interrupt 40 and from the first softirq 30, entry to the next 20, the poll 200.
            (1100, "softirq"),
            (1320, "0 in ring 0"),
            (1700, "unmasked 0"),
            (2276, "frame 0 read"),
            (2366, "frame 1 read"),
        ],
    );
    let napi = counts.queues[0].napi;
    assert_eq!((napi.interrupts, napi.polls[Owner::Softirq as usize]), (2, 2));
}

#[test]
fn late_frames_have_waited_already_when_the_card_counts_its_coalescing_time() {
    let mut config = config();
    config.nic.late_frames_interrupt = true;
    (config.nic.coalesce, config.nic.coalesce_restarts) = (1000, true);
    let (events, _) = run(config, "base", &[(0, 0), (1500, 0), (1600, 0)]);
    let masked = |(at, what): &(Ns, String)| (what == "masked 0").then_some(*at);
    let raised: Vec<Ns> = events.iter().filter_map(masked).collect();
    // Each frame restarts the moderation: the first line is raised at 1000, the second 1000 after the last frame,
    // although the interrupt was masked when that came.
    assert_eq!((raised[0], raised[2]), (1000, 2600), "{events:?}");
}

#[test]
fn an_interrupt_in_the_middle_of_a_poll_puts_its_rest_off() {
    let mut two = config();
    two.nic.queues = 2;
    // The other queue's frame arrives 20 ns into the 60 of the first frame.
    let (events, _) = run(two, "base", &[(0, 0), (440, 1)]);
    assert_story(
        &events[5..],
        &[
            (420, "0 in ring 0"),
            (440, "1 in ring 1"),
            (440, "masked 1"),
            (590, "interrupt 1"),
            (600, "masked 1"),
            // The interrupt ends at 640; 40 of the frame are left, then 5, 300 and 70.
            (1055, "app woken"),
            (1070, "unmasked 0"),
            // The same softirq polls the other queue.
            (1270, "0 in ring 1"),
            (1650, "unmasked 1"),
            (2226, "frame 0 read"),
            (2316, "frame 1 read"),
        ],
    );
}

#[test]
fn deferral_leaves_the_ring_to_a_timer_until_it_has_found_nothing_often_enough() {
    let policy = "base,defer-hard-irqs=2,gro-flush-timeout=20us";
    let (events, counts) = run(config(), policy, &[(0, 0)]);
    let of = |word: &str| events.iter().filter(|(_, what)| what.contains(word)).cloned().collect();
    let armed: Vec<(Ns, String)> = of("armed");
    // The poll's turn ends at 855: the timer is armed then, and the interrupt stays masked.
    assert_eq!(armed[0], (855, "timer armed for 20855".into()), "{events:?}");
    let expired: Vec<(Ns, String)> = of("expired");
    // Each expiry is handled 145 into its interrupt.
    assert_eq!(expired[0], (20_855 + 145, "timer expired".into()), "{events:?}");
    let unmasked: Vec<(Ns, String)> = of("unmasked");
    assert_eq!(unmasked.len(), 1, "{events:?}");
    let napi = counts.queues[0].napi;
    let softirq = Owner::Softirq as usize;
    // One poll with the frame, and an empty one for each expiry.
    assert_eq!((napi.interrupts, napi.polls[softirq]), (1, 1));
    assert_eq!(napi.empty_polls[softirq], expired.len() as u64, "{events:?}");
    assert!(unmasked[0].0 > expired[expired.len() - 1].0, "{events:?}");
}

#[test]
fn suspension_puts_the_timer_off_while_the_application_finds_events() {
    let policy = "suspend20";
    let (events, counts) = run(config(), policy, &[(0, 0)]);
    let suspend: Policy = policy.parse().expect("a preset");
    let timeout = suspend.instance.irq_suspend_timeout;
    // The wait that returned the frame suspends: at an expiry the timer is armed for the safety timeout. The next
    // wait finds nothing and ends that at once.
    let read = events.iter().position(|(_, what)| what == "frame 0 read").expect("read");
    let armed = |(at, what): &(Ns, String)| {
        let until = what.strip_prefix("timer armed for ")?.parse::<Ns>().ok()?;
        Some(until - at)
    };
    let before: Vec<_> = events[..read].iter().filter_map(armed).collect();
    assert!(before.contains(&timeout), "put off by {timeout}: {events:?}");
    let after: Vec<_> = events[read..].iter().filter_map(armed).collect();
    assert!(!after.is_empty() && after.iter().all(|&it| it < timeout), "{events:?}");
    assert_eq!(counts.queues[0].napi.interrupts, 1);
    assert_eq!(events.last().map(|(_, what)| what.as_str()), Some("unmasked 0"), "{events:?}");
}

#[test]
fn the_instances_own_thread_is_woken_by_the_interrupt_and_sleeps_once() {
    let (events, counts) = run(config(), "threaded", &[(0, 0)]);
    assert_story(
        &events,
        &[
            (0, "1 in ring 0"),
            (0, "masked 0"),
            (150, "interrupt 0"),
            (160, "masked 0"),
            (230, "napi/0 woken"),
            // Exit from the interrupt 40, a switch 500, the poll 200.
            (970, "0 in ring 0"),
            (1405, "app woken"),
            (1420, "unmasked 0"),
            // 33 before the thread sleeps, a switch 500, a look 8, return of the wait 38.
            (1999, "frame 0 read"),
        ],
    );
    let napi = counts.queues[0].napi;
    assert_eq!((napi.polls[Owner::Thread as usize], napi.empty_polls), (1, [0; 5]));
}

#[test]
fn hold_polls_on_for_its_time_and_takes_the_next_frame_without_an_interrupt() {
    let (events, counts) = run(config(), "hold=50us", &[(0, 0), (30_000, 0)]);
    let napi = counts.queues[0].napi;
    assert_eq!(napi.interrupts, 1, "{events:?}");
    let unmasked: Vec<_> = events.iter().filter(|(_, what)| what == "unmasked 0").collect();
    assert_eq!(unmasked.len(), 1, "{events:?}");
    let second = events.iter().filter(|(_, what)| what == "0 in ring 0").nth(1).expect("taken").0;
    // The hold lasts from the end of the poll that took the frame, and at most one round of the holder longer.
    let held = unmasked[0].0 - (second + 60);
    assert!((50_000..52_000).contains(&held), "held for {held} ns: {events:?}");
}

#[test]
fn after_ten_passes_the_softirq_leaves_a_flood_to_ksoftirqd() {
    let flood: Vec<_> = (0..5000).map(|_| (0, 1)).collect();
    let (events, counts) = run(config(), "base", &flood);
    let woken = events.iter().filter(|(_, what)| what == "ksoftirqd/0 woken").count();
    let napi = counts.queues[0].napi;
    // A pass polls an instance once; the weight is 64.
    assert_eq!((woken, napi.polls[Owner::Softirq as usize]), (1, 10));
    assert_eq!(napi.polls[Owner::Ksoftirqd as usize], (5000_u64 - 10 * 64).div_ceil(64));
}

#[test]
fn after_one_pass_if_it_has_woken_somebody() {
    let flood: Vec<_> = (0..100).map(|_| (0, 0)).collect();
    let (_, counts) = run(config(), "base", &flood);
    let napi = counts.queues[0].napi;
    assert_eq!(napi.polls[Owner::Softirq as usize], 1);
    assert_eq!(napi.polls[Owner::Ksoftirqd as usize], 1);
}
