//! Programs under a policy, from their start or attached while they run, and the effect of suspension on them.

use super::cases::Outcome;
use super::guest::{Guest, READS, STATE};

/// A server that knows nothing of napkin: it waits by epoll and answers.
const SERVER: &str = r#"
import select, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
e = select.epoll(); e.register(s, select.EPOLLIN)
print(e.fileno(), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    for _ in e.poll(): s.sendto(*s.recvfrom(2048))
"#;

/// The same server, whose epoll context gets another descriptor on a signal.
const MOVES: &str = r#"
import os, select, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
e = select.epoll(); e.register(s, select.EPOLLIN)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGUSR1, lambda *_: (os.dup2(e.fileno(), 50), e.close()))
print(e.fileno(), flush=True)
while True: signal.pause()
"#;

/// The same server, with an always-writable descriptor beside the socket.
const ALWAYS_READY: &str = r#"
import os, select, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
e = select.epoll(); e.register(s, select.EPOLLIN)
r, w = os.pipe()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(e.fileno(), flush=True)
asked = False
while True:
    for fd, _ in e.poll():
        if fd == w: continue
        s.sendto(*s.recvfrom(2048))
        if not asked: e.register(w, select.EPOLLOUT); asked = True
"#;

/// Waits until a file has a line, and parses it.
fn line(guest: &mut Guest, path: &str) -> Result<u64, String> {
    let output = guest.does(&format!(
        "for i in $(seq 300); do [ -s {path} ] && break; sleep 0.1; done; head -1 {path}"
    ))?;
    output.trim().parse().map_err(|_| format!("{path}: {output}"))
}

/// Ends the napkin that was started last, and waits for its exit.
pub(crate) const END: &str = "kill -TERM $(cat /run/run.pid)
for i in $(seq 300); do kill -0 $(cat /run/run.pid) 2> /dev/null || break; sleep 0.1; done";

/// The parameters of an epoll context under a policy with suspension.
const PREFERS: [u64; 3] = [0, 64, 1];

/// Waits until an epoll context has these parameters.
fn becomes(guest: &mut Guest, pid: u64, descriptor: u64, wanted: [u64; 3]) -> Result<(), String> {
    let mut seen = [0; 3];
    for _ in 0..100 {
        seen = guest.epoll(pid, descriptor);
        if seen == wanted {
            return Ok(());
        }
        guest.does("sleep 0.1")?;
    }
    Err(format!("the epoll context has {seen:?}, and not {wanted:?}"))
}

pub(crate) fn run(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} run --policy {policy} --dev {dev} -- \
         sh -c 'echo $$ > /run/server.pid; exec python3 /run/server.py > /run/server.out' \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let (epoll, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let known = guest.is(6, 9) && policy == "suspend20";
    if known {
        becomes(guest, pid, epoll, PREFERS)?;
    }
    let during = guest.set(dev);
    guest.does(END)?;
    if during == before {
        let output = guest.does("cat /run/run.out")?;
        return Err(format!("nothing was set: {output}"));
    }
    guest.left(dev, &before)?;
    Ok(if known { "device and epoll" } else { "device" }.into())
}

/// A thread that waits for the packets of one instance is moved to the CPU that polls it: the CPU to which its
/// interrupt was just moved, although the kernel reports the old one until the next interrupt.
pub(crate) fn pin(guest: &mut Guest, dev: &str) -> Outcome {
    if dev == "va" || !guest.is(6, 13) {
        return Ok("nothing to pin beside".into());
    }
    let (before, napkin) = (guest.set(dev), env!("CARGO_BIN_EXE_napkin"));
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} run --policy suspend20 --dev {dev} --cpus 1,3 --pin -- \
         sh -c 'echo $$ > /run/server.pid; exec python3 /run/server.py > /run/server.out' \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let (_, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let mut seen = String::new();
    for _ in 0..10 {
        guest.load(dev);
        seen = guest.does(&format!("grep Cpus_allowed_list /proc/{pid}/status | cut -f2"))?;
        if !seen.contains('-') {
            break;
        }
    }
    guest.does(END)?;
    let output = guest.does("cat /run/run.out")?;
    guest.left(dev, &before)?;
    match seen.trim() {
        "1" | "3" => Ok(format!("on CPU {}", seen.trim())),
        other => Err(format!("the program may run on {other}, and not on 1 or 3 alone: {output}")),
    }
}

pub(crate) fn attach(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does("python3 /run/server.py > /run/server.out & echo $! > /run/server.pid")?;
    let (epoll, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let known = policy == "suspend20";
    let at_first = if known { guest.epoll(pid, epoll) } else { [0; 3] };
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} attach {pid} --policy {policy} --dev {dev} \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let mut outcome = Ok(());
    if known {
        outcome = becomes(guest, pid, epoll, PREFERS);
    } else {
        guest.does("sleep 2")?;
    }
    let during = guest.set(dev);
    guest.does(END)?;
    let at_last = if known { guest.epoll(pid, epoll) } else { [0; 3] };
    guest.does(&format!("kill -TERM {pid}"))?;
    let output = guest.does("cat /run/run.out")?;
    outcome.map_err(|it| format!("{it}: {output}"))?;
    if during == before {
        return Err(format!("nothing was set: {output}"));
    }
    if at_first != at_last {
        return Err(format!("the epoll context had {at_first:?}, and has {at_last:?}"));
    }
    guest.left(dev, &before)?;
    Ok(if known { "device and epoll" } else { "device" }.into())
}

pub(crate) fn moved(guest: &mut Guest, dev: &str) -> Outcome {
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    if policy != "suspend20" {
        return Ok("not before 6.13".into());
    }
    let before = guest.set(dev);
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{MOVES}\nEND"))?;
    guest.does("python3 /run/server.py > /run/server.out & echo $! > /run/server.pid")?;
    let (epoll, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let at_first = guest.epoll(pid, epoll);
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} attach {pid} --policy {policy} --dev {dev} \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let became = becomes(guest, pid, epoll, PREFERS);
    guest.does(&format!("kill -USR1 {pid}; sleep 1; {END}"))?;
    let at_last = guest.epoll(pid, 50);
    guest.does(&format!("kill -TERM {pid}"))?;
    became?;
    if at_first != at_last {
        return Err(format!("the epoll context had {at_first:?}, and has {at_last:?}"));
    }
    guest.left(dev, &before)?;
    Ok("put back where it is".into())
}

/// A program that never runs out of events, under suspension.
pub(crate) fn starvation(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 13) {
        return Ok("not before 6.13".into());
    }
    if dev == "va" {
        return Ok("as any, and has no peer here".into());
    }
    let before = guest.set(dev);
    let napkin = format!("NAPKIN_STATE={STATE} {}", env!("CARGO_BIN_EXE_napkin"));
    let mut answered = Vec::new();
    for guard in ["off", "once"] {
        guest.does(&format!(
            "rm -f /run/server*; cat > /run/server.py <<'END'\n{ALWAYS_READY}\nEND"
        ))?;
        guest.does(&format!(
            "{napkin} run --policy suspend20 --guard {guard} --dev {dev} -- \
             sh -c 'exec python3 /run/server.py > /run/server.out' > /run/run.out 2>&1 & \
             echo $! > /run/run.pid"
        ))?;
        line(guest, "/run/server.out")?;
        guest.does("sleep 1")?;
        guest.load(dev);
        answered.push(guest.load(dev));
        guest.does(END)?;
    }
    let output = guest.does("cat /run/run.out")?;
    if answered[1] == 0 {
        return Err(format!("no answers with the guard, which says: {output}"));
    }
    // The emulated igb raises interrupts under suspension as well, so that its queue does not always starve.
    if answered[0] == 0 && !output.contains("irq-suspend-timeout") {
        return Err(format!("the guard says nothing: {output}"));
    }
    guest.left(dev, &before)?;
    Ok(format!("{} answers without the guard, {} with it", answered[0], answered[1]))
}

/// Prints for each timer of an instance the time from its start to its expiry, in microseconds, from a trace.
const TIMERS: &str = r#"
import re, sys
for line in sys.stdin:
    it = re.search(r" (\d+)\.(\d+): hrtimer_start:.*function=napi_watchdog.* expires=(\d+)", line)
    if it: print(int(it[3]) // 1000 - int(it[1]) * 1000000 - int(it[2]))
"#;

/// Counters of a card during a load.
#[derive(Debug)]
struct Counted {
    answered: u64,
    interrupts: u64,
    /// Timers of more than 10 ms, which only a suspension has.
    long_timers: u64,
}

impl Counted {
    fn interrupts_per_answer(&self) -> f64 {
        self.interrupts as f64 / self.answered.max(1) as f64
    }
}

/// Counts by tracefs and /proc/interrupts, independently of napkin, while a server runs, once its epoll context has
/// the policy's parameters, if it is under one.
fn counted(
    guest: &mut Guest,
    dev: &str,
    (command, params): (&str, Option<[u64; 3]>),
) -> Result<Counted, String> {
    let interrupts = format!(
        "grep -E \"$(ls /sys/class/net/{dev}/device/msi_irqs /sys/class/net/{dev}/device/../msi_irqs \
         2> /dev/null | grep -o '^[0-9]*$' | sed 's/.*/^ *&:/' | paste -sd '|')\" /proc/interrupts |
         awk '{{ for (i = 2; i <= 5; i++) sum += $i }} END {{ print sum }}'"
    );
    guest.does(&format!("rm -f /run/server*; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does(&format!("cat > /run/timers.py <<'END'\n{TIMERS}\nEND"))?;
    guest.does(&format!("{command} > /run/run.out 2>&1 & echo $! > /run/run.pid"))?;
    let epoll = line(guest, "/run/server.out")?;
    if let Some(params) = params {
        let pid = guest.does("pgrep -f '^python3 /run/server.py'")?;
        let pid = pid.trim().parse().map_err(|_| format!("the server's pid: {pid}"))?;
        becomes(guest, pid, epoll, params)?;
    }
    guest.does(
        "cd /sys/kernel/tracing; echo mono > trace_clock; echo 20000 > buffer_size_kb
         echo 1 > events/timer/hrtimer_start/enable",
    )?;
    let number = |text: String| text.trim().parse::<u64>().map_err(|_| text);
    let first = number(guest.does(&interrupts)?)?;
    let answered = guest.load(dev);
    let last = number(guest.does(&interrupts)?)?;
    guest.does("echo 0 > /sys/kernel/tracing/events/timer/hrtimer_start/enable")?;
    // Most lines are of other timers: grep skips them faster than Python does on an emulated CPU.
    let timers = guest.does(&format!(
        "cd /sys/kernel/tracing; grep -F function=napi_watchdog trace | \
         {READS} /run/timers.py; echo > trace"
    ))?;
    let long = timers.lines().filter(|it| it.parse::<i64>().is_ok_and(|it| it > 10_000)).count();
    guest.does(END)?;
    guest.does("cat /run/run.out >> /run/said.out")?;
    Ok(Counted { answered, interrupts: last - first, long_timers: long as u64 })
}

/// Runs without the guard: on an emulated CPU this server may need longer than the guard's 60 ms for one batch of
/// packets, and is starved by then, as any server that cannot keep up.
pub(crate) fn suspension(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 13) {
        return Ok("not before 6.13".into());
    }
    if dev == "va" {
        return Ok("has no interrupts".into());
    }
    let before = guest.set(dev);
    let napkin = format!("NAPKIN_STATE={STATE} {}", env!("CARGO_BIN_EXE_napkin"));
    let server = "sh -c 'exec python3 /run/server.py > /run/server.out'";
    guest.does("rm -f /run/said.out")?;
    let base = counted(guest, dev, (&format!("exec {server}"), None))?;
    let run =
        format!("exec env {napkin} run --guard off --policy suspend20 --dev {dev} -- {server}");
    let run = counted(guest, dev, (&run, Some(PREFERS)))?;
    let attach = format!(
        "python3 /run/server.py > /run/server.out & exec env {napkin} attach $! --guard off \
         --policy suspend20 --dev {dev}"
    );
    let attach = counted(guest, dev, (&format!("bash -c '{attach}'"), Some(PREFERS)))?;
    guest.does("kill -TERM $(pgrep -f '^python3 /run/server.py') 2> /dev/null; true")?;
    let summary = format!("{base:?} without, {run:?} by run, {attach:?} by attach");
    if base.answered == 0 || base.long_timers > 0 {
        return Err(format!("without napkin: {summary}"));
    }
    for by in [&run, &attach] {
        if by.answered == 0 || by.long_timers == 0 {
            let output = guest.does("cat /run/said.out")?;
            return Err(format!("no suspension: {summary}; napkin said: {output}"));
        }
    }
    guest.left(dev, &before)?;
    Ok([base, run, attach]
        .iter()
        .map(|it| format!("{:.2} ({} long timers)", it.interrupts_per_answer(), it.long_timers))
        .collect::<Vec<_>>()
        .join(", "))
}

/// Sends a datagram to each address, and waits for its echo.
const ASKS: &str = r#"
import socket, sys
for address in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(0.5)
    for size in (5, 1400):
        for _ in range(60):
            s.sendto(b"x" * size, (address, 7))
            try: answer = s.recv(2048)
            except TimeoutError: continue
            if len(answer) == size: break
        else: sys.exit(f"{address} does not answer {size} bytes")
"#;

/// The engine in a VLAN of the kernel on a TAP device, over IPv4 and IPv6. Independent of the card: runs once.
pub(crate) fn vlan(guest: &mut Guest, dev: &str) -> Outcome {
    if dev != "eth0" {
        return Ok("not this card's".into());
    }
    let napkin = env!("CARGO_BIN_EXE_napkin");
    guest
        .does(&format!("modprobe tun; modprobe 8021q; cat > /run/asks.py <<'END'\n{ASKS}\nEND"))?;
    guest.does(&format!(
        "rm -f /run/serve.out; {napkin} serve echo --device tap:nk0.100 \
         --address 10.7.0.1/24,fd00:7::1/64 --control /run/serve.sock > /run/serve.out 2>&1 & \
         echo $! > /run/run.pid"
    ))?;
    let asked = guest.does(
        "for i in $(seq 300); do grep -q control: /run/serve.out && break; sleep 0.1; done
        cat /run/serve.out; ip -d link show nk0.100 | grep 'vlan protocol 802.1Q id 100' &&
        python3 /run/asks.py 10.7.0.1 fd00:7::1 && ip neigh show dev nk0.100",
    );
    guest.does(END)?;
    let asked = asked?;
    if guest.vm.sh("[ -e /sys/class/net/nk0 ] || [ -e /sys/class/net/nk0.100 ]").status == 0 {
        return Err("an interface is left".into());
    }
    // By neighbour discovery and by ARP.
    match asked.matches("lladdr 02:6e:6b:").count() {
        0 | 1 => Err(format!("both families ask for our Ethernet address: {asked}")),
        _ => Ok("IPv4 and IPv6 in VLAN 100".into()),
    }
}

/// An application on AF_XDP rings under threaded busy polling. Independent of the card: runs once.
pub(crate) fn rings(guest: &mut Guest, dev: &str) -> Outcome {
    if dev != "eth0" || !guest.is(6, 19) {
        return Ok("not this card's or this kernel's".into());
    }
    let row = |policy: &str, guest: &mut Guest| -> Result<[u64; 3], String> {
        let output = guest.succeeds(&format!(
            "bench xsk-rr --world linux --rate 500 --policy {policy} --repetitions 1 --window 1s \
             --json /run/rings.json"
        ))?;
        let text = guest.does("cat /run/rings.json")?;
        let report: serde_json::Value = serde_json::from_str(&text).map_err(|it| it.to_string())?;
        let row = &report["rows"][0];
        let number = |name: &str| row[name].as_u64().ok_or(format!("no {name}: {output}"));
        Ok([number("packets")?, number("polls_softirq")?, number("polls_thread")?])
    };
    let interrupts = row("interrupts", guest)?;
    let polling = row("threaded-busy-poll", guest)?;
    let ([by_interrupts, softirq, none], [by_polling, _, polls]) = (interrupts, polling);
    let summary = format!("{interrupts:?}, {polling:?} (answers, polls by softirq, by the thread)");
    // More polls than packets: the thread polls without waiting.
    match by_interrupts > 0 && softirq > 0 && none == 0 && by_polling > 0 && polls > 2 * by_polling
    {
        true => Ok(summary),
        false => Err(summary),
    }
}
