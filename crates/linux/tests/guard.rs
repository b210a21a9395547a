//! A program that starves its queue, and a guard that ends the suspension: over a veth between two namespaces
//! of the test, with the program itself counting what arrives.

#[path = "../../kernel/tests/harness/mod.rs"]
mod harness;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::namespace::needs_rights;
use harness::{Link, Program};
use napkin_kernel::namespace::{Namespace, boot_id};
use napkin_kernel::netlink::Netdev;
use napkin_kernel::probe::Kernel;
use napkin_kernel::process::Ready;
use napkin_kernel::settings::{Setting, Settings};
use napkin_linux::apply::{
    self, Linux, Options as ApplyOptions, Request, RestoreOptions, Temporary,
};
use napkin_linux::guard::{Again, Event, EventKind, Guard, GuardError, Options, can_starve};
use napkin_linux::journal::Store;
use napkin_os::rights::Right;
use napkin_testing::{needs, test};

/// The longest wait for an expected event: a bound against hanging, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// A timeout so long that a program on a busy host returns to its wait before the timer fires.
const POLICY: &str = "suspend20,irq-suspend-timeout=200ms";
const TIMEOUT: u64 = 200_000_000;

/// Makes the program serve a socket in a thread of its own. The received datagrams are counted in `got`.
const SERVE: &str = "\
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(('10.9.0.1', 9000)); sock.setblocking(False)
context = select.epoll(); context.register(sock.fileno(), select.EPOLLIN)
set_params(context, 0, 64, 1)
got = [0]; served = []
def serve():
    served.append(threading.get_native_id())
    while True:
        for fd, _ in context.poll(0.1):
            if fd == sock.fileno():
                try:
                    while True:
                        sock.recv(64); got[0] += 1
                except BlockingIOError:
                    pass
threading.Thread(target=serve, daemon=True).start()
down, up = os.pipe()
answer = context.fileno()
";

/// The program, its device, and a sender.
struct Bed {
    link: Link,
    program: Program,
    sender: UdpSocket,
    epoll: i32,
    state: PathBuf,
}

impl Bed {
    fn new() -> Bed {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        needs_rights(&[Right::Bpf, Right::Perfmon, Right::SysPtrace]);
        let kernel = Kernel::probe();
        needs(
            kernel.way(Setting::IrqSuspendTimeout).is_some(),
            "irq-suspend-timeout, which Linux 6.13 has",
        );
        let link = Link::new();
        let mut program = link.here.run(Program::start).expect("entered");
        let epoll = program.number(SERVE);
        let sender = link.there.run(|| UdpSocket::bind("10.9.0.2:0")).expect("entered");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let state = format!("napkin-guard-{}-{number}", std::process::id());
        let state = std::env::temp_dir().join(state);
        let mut bed = Bed { link, program, sender: sender.expect("a socket"), epoll, state };
        bed.arrives("before anything is set");
        bed
    }

    fn store(&self) -> Store {
        let boot = boot_id().expect("procfs");
        let namespace = self.link.here.run(Namespace::identity).expect("entered").expect("procfs");
        Store::at(self.state.clone(), boot, namespace)
    }

    /// Applies the policy for as long as the returned value lives.
    fn hold(&self) -> Temporary {
        let policy = POLICY.parse().expect(POLICY);
        let options = ApplyOptions::default();
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let store = self.store();
        let hold = || Temporary::apply(Linux::open().expect("netlink"), &store, &request);
        self.link.here.run(hold).expect("entered").expect("applied")
    }

    fn guard(&self, options: Options) -> (Guard, Arc<Mutex<Vec<Event>>>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let on_event =
            Box::new(move |event: &Event| sink.lock().expect("no panic").push(event.clone()));
        let store = self.store();
        let start = || Guard::start(options, &store, on_event);
        (self.link.here.run(start).expect("entered").expect("it watches"), events)
    }

    fn settings(&self) -> (u32, Settings) {
        let napis = || Netdev::open().expect("netdev").napis(None).expect("instances");
        let napis = self.link.here.run(napis).expect("entered");
        assert_eq!(napis.len(), 1, "{napis:?}");
        (napis[0].id, napis[0].settings)
    }

    fn timeout(&self) -> u64 {
        self.settings().1.irq_suspend_timeout.expect("it has one")
    }

    /// Sends ten datagrams; returns how many the program has received shortly after.
    fn send(&mut self) -> i32 {
        let before = self.program.number("answer = got[0]");
        for _ in 0..10 {
            self.sender.send_to(b"x", "10.9.0.1:9000").expect("sent");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.program.number("answer = got[0]") - before
    }

    /// Asserts that datagrams arrive.
    fn arrives(&mut self, when: &str) {
        let start = Instant::now();
        while self.send() == 0 {
            assert!(start.elapsed() < PATIENCE, "nothing arrives {when}");
        }
    }

    /// Makes the program always have something ready, so that no datagram arrives.
    fn starve(&mut self) {
        self.program.ask("context.register(up, select.EPOLLOUT)");
        self.starves();
    }

    fn starves(&mut self) {
        let start = Instant::now();
        while self.send() != 0 {
            assert!(start.elapsed() < PATIENCE, "it never starves");
        }
    }

    fn journals(&self) -> usize {
        let entries = std::fs::read_dir(&self.state).into_iter().flatten().flatten();
        entries.filter(|it| it.path().extension().is_some_and(|it| it == "journal")).count()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// Waits until an event that matches was reported.
fn until(events: &Mutex<Vec<Event>>, wanted: impl Fn(&EventKind) -> bool) -> Event {
    let start = Instant::now();
    loop {
        let all = events.lock().expect("no panic").clone();
        if let Some(event) = all.iter().find(|event| wanted(&event.kind)) {
            return event.clone();
        }
        assert!(start.elapsed() < PATIENCE, "it was never told: {all:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_starved_queue_receives_again_and_gets_its_timeout_back_at_the_end() {
    let mut bed = Bed::new();
    let (_, original) = bed.settings();
    let hold = bed.hold();
    bed.starve();
    bed.starves();
    assert_eq!(bed.timeout(), TIMEOUT, "without a guard nobody does anything about it");

    let held = Some(hold.applied().before.device.ifindex);
    let (guard, events) = bed.guard(Options { only: held, held, ..Options::default() });
    bed.arrives("under a guard");
    let event = until(&events, |kind| matches!(kind, EventKind::Ended { .. }));
    let (napi_id, settings) = bed.settings();
    assert!(guard.has_ended(napi_id));
    assert_eq!(settings.irq_suspend_timeout, Some(0));
    assert_eq!(settings.defer_hard_irqs, Some(100), "nothing else was changed");
    assert_eq!((event.ifname.as_str(), event.subject.as_str()), ("va", "queue 0"));
    assert_eq!(event.napi_id, napi_id);
    let EventKind::Ended { timeout: TIMEOUT, again: None, causes, unseen: None, .. } = &event.kind
    else {
        panic!("{event:?}")
    };
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!((causes[0].pid, causes[0].epoll), (bed.program.pid(), bed.epoll));
    let fd = bed.program.number("answer = up");
    assert_eq!(causes[0].always_ready, [Ready { fd, readable: false, writable: true }]);
    let thread = bed.program.number("answer = served[0]");
    assert_eq!(causes[0].threads, [thread], "{event}");
    bed.arrives("any time later");

    drop(guard);
    assert_eq!(bed.timeout(), TIMEOUT, "as it was when the guard came");
    let restored = bed.link.here.run(|| hold.restore()).expect("entered").expect("there");
    assert!(restored.is_complete(), "{restored:?}");
    assert_eq!((bed.settings().1, bed.journals()), (original, 0));
    assert_eq!(events.lock().expect("no panic").len(), 1, "once is enough");
}

#[test]
fn a_queue_that_nobody_starves_is_left_alone() {
    let mut bed = Bed::new();
    let hold = bed.hold();
    let held = Some(hold.applied().before.device.ifindex);
    let (guard, events) = bed.guard(Options { only: held, held, ..Options::default() });
    // With a descriptor that becomes writable now and then, reported once each time (edge-triggered).
    bed.program.ask("context.register(up, select.EPOLLOUT | select.EPOLLET)");
    for _ in 0..20 {
        bed.arrives("from a program that polls");
    }
    assert_eq!(bed.timeout(), TIMEOUT);
    drop(guard);
    assert_eq!(*events.lock().expect("no panic"), []);
    bed.link.here.run(|| drop(hold)).expect("entered");
}

#[test]
fn it_is_tried_again_and_stays_when_the_program_has_mended_its_ways() {
    let mut bed = Bed::new();
    let hold = bed.hold();
    let held = Some(hold.applied().before.device.ifindex);
    let again = Again::After(Duration::from_millis(300));
    let (guard, events) = bed.guard(Options { only: held, held, again });
    bed.program.ask("context.register(up, select.EPOLLOUT)");
    let ended = |kind: &EventKind| matches!(kind, EventKind::Ended { .. });
    let tried = |kind: &EventKind| matches!(kind, EventKind::Again { timeout: TIMEOUT });
    bed.arrives("although it starves now and then");
    until(&events, ended);
    until(&events, tried);
    events.lock().expect("no panic").clear();
    until(&events, ended);
    bed.program.ask("context.unregister(up)");
    until(&events, tried);
    assert_eq!(bed.timeout(), TIMEOUT);
    bed.arrives("with suspension");
    drop(guard);
    assert_eq!(bed.timeout(), TIMEOUT);
    bed.link.here.run(|| drop(hold)).expect("entered");
    assert_eq!((bed.timeout(), bed.journals()), (0, 0));
}

#[test]
fn a_device_that_nobody_holds_is_watched_and_restored_after_the_guard_is_gone() {
    let mut bed = Bed::new();
    let can = |policy: &str| {
        let policy = policy.parse().expect(policy);
        bed.link.here.run(|| can_starve(&policy)).expect("entered").expect("instances")
    };
    assert_eq!(["suspend20", "napibusy", "defer20"].map(can), [true, false, false]);
    // As if set by hand.
    let (napi_id, _) = bed.settings();
    let policy: napkin_policy::Policy = POLICY.parse().expect(POLICY);
    let wanted = Settings::of(&policy.instance);
    let set = || {
        let mut netdev = Netdev::open().expect("netdev");
        for setting in Setting::ALL {
            let value = wanted.get(setting).expect("a policy has them all");
            netdev.set_napi(napi_id, setting, value).expect("set");
        }
    };
    bed.link.here.run(set).expect("entered");
    assert_eq!(["suspend20", "napibusy", "defer20"].map(can), [true, true, false]);
    bed.starve();
    let (guard, events) = bed.guard(Options::default());
    bed.arrives("under a guard");
    until(&events, |kind| matches!(kind, EventKind::Ended { .. }));
    assert_eq!((bed.timeout(), bed.journals()), (0, 1));

    // As if it were killed: the journal has the record.
    std::mem::forget(guard);
    bed.program.ask("context.unregister(up)");
    let options = RestoreOptions::default();
    let store = bed.store();
    let back = || apply::restore(&mut Linux::open().expect("netlink"), &store, &options);
    let restored = bed.link.here.run(back).expect("entered").expect("restored");
    assert!(restored.is_complete(), "{restored:?}");
    assert_eq!((bed.timeout(), bed.journals()), (TIMEOUT, 0));
}

#[test]
fn without_the_rights_nobody_watches_and_that_is_said() {
    needs(!Right::Bpf.held() || !Right::Perfmon.held() || !Right::NetAdmin.held(), "no rights");
    let place = std::env::temp_dir().join(format!("napkin-guard-{}", std::process::id()));
    let boot = boot_id().expect("procfs");
    let store = Store::at(place, boot, Namespace::identity().expect("procfs"));
    let error = Guard::start(Options::default(), &store, Box::new(|_| {})).expect_err("no right");
    assert!(matches!(error, GuardError::Right { .. } | GuardError::Count(_)), "{error}");
    assert!(error.to_string().contains("CAP_"), "{error}");
}

napkin_testing::main!();
