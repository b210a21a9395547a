//! Tests of programs that always find something ready, and of the instances that they starve.

use super::*;
use napkin_kernel::process::Ready;

fn ready(fd: i32, readable: bool, writable: bool) -> Ready {
    Ready { fd, readable, writable }
}

#[test]
fn a_pipe_that_can_always_be_written_to_is_named_before_it_starves_anybody() {
    let found = |asked, it: Ready| {
        let mut facts = sound("suspend20");
        facts.asked = asked;
        epolls(&mut facts)[1].always_ready = Ok(vec![it]);
        let mut faults = examine(&facts).findings;
        faults.retain(|it| it.status == Status::Fault);
        faults
    };
    let faults = found(false, ready(9, false, true));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].check, "always-ready");
    assert!(faults[0].what.contains("epoll 6 of memcached[812]"), "{faults:?}");
    assert!(faults[0].what.contains("EPOLLET"), "{faults:?}");
    assert!(faults[0].seen.contains("9 (EPOLLOUT)"), "{faults:?}");
    let command = "napkin apply suspend20,irq-suspend-timeout=0 --dev eth0";
    let fix = faults[0].command();
    assert!(fix.as_deref() == Some(command), "{fix:?}");
    assert_eq!(found(true, ready(9, false, true))[0].command(), None, "it was asked for");
    assert!(found(true, ready(9, true, false))[0].what.contains("read it"));
    // A writable connection is always ready, too; a readable one is what the program waits for.
    assert_eq!(found(true, ready(20, false, true)).len(), 1);
    assert_eq!(found(true, ready(20, true, false)), []);
}

#[test]
fn without_suspension_it_may_be_ready() {
    for policy in ["napibusy", "base", "threaded-busy-poll"] {
        let other =
            broken(policy, |it| epolls(it)[0].always_ready = Ok(vec![ready(9, false, true)]));
        assert_eq!(other, [], "{policy}");
    }
    unknown("suspend20", "always-ready", |it| epolls(it)[0].always_ready = Err("a right".into()));
}

#[test]
fn an_instance_that_nobody_polls_while_it_is_suspended_starves() {
    let unpolled = Unpolled { napi_id: 514, suspensions: 9_000 };
    faulty("suspend20", "starvation", |it| it.measured.unpolled = Ok(vec![unpolled]));
    unknown("suspend20", "starvation", |it| it.measured.unpolled = Err("CAP_BPF".into()));
    // A window no longer than a suspension may last.
    unknown("suspend20", "starvation", |it| {
        it.measured.unpolled = Ok(vec![unpolled]);
        it.measured.window = 30_000_000;
    });
    // The suspension was turned off meanwhile.
    let fixed = broken("suspend20", |it| {
        it.measured.unpolled = Ok(vec![unpolled]);
        it.device.napis[1].settings.irq_suspend_timeout = Some(0);
    });
    assert!(fixed.iter().all(|(check, _)| *check != "starvation"), "{fixed:?}");
}
