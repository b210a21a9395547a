//! Breakages of a host, one at a time; a number selects the variant.

use super::super::*;
use super::Machine;
use crate::support::tests::linux;
use napkin_kernel::process::Ready;

pub(super) type Break = fn(&mut Machine, u32);

/// Picks one of a few values.
fn pick<T: Clone>(from: &[T], number: u32) -> T {
    from[number as usize % from.len()].clone()
}

const SOME_CPUS: &[&[usize]] =
    &[&[0], &[1], &[2], &[3], &[0, 1, 2], &[0, 1, 2, 3], &[2, 3], &[1, 2], &[0, 1]];

/// Changes the instances that a number selects: all, or one.
fn of_napis(it: &mut Machine, number: u32, change: impl Fn(&mut Napi)) {
    let all = number & 1 == 0;
    let one = (number / 2) as usize % it.napis.len();
    for (place, napi) in it.napis.iter_mut().enumerate() {
        if all || place == one {
            change(napi);
        }
    }
}

fn of_threads(it: &mut Machine, number: u32, change: impl Fn(&mut Thread)) {
    let all = number & 1 == 0;
    for program in &mut it.facts.programs {
        let one = (number / 2) as usize % program.threads.len().max(1);
        for (place, thread) in program.threads.iter_mut().enumerate() {
            if all || place == one {
                change(thread);
            }
        }
    }
}

fn of_epolls(it: &mut Machine, number: u32, change: impl Fn(&mut Epoll)) {
    let all = number & 1 == 0;
    for program in &mut it.facts.programs {
        let Ok(epolls) = &mut program.epolls else { continue };
        let one = (number / 2) as usize % epolls.len().max(1);
        for (place, epoll) in epolls.iter_mut().enumerate() {
            if all || place == one {
                change(epoll);
            }
        }
    }
}

fn of_params(it: &mut Machine, number: u32, change: impl Fn(&mut EpollPolicy)) {
    of_epolls(it, number, |epoll| {
        if let Ok(params) = &mut epoll.params {
            change(params);
        }
    });
}

fn of_sockets(it: &mut Machine, number: u32, change: impl Fn(&mut Socket)) {
    let all = number & 1 == 0;
    for program in &mut it.facts.programs {
        let Ok(sockets) = &mut program.sockets else { continue };
        let one = (number / 2) as usize % sockets.len().max(1);
        for (place, socket) in sockets.iter_mut().enumerate() {
            if all || place == one {
                change(socket);
            }
        }
    }
}

fn of_waits(it: &mut Machine, number: u32, change: impl Fn(&mut Wait)) {
    let all = number & 1 == 0;
    for program in &mut it.facts.programs {
        let Ok(waits) = &mut program.waits else { continue };
        let one = (number / 2) as usize % waits.len().max(1);
        for (place, wait) in waits.iter_mut().enumerate() {
            if all || place == one {
                change(wait);
            }
        }
    }
}

/// An unused process ID, whose thread IDs are unused too.
fn next_pid(it: &Machine) -> i32 {
    let last = it.facts.programs.iter().map(|program| program.pid).max();
    last.unwrap_or(1_000) + 100
}

macro_rules! table {
    ($($name:literal: $break:expr;)*) => {
        &[$(($name, $break as Break)),*]
    };
}

/// All breakages, each with its name.
pub(super) fn breaks() -> &'static [(&'static str, Break)] {
    BREAKS
}

const BREAKS: &[(&str, Break)] = table! {
    "threaded": |it, n| of_napis(it, n, |napi| napi.settings.threaded = Some(n / 4 % 3));
    "defer-hard-irqs": |it, n| {
        of_napis(it, n, |napi| napi.settings.defer_hard_irqs = Some(pick(&[0, 1, 50, 100], n / 4)));
    };
    "gro-flush-timeout": |it, n| of_napis(it, n, |napi| {
        let times = [0, 1_000, 20_000, 200_000, 2_000_000, 5_000_000, 50_000_000];
        napi.settings.gro_flush_timeout = Some(pick(&times, n / 4));
    });
    "irq-suspend-timeout": |it, n| of_napis(it, n, |napi| {
        let times = [0, 1_000, 100_000, 1_000_000, 20_000_000, 80_000_000, 500_000_000];
        napi.settings.irq_suspend_timeout = Some(pick(&times, n / 4));
    });
    "an old kernel": |it, n| {
        it.kernel = pick(&[linux(6, 1), linux(6, 9), linux(6, 13), linux(6, 18)], n);
    };
    "one instance": |it, _| it.napis.truncate(1);
    "more instances": |it, n| {
        for more in 0..n % 7 {
            let mut napi = it.napis[0].clone();
            (napi.id, napi.irq) = (600 + more, Some(60 + more));
            (napi.rx_queues, napi.tx_queues) = (vec![2 + more], vec![2 + more]);
            (napi.pid, napi.thread_cpus) = (None, None);
            it.napis.push(napi);
        }
    };
    "an instance that transmits": |it, n| {
        let mut napi = it.napis[0].clone();
        (napi.id, napi.irq) = (700, Some(70));
        (napi.rx_queues, napi.tx_queues) = (vec![], vec![0]);
        (napi.pid, napi.thread_cpus) = (None, None);
        napi.settings = Settings::of(&Policy::BASE.instance);
        napi.settings.gro_flush_timeout = Some(pick(&[0, 1_000, 2_000_000], n));
        it.napis.push(napi);
    };
    "link down": |it, _| it.facts.device.up = false;
    "a veth without GRO": |it, n| {
        it.facts.device.driver = Some("veth".into());
        it.gro = n & 1 == 0;
        for napi in &mut it.napis {
            (napi.irq, napi.irq_cpus) = (None, None);
        }
    };
    "loopback": |it, n| {
        if n % 8 != 0 {
            return;
        }
        it.facts.device.ifname = "lo".into();
        it.facts.device.up = false;
    };
    "interrupts elsewhere": |it, n| of_napis(it, n, |napi| {
        napi.irq_cpus = napi.irq.map(|_| pick(SOME_CPUS, n / 4).into());
    });
    "interrupts not seen": |it, n| of_napis(it, n, |napi| napi.irq_cpus = None);
    "a shared interrupt": |it, n| {
        for napi in it.napis.iter_mut().filter(|napi| napi.irq.is_some()) {
            (napi.irq, napi.irq_cpus) = (Some(40), Some(pick(SOME_CPUS, n).into()));
        }
    };
    "irqbalance": |it, _| it.facts.host.irqbalance = Ok(Some(700));
    "poll threads elsewhere": |it, n| {
        it.settle();
        for thread in it.facts.poll_threads.values_mut() {
            thread.cpus = pick(SOME_CPUS, n).into();
        }
    };
    "real-time poll threads": |it, _| {
        it.settle();
        it.facts.poll_threads.values_mut().for_each(|thread| thread.fifo = Some(10));
    };
    "program threads elsewhere": |it, n| {
        of_threads(it, n, |thread| thread.cpus = pick(SOME_CPUS, n / 4).into());
    };
    "a container": |it, n| {
        let cpuset: Vec<usize> = pick(SOME_CPUS, n).into();
        it.facts.programs.iter_mut().for_each(|program| program.cpuset = Some(cpuset.clone()));
    };
    "few CPUs": |it, n| it.facts.host.cpus.truncate(1 + n as usize % 3);
    "SMT": |it, _| {
        it.facts.host.smt = Ok(true);
        it.facts.host.cpus = (0..8).collect();
    };
    "timers migrate": |it, _| it.facts.host.timer_migration = Ok(1);
    "no limit of real-time": |it, _| it.facts.host.rt_runtime = Ok(-1);
    "busy polling for all": |it, n| {
        it.facts.host.busy_poll = Ok(pick(&[0, 50], n));
        it.facts.host.busy_read = Ok(pick(&[0, 50], n / 64));
    };
    "netdev_budget": |it, n| it.facts.host.netdev_budget = Ok(pick(&[64, 300, 600, 1_000, 5_000], n));
    "netdev_budget_usecs": |it, n| {
        it.facts.host.netdev_budget_usecs = Ok(pick(&[2_000, 8_000, 20_000], n));
    };
    "backlog": |it, n| it.facts.host.netdev_max_backlog = Ok(pick(&[100, 1_000, 30_000, 200_000], n));
    "kernel work everywhere": |it, n| it.facts.host.workqueue_cpus = Ok(pick(SOME_CPUS, n).into());
    "much to do": |it, n| {
        it.load.packets = pick(&[200, 700, 1_500], n);
        it.load.usecs = pick(&[100, 10_000, 50_000], n / 4);
        it.load.backlog = pick(&[10, 5_000, 50_000, 1_000_000], n / 16);
    };
    "long batches": |it, n| it.load.batch = pick(&[2_000_000, 30_000_000, 90_000_000, 1 << 32], n);
    "a program that hangs": |it, _| it.load.hangs = true;
    "RPS": |it, n| it.facts.receive.rps = Ok(vec![(0, vec![1]), (1, vec![0; n as usize % 2])]);
    "RFS": |it, n| {
        it.facts.receive.rps_flows = Ok(vec![(0, 4_096), (1, u64::from(n & 1))]);
        it.facts.host.rps_sock_flow_entries = Ok(i64::from(n & 32_768));
    };
    "a small ring": |it, n| {
        it.facts.receive.ring = Ok(Some(Ring { entries: 128, most: pick(&[128, 256, 8_192], n) }));
    };
    "adaptive moderation": |it, _| it.facts.receive.adaptive = Ok(Some(true));
    "others": |it, n| {
        let ids: Vec<u32> = it.napis.iter().map(|napi| napi.id).collect();
        let napi_ids = if n & 1 == 0 { ids.iter().copied().collect() } else { [pick(&ids, n)].into() };
        it.facts.others = Ok(vec![Other { pid: 7, comm: "sshd".into(), napi_ids }]);
    };
    "one queue in use": |it, _| of_sockets(it, 0, |socket| socket.napi_id = 513);
    "no program": |it, _| it.facts.programs.clear();
    "another program": |it, n| {
        let mut program = it.memcached(next_pid(it), 2, pick(&[EpollPolicy::default(), Policy::NAPIBUSY.epoll], n));
        program.comm = "nginx".into();
        program.command = vec!["nginx".into()];
        it.facts.programs.push(program);
    };
    "a program without epoll": |it, n| {
        let mut program = it.memcached(next_pid(it), 1, EpollPolicy::default());
        program.comm = "sshd".into();
        program.epolls = Ok(vec![]);
        program.waits = Ok(vec![]);
        if n & 1 == 0 {
            it.facts.programs.clear();
        }
        it.facts.programs.push(program);
    };
    "not memcached": |it, _| {
        it.facts.programs.iter_mut().for_each(|program| program.comm = "server".into());
    };
    "memcached as it should be": |it, n| {
        let number = (1 + n % 3).to_string();
        let words = ["memcached", "-t", &number, "-N", &number].map(str::to_owned);
        it.facts.programs.iter_mut().for_each(|program| program.command = words.clone().into());
    };
    "Go": |it, n| {
        let one = n & 1 == 0;
        let programs = it.facts.programs.len();
        it.facts.programs.iter_mut().take(if one { 1 } else { programs }).for_each(|program| {
            program.go = Ok(true);
        });
    };
    "no prefer": |it, n| of_params(it, n, |params| params.prefer_busy_poll = false);
    "busy-poll time": |it, n| {
        of_params(it, n, |params| params.busy_poll_usecs = pick(&[0, 32, 64, 1_000], n / 4));
    };
    "busy-poll budget": |it, n| {
        of_params(it, n, |params| params.busy_poll_budget = pick(&[0, 8, 64], n / 4));
    };
    "default parameters": |it, n| of_params(it, n, |params| *params = EpollPolicy::default());
    "an epoll beside": |it, n| {
        for program in &mut it.facts.programs {
            let params = Ok(pick(&[EpollPolicy::default(), Policy::suspend(20_000).epoll], n));
            program.epolls.as_mut().expect("seen").push(Epoll { fd: 77, params, members: vec![], always_ready: Ok(vec![]) });
        }
    };
    "sockets outside of epoll": |it, n| of_epolls(it, n, |epoll| epoll.members.clear());
    "all sockets in one epoll": |it, _| {
        for program in &mut it.facts.programs {
            let Ok(sockets) = &program.sockets else { continue };
            let members: Vec<i32> = sockets.iter().map(|socket| socket.fd).collect();
            for (place, epoll) in program.epolls.iter_mut().flatten().enumerate() {
                epoll.members = if place == 0 { members.clone() } else { vec![] };
            }
        }
    };
    "another device's sockets": |it, n| of_sockets(it, n | 1, |socket| socket.napi_id = 9_999);
    "sockets without id": |it, n| of_sockets(it, n, |socket| socket.napi_id = 0);
    "sockets over loopback": |it, n| of_sockets(it, n, |socket| {
        (socket.napi_id, socket.local) = (0, Some([127, 0, 0, 1].into()));
    });
    "no SO_BUSY_POLL": |it, n| of_sockets(it, n, |socket| socket.busy_poll_usecs = 0);
    "several threads on one epoll": |it, _| {
        for program in &mut it.facts.programs {
            let Ok(waits) = &mut program.waits else { continue };
            if let [first, second, ..] = waits[..] {
                waits.push(Wait { epoll: first.epoll, ..second });
            }
        }
    };
    "something that is always ready": |it, n| of_epolls(it, n, |epoll| {
        epoll.always_ready = Ok(vec![Ready { fd: 9, readable: false, writable: true }]);
    });
    "waits with a zero timeout": |it, n| of_waits(it, n, |wait| wait.timeout = Some(0));
    "waits that end": |it, n| of_waits(it, n, |wait| wait.timeout = Some(10_000_000));
    "waits without end": |it, n| of_waits(it, n, |wait| wait.timeout = None);
    "large batches": |it, n| {
        let connections = i32::try_from(n % 10_000).expect("small");
        for program in &mut it.facts.programs {
            let (Ok(sockets), Ok(epolls)) = (&mut program.sockets, &mut program.epolls) else { continue };
            let (Some(one), Some(epoll)) = (sockets.first().cloned(), epolls.first_mut()) else { continue };
            for fd in 10_000..10_000 + connections {
                sockets.push(Socket { fd, ..one.clone() });
                epoll.members.push(fd);
            }
        }
        of_waits(it, 0, |wait| wait.maxevents = pick(&[1, 512, 65_536], n / 3));
    };
    "threads that spin": |it, n| of_threads(it, n, |thread| {
        (thread.permille, thread.slept) = (999, Some(false));
    });
    "threads that sleep": |it, n| of_threads(it, n, |thread| {
        (thread.permille, thread.slept) = (20, Some(true));
    });
    "waits not seen": |it, _| {
        it.facts.programs.iter_mut().for_each(|program| program.waits = missing());
    };
    "sockets not seen": |it, _| {
        it.facts.programs.iter_mut().for_each(|program| program.sockets = missing());
    };
    "not counted": |it, _| it.facts.measured.polls = missing();
    "sysctls not seen": |it, _| {
        it.facts.host.netdev_budget = missing();
        it.facts.host.netdev_budget_usecs = missing();
        it.facts.host.busy_poll = missing();
    };
};
