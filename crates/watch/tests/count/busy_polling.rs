//! Tests of applications that busy poll, and that suspend interrupts.

use napkin_testing::test;

use super::*;

/// An epoll context with these parameters, on a socket that becomes non-blocking.
fn epoll_on(socket: &UdpSocket, params: Params) -> OwnedFd {
    // SAFETY: the call takes flags only.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    // SAFETY: the descriptor is new, and nothing else owns it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    params.set(&epoll).expect("Linux 6.9").then_some(()).expect("an epoll context");
    rustix::event::epoll::add(
        &epoll,
        socket,
        rustix::event::epoll::EventData::new_u64(0),
        rustix::event::epoll::EventFlags::IN,
    )
    .expect("added");
    socket.set_nonblocking(true).expect("set");
    epoll
}

/// Waits in an epoll context with these parameters for datagrams, until `stop` is set; returns how many came.
fn busy_poller(socket: &UdpSocket, params: Params, timeout_ms: i32, stop: &AtomicBool) -> u64 {
    let epoll = epoll_on(socket, params);
    let mut received = 0;
    let mut bytes = [0; 64];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms) * 1_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut events = Vec::with_capacity(8);
        let _ = rustix::event::epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        );
        while socket.recv(&mut bytes).is_ok() {
            received += 1;
            if received % 4 == 0 {
                socket.send(b"an answer").expect("sent");
            }
        }
    }
    socket.set_nonblocking(false).expect("set");
    received
}

/// Sends rounds of four datagrams to a busy poller on another thread.
fn to_busy_poller(talk: &Talk, params: Params, rounds: u32) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| busy_poller(&talk.here, params, 20, &stop));
        let mut bytes = [0; 64];
        for _ in 0..rounds {
            for _ in 0..4 {
                talk.there.send(b"a datagram").expect("sent");
            }
            talk.there.recv(&mut bytes).expect("an answer");
        }
        stop.store(true, Ordering::Relaxed);
        poller.join().expect("the poller")
    })
}

#[test]
fn a_busy_polling_application_s_polls_are_its_own_the_last_of_a_session_too() {
    let world = Backend::new();
    world.set(&[(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 5_000_000)]);
    let params = Params { busy_poll_usecs: 200, busy_poll_budget: 64, prefer_busy_poll: true };
    let outcome = count_during(&world, |talk| to_busy_poller(talk, params, 200));
    outcome.agrees();
    assert!(
        outcome.counts.application.polls > 0 && outcome.counts.thread.polls == 0,
        "{:?}",
        outcome.counts
    );
}

#[test]
fn without_prefer_softirqs_and_the_application_compete_and_each_poll_is_given_to_who_made_it() {
    let world = Backend::new();
    let params = Params { busy_poll_usecs: 200, busy_poll_budget: 8, prefer_busy_poll: false };
    let outcome = count_during(&world, |talk| to_busy_poller(talk, params, 500));
    outcome.agrees();
    assert!(
        outcome.counts.application.polls > 0 && outcome.counts.softirq.polls > 0,
        "{:?}",
        outcome.counts
    );
}

#[test]
fn suspension_is_told_from_deferral() {
    let world = Backend::new();
    world.set(&[
        (Setting::DeferHardIrqs, 100),
        (Setting::GroFlushTimeout, 20_000),
        (Setting::IrqSuspendTimeout, 20_000_000),
    ]);
    let params = Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    let outcome = count_during(&world, |talk| to_busy_poller(talk, params, 200));
    outcome.agrees();
    let counts = outcome.counts;
    assert!(counts.suspensions > Some(0) && counts.deferrals > Some(0), "{counts:?}");
    assert!(counts.application.polls > 0, "{counts:?}");
}

#[test]
fn a_suspension_whose_application_does_not_come_back_ends_by_its_timer() {
    let world = Backend::new();
    world.set(&[
        (Setting::DeferHardIrqs, 100),
        (Setting::GroFlushTimeout, 20_000),
        (Setting::IrqSuspendTimeout, 5_000_000),
    ]);
    let params = Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    let outcome = count_during(&world, |talk| {
        let epoll = epoll_on(&talk.here, params);
        let mut received = 0;
        for _ in 0..10 {
            talk.there.send(b"a datagram").expect("sent");
            // The wait finds an event, which suspends the interrupt; the next wait comes only after ten times
            // the timeout.
            let mut events = Vec::with_capacity(8);
            let spare = rustix::buffer::spare_capacity(&mut events);
            rustix::event::epoll::wait(&epoll, spare, None).expect("an event");
            received += u64::from(talk.here.recv(&mut [0; 64]).is_ok());
            std::thread::sleep(Duration::from_millis(50));
        }
        talk.here.set_nonblocking(false).expect("set");
        received
    });
    outcome.agrees();
    let counts = outcome.counts;
    assert!(counts.expiries > Some(0), "{counts:?}");
    assert!(counts.expiries <= counts.suspensions || outcome.hidden.is_some(), "{counts:?}");
}
