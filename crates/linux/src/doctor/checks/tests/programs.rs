//! Tests of programs whose sockets, epoll contexts and waits do not suit the policy.

use super::*;

#[test]
fn a_connection_without_an_id_is_never_polled() {
    faulty("suspend20", "napi-id", |it| sockets(it)[0].napi_id = 0);
    // Without a connection little is known.
    let idle = broken("suspend20", |it| {
        sockets(it).clear();
        waits(it).clear();
        it.measured.polls = Ok(Polls { suspend_expiries: Some(0), ..Polls::default() });
    });
    assert!(idle.contains(&("napi-id", Status::Unknown)), "{idle:?}");
    assert!(idle.iter().all(|(_, status)| *status == Status::Unknown), "{idle:?}");
}

#[test]
fn the_other_end_of_a_veth_is_named() {
    let mut facts = sound("suspend20");
    facts.device.driver = Some("veth".into());
    sockets(&mut facts)[0].napi_id = 0;
    let fix = examine(&facts).findings.remove(0).command();
    assert!(fix.is_some_and(|it| it.contains("tso off gso off")));
}

#[test]
fn packets_past_a_veth_s_napi_are_named_whatever_is_set_there() {
    let past = |policy: &str| {
        let mut facts = sound(policy);
        facts.device.driver = Some("veth".into());
        sockets(&mut facts).iter_mut().for_each(|socket| socket.napi_id = 0);
        facts
    };
    let found =
        |facts: &Facts| examine(facts).findings.into_iter().find(|it| it.check == "napi-id");
    for policy in ["defer20", "threaded"] {
        let found = found(&past(policy)).expect(policy);
        // The connections may have been idle since before NAPI was on.
        assert_eq!(found.status, Status::Unknown, "{policy}");
        assert!(found.what.contains("packets pass no instance"), "{policy}: {}", found.what);
        assert!(found.command().is_some_and(|it| it.contains("tso off gso off")), "{policy}");
    }
    assert_eq!(found(&past("base")), None, "nothing is set that could do anything");
    // One connection received through an instance: the others may be another device's.
    let mut some = past("defer20");
    sockets(&mut some)[0].napi_id = 513;
    assert_eq!(found(&some).map(|it| it.status), Some(Status::Ok));
    let mut none = past("defer20");
    sockets(&mut none).clear();
    assert_eq!(found(&none), None, "there is no connection");
}

#[test]
fn connections_over_loopback_are_not_the_device_s() {
    let local = broken("suspend20", |it| {
        let loopback = Socket {
            fd: 99,
            local: Some([127, 0, 0, 1].into()),
            napi_id: 0,
            ..sockets(it)[0].clone()
        };
        epolls(it)[0].members.push(99);
        sockets(it).push(loopback);
    });
    assert_eq!(local, []);
}

#[test]
fn receive_calls_poll_if_their_sockets_say_so() {
    faulty("busypoll", "socket-busy-poll", |it| sockets(it)[1].busy_poll_usecs = 0);
}

#[test]
fn a_program_without_epoll_cannot_suspend() {
    let without = broken("suspend20", |it| {
        epolls(it).clear();
        waits(it).clear();
    });
    assert!(without.contains(&("epoll", Status::Fault)), "{without:?}");
    assert_eq!(without.iter().filter(|(_, status)| *status == Status::Fault).count(), 1);
    let elsewhere = broken("suspend20", |it| {
        for epoll in epolls(it) {
            epoll.members.clear();
        }
    });
    assert!(elsewhere.contains(&("epoll", Status::Fault)), "{elsewhere:?}");
    unknown("suspend20", "epoll", |it| epolls(it)[0].params = missing());
}

#[test]
fn the_flag_belongs_to_the_epoll_with_the_sockets() {
    faulty("suspend20", "prefer", |it| params(it, |it| it.prefer_busy_poll = false));
    faulty("napibusy", "prefer", |it| params(it, |it| it.prefer_busy_poll = false));
    faulty("suspend20", "prefer-epoll", |it| {
        let right = epolls(it)[0].clone();
        params(it, |it| it.prefer_busy_poll = false);
        let wrong = Epoll { fd: 77, members: vec![], ..right };
        epolls(it).push(wrong);
    });
}

#[test]
fn an_epoll_polls_as_long_and_as_much_as_the_policy_says() {
    faulty("napibusy", "busy-poll-usecs", |it| params(it, |it| it.busy_poll_usecs = 0));
    advised("napibusy", "busy-poll-usecs", |it| params(it, |it| it.busy_poll_usecs = 32));
    faulty("suspend20", "budget", |it| params(it, |it| it.busy_poll_budget = 0));
    faulty("suspend20", "budget", |it| params(it, |it| it.busy_poll_budget = 8));
    advised("suspend20", "budget", |it| {
        it.asked = false;
        params(it, |it| it.busy_poll_budget = 0);
    });
}

#[test]
fn an_epoll_polls_one_instance() {
    faulty("suspend20", "epoll-instance", |it| {
        // The first thread has all connections.
        sockets(it).iter_mut().for_each(|socket| socket.fd %= 10);
        let fds: Vec<i32> = (0..4).collect();
        for (socket, fd) in sockets(it).iter_mut().zip(&fds) {
            socket.fd = *fd;
        }
        epolls(it)[0].members = fds;
        epolls(it).truncate(1);
        waits(it).truncate(1);
        // The thread may run on either queue's CPU.
        it.programs[0].threads[0].cpus = vec![0, 1];
    });
}

#[test]
fn an_epoll_is_one_thread_s() {
    let share = |it: &mut Facts| {
        let second = Wait { epoll: 5, ..waits(it)[1] };
        waits(it).push(second);
        it.programs[0].threads[1].cpus = vec![0, 1];
    };
    faulty("suspend20", "epoll-shared", share);
    advised("napibusy", "epoll-shared", share);
}

#[test]
fn an_instance_is_one_epoll_s() {
    advised("suspend20", "instance-shared", |it| {
        for socket in sockets(it) {
            socket.napi_id = 513;
        }
        it.programs[0].threads[1].cpus = vec![0];
    });
}

#[test]
fn a_wait_with_a_zero_timeout_never_polls() {
    let timeout = |it: &mut Facts, nanoseconds| {
        for wait in waits(it) {
            wait.timeout = nanoseconds;
        }
    };
    faulty("suspend20", "wait-timeout", |it| timeout(it, Some(0)));
    advised("suspend20", "wait-timeout", |it| timeout(it, Some(10_000_000)));
    advised("fullbusy", "wait-timeout", |it| timeout(it, None));
    // A server's timers for idle connections: one wake-up in more than a minute.
    assert_eq!(broken("suspend20", |it| timeout(it, Some(75_000_000_000))), []);
    // A few waits with a zero timeout before it sleeps do no harm.
    let looks = broken("suspend20", |it| {
        let look = Wait { timeout: Some(0), times: 3, ..waits(it)[0] };
        waits(it).push(look);
    });
    assert_eq!(looks, []);
    let unseen = broken("suspend20", |it| program(it).waits = missing());
    assert_eq!(unseen, [("wait-timeout", Status::Unknown), ("cpu-match", Status::Unknown)]);
}

#[test]
fn a_program_that_was_never_seen_to_wait_is_not_known() {
    let running = broken("suspend20", |it| {
        waits(it).clear();
        program(it).uncounted = Some("counting its calls takes CAP_PERFMON".into());
    });
    assert!(running.contains(&("wait-timeout", Status::Unknown)), "{running:?}");
    assert!(running.iter().all(|(_, status)| *status == Status::Unknown), "{running:?}");
}

#[test]
fn a_batch_fits_into_the_suspension() {
    let crowd = |it: &mut Facts, connections: i32, maxevents| {
        let one = sockets(it)[0].clone();
        for fd in 1_000..1_000 + connections {
            sockets(it).push(Socket { fd, ..one.clone() });
            epolls(it)[0].members.push(fd);
        }
        waits(it)[0].maxevents = maxevents;
    };
    // 4096 requests of 20 us take more than 20 ms.
    advised("suspend20", "maxevents", |it| crowd(it, 5_000, 4_096));
    advised("suspend20", "maxevents", |it| {
        crowd(it, 100, 1);
        waits(it)[1].maxevents = 1;
    });
    assert_eq!(broken("suspend20", |it| crowd(it, 5_000, 64)), []);
}

#[test]
fn a_program_that_spins_is_said() {
    advised("suspend20", "spinning", |it| {
        let thread = &mut it.programs[0].threads[0];
        (thread.permille, thread.slept) = (990, Some(false));
    });
    advised("fullbusy", "spinning", |it| {
        for thread in &mut it.programs[0].threads {
            (thread.permille, thread.slept) = (20, Some(true));
        }
    });
    unknown("suspend20", "spinning", |it| {
        for thread in &mut it.programs[0].threads {
            thread.slept = None;
        }
    });
}

#[test]
fn go_is_warned_about() {
    advised("suspend20", "go-runtime", |it| program(it).go = Ok(true));
    unknown("suspend20", "go-runtime", |it| program(it).go = missing());
}
